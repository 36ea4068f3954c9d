# SPDX-License-Identifier: Apache-2.0
"""gh-bocd's core: iterations of all ranks in, changes of ranks and of the job out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp
from typing import Literal

from ghtools.stream.records import Change, Iters, Job

from .consensus import Consensus
from .memory import Settings
from .series import Model, Prior
from .watch import Watch

Level = Literal["rank", "job", "both"]


class Detector:
    """Online detector of all ranks; memory and work do not grow with the length of a series.

    `explain` gets a line for each candidate that was confirmed or dropped.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        prior: Prior | None = None,
        level: Level = "both",
        explain: Callable[[str], None] | None = None,
    ) -> None:
        self.settings, self.level, self.explain = settings or Settings(), level, explain
        self.model = Model(prior or Prior())
        self.watches: dict[int, Watch] = {}
        self.consensus = Consensus()

    def job(self, rec: Job) -> Iterator[Change]:
        """Ranks that appeared, restarted or ended."""
        self.consensus.job(rec)
        yield from self._job(self.consensus.recheck())

    def feed(self, rec: Iters) -> Iterator[Change]:
        """One batch of iterations of one rank; its changes, and the job's that follow from them."""
        watch = self.watches.get(rec.rank)
        if watch is None:
            watch = self.watches[rec.rank] = Watch(rec.rank, self.model, self.settings, self.explain)
        state = watch.series.state
        changes = list(watch.feed(rec))
        if state.count:
            self.consensus.saw(rec.rank, state.last_t_ns, int(exp(min(state.level, 43.0))))
        for change in changes:
            if self.level != "job" and rec.rank >= 0:
                yield change
            yield from self._job(self.consensus.feed(change))

    def _job(self, changes: Iterator[Change]) -> Iterator[Change]:
        if self.level != "rank" or -1 in self.watches:
            yield from changes
        else:
            for _ in changes:
                pass

    def counts(self) -> dict[str, int]:
        """How many values were ignored, by reason, over all ranks."""
        names = ("n_bad", "n_back", "n_repeat", "n_gap", "n_skipped")
        return {name[2:]: sum(int(getattr(w.series.state, name)) for w in self.watches.values()) for name in names}
