# SPDX-License-Identifier: Apache-2.0
"""How many iterations a job has done since some moment, as its calls tell (gh-trace --profile)."""

from __future__ import annotations

from ghtools.stream.records import Calls, Comm, Iters, Job, Record

from .period import PeriodFinder


class IterationCount:
    """Feed it a live stream's records; `done` is the count of the rank that has done fewest.

    Iterations are found as gh-period finds them, so the first ones are counted some iterations late; those that
    began before `since_ns` do not count. Ranks that have ended are left out.
    """

    def __init__(self, since_ns: int) -> None:
        self._since_ns = since_ns
        self._finder = PeriodFinder()
        self._count: dict[int, int] = {}
        self._running: set[int] = set()

    def feed(self, record: Record) -> None:
        """Take one record."""
        if isinstance(record, Calls):
            self._count.setdefault(record.rank, 0)
            for made in self._finder.feed(record):
                if isinstance(made, Iters):
                    self._count[made.rank] = self._count.get(made.rank, 0) + int((made.t_ns >= self._since_ns).sum())
        elif isinstance(record, Comm):
            self._finder.comm(record)
        elif isinstance(record, Job):
            self._finder.job(record)
            running = (item.get("rank") for item in record.ranks if item.get("state", "running") == "running")
            self._running = {rank for rank in running if type(rank) is int}

    @property
    def done(self) -> int:
        """Iterations since then; 0 also while it is not known what an iteration is."""
        live = [count for rank, count in self._count.items() if not self._running or rank in self._running]
        return min(live, default=0)
