# SPDX-License-Identifier: Apache-2.0
"""gh-validate-ring as a filter: tests the links when a suspect that a link can explain arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ghtools.stream.errors import GhError
from ghtools.stream.records import Change, Finding, Record, Suspect

from .aside import Aside, Submit, beside
from .ripe import Ripe

LINKS = ("link", "group", "host")


class RingStage:
    """`test` runs one test and yields its records; it is called once an episode, and at most every `every_s`.

    Suspects of a slow-down that is not confirmed wait until it is, since a test holds the job. The stream goes on
    meanwhile; what the test made follows the record that comes when it has ended.
    """

    def __init__(
        self,
        test: Callable[[Suspect], Iterator[Record]],
        every_s: float,
        clock: Callable[[], float],
        say: Callable[[str], None],
        submit: Submit = beside,
    ) -> None:
        self._test, self._every_s, self._clock, self._say = test, every_s, clock, say
        self._episode = 0
        self._done: int | None = None
        self._last: float | None = None
        self._aside, self._ripe = Aside(submit), Ripe()

    def feed(self, record: Record) -> Iterator[Record]:
        """The records of a test that has ended; begins one if this record asks for it."""
        yield from self._aside.ready()
        if isinstance(record, Change) and record.level == "job":
            self._episode = record.episode if record.type != "relief" else self._episode
        for suspect in self._ripe.feed(record):
            self._begin(suspect)
        yield from self._aside.ready()

    def _begin(self, suspect: Suspect) -> None:
        now = self._clock()
        soon = self._last is not None and now - self._last < self._every_s
        if soon or self._aside.busy or self._done == self._episode or not asks(suspect):
            return
        self._done, self._last = self._episode, now
        self._aside.start(lambda: list(self._made(suspect)))

    def _made(self, record: Suspect) -> Iterator[Record]:
        try:
            for made in self._test(record):
                if isinstance(made, Finding) and made.verdict == "cleared":  # all links are sound, so the suspect is
                    made.what, made.ranks, made.hosts = record.what, record.ranks, record.hosts
                yield made
        except GhError as error:
            self._say(str(error))
            yield Finding(
                what=record.what, ranks=record.ranks, hosts=record.hosts, cause=record.cause,
                verdict="could not tell", by="gh-validate-ring", t_ns=record.t_ns, text=str(error),
            )  # fmt: skip

    def finish(self) -> Iterator[Record]:
        """What a test that still runs makes."""
        yield from self._aside.wait()


def asks(suspect: Suspect) -> bool:
    """Whether a test of links can confirm or clear it.

    Between hosts also where it is not certain: with a slow rank beside it, nothing else tells whether a link is slow.
    """
    if suspect.verdict == "attributed":
        return suspect.what in LINKS or suspect.cause == "communication"
    between = suspect.what == "host" or (suspect.what == "link" and len(suspect.hosts) > 1)
    return suspect.verdict == "inconclusive" and suspect.cause == "communication" and between
