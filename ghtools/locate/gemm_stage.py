# SPDX-License-Identifier: Apache-2.0
"""The filter form of gh-validate-gemm: a suspected rank is tested when the stream names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ghtools.stream.errors import GhError
from ghtools.stream.records import Change, Finding, Record, Suspect

from .aside import Aside, Submit, beside
from .ripe import Ripe

CAUSES = ("compute", "host pause", "unknown")  # what a test of a device can confirm or clear

Test = Callable[[set[int]], list[Record]]


class ValidateStage:
    """Tests once an episode and rank, and at most every `every_s` seconds; a test that fails is a finding, too.

    An episode ends with the next confirmed change (of any rank): what is suspected after that is tested anew. Suspects
    of a slow-down that is not confirmed wait until it is, since a test holds the job. The stream goes on meanwhile;
    what the test made follows the record that comes when it has ended.
    """

    def __init__(
        self,
        test: Test,
        every_s: float,
        now_s: Callable[[], float],
        now_ns: Callable[[], int],
        say: Callable[[str], None],
        submit: Submit = beside,
    ) -> None:
        self._test, self._every_s, self._now_s, self._now_ns, self._say = test, every_s, now_s, now_ns, say
        self._tested: set[int] = set()
        self._last_s: float | None = None
        self._aside, self._ripe = Aside(submit), Ripe()

    def feed(self, record: Record) -> Iterator[Record]:
        """The records of a test that has ended; begins one if this record asks for it."""
        yield from self._aside.ready()
        if isinstance(record, Change) and record.stage == "confirmed":
            self._tested.clear()
        for suspect in self._ripe.feed(record):
            self._begin(suspect)
        yield from self._aside.ready()

    def _begin(self, suspect: Suspect) -> None:
        now_s = self._now_s()
        soon = self._last_s is not None and now_s - self._last_s < self._every_s
        if soon or self._aside.busy or not self._wanted(suspect):
            return
        self._last_s = now_s
        self._tested |= set(suspect.ranks)
        self._aside.start(lambda: self._made(suspect))

    def _made(self, suspect: Suspect) -> list[Record]:
        try:
            return self._test(set(suspect.ranks))
        except GhError as error:
            self._say(str(error))
            return [
                Finding(
                    ranks=sorted(set(suspect.ranks)),
                    hosts=suspect.hosts,
                    cause=suspect.cause,
                    by="gemm",
                    t_ns=self._now_ns(),
                    text=f"could not tell: {error}",
                )
            ]

    def _wanted(self, suspect: Suspect) -> bool:
        return (
            suspect.verdict == "attributed"
            and suspect.what == "rank"
            and suspect.cause in CAUSES
            and bool(set(suspect.ranks) - self._tested)
        )

    def finish(self) -> Iterator[Record]:
        """What a test that still runs makes."""
        yield from self._aside.wait()
