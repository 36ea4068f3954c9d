# SPDX-License-Identifier: Apache-2.0
"""gh-bocd as a stage of a stream: iterations, or calls whose period is found on the way, to changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ghtools.stream.records import Calls, Change, Comm, Head, Iters, Job, Record

from .detector import Detector

if TYPE_CHECKING:
    from .period import PeriodFinder


class BocdStage:
    """Feeds a detector; `saved` is called with True when the state has news, else with False."""

    def __init__(
        self, head: Head, detector: Detector, saved: Callable[[bool], None] | None = None, keep: bool = False
    ) -> None:
        self.detector, self._saved, self._keep = detector, saved, keep
        self._finds = "gh-period" not in head.via
        self._finder: PeriodFinder | None = None
        # What the period finder must know first, until there are calls to find a period in.
        self._job: Job | None = None
        self._comms: dict[tuple[int, int], Comm] = {}

    def feed(self, record: Record) -> Iterator[Record]:
        """Changes that follow from one record, each as soon as it is known."""
        if isinstance(record, Iters):
            # Iterations that the source itself tells (a trace's step marks) are better than what calls let us guess.
            self._finds, self._finder = False, None
            yield from self._iters(record)
        elif isinstance(record, Calls) and self._finds:
            for made in self._find().feed(record):
                yield from self._made(made)
        elif isinstance(record, Comm) and self._finds:
            if self._finder is None:
                self._comms[record.comm, record.rank] = record
                return
            for made in self._finder.comm(record):
                yield from self._made(made)
        elif isinstance(record, Job):
            self._job = record
            for made in self._finder.job(record) if self._finder is not None else ():
                yield from self._made(made)
            yield from self.detector.job(record)

    def finish(self) -> Iterator[Record]:
        """What the period finder still holds, then the state."""
        if self._finder is not None:
            for made in self._finder.flush():
                yield from self._made(made)
        if self._saved is not None:
            self._saved(True)

    def _find(self) -> PeriodFinder:
        if self._finder is None:
            from .period import PeriodFinder

            self._finder = PeriodFinder()
            if self._job is not None:
                self._finder.job(self._job)
            for comm in self._comms.values():
                self._finder.comm(comm)
            self._comms = {}
        return self._finder

    def _made(self, made: Record) -> Iterator[Record]:
        """What the period finder says: iterations are consumed here, the rest is for people."""
        if self._keep or not isinstance(made, Iters):
            yield made
        if isinstance(made, Iters):
            yield from self._iters(made)

    def _iters(self, record: Iters) -> Iterator[Change]:
        some = False
        for change in self.detector.feed(record):
            some = True
            yield change
        if self._saved is not None:
            self._saved(some)
