# SPDX-License-Identifier: Apache-2.0
"""All that a judgement looks at, and how a suspect is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.records import Suspect

from .groups import Group, Groups, Key
from .history import Window
from .lateness import Late, bear_out, own_matrix
from .layout import Layout, stages

MIN_ITERS = 3


@dataclass(frozen=True)
class Onset:
    """A slow-down that somebody else has noticed."""

    before_ns: float = 0.0
    after_ns: float = 0.0
    episode: int = 0
    index: int = -1

    @property
    def loss(self) -> float:
        """Share of the present iteration that was not there before."""
        return max(0.0, 1 - self.before_ns / self.after_ns) if self.after_ns > 0 else 0.0


@dataclass
class Case:
    """All that a judgement looks at."""

    window: Window
    before: Window | None
    groups: Groups
    keys: list[Key]
    timed: bool = True
    onset: Onset | None = None
    layout: Layout | None = None
    missing: list[int] = field(default_factory=list)  # ranks that exist and gave no data
    t_ns: int = 0

    def __post_init__(self) -> None:
        self.window = self.window.complete()
        self.own = own_matrix(self.window)
        self.past = own_matrix(self.before) if self.before is not None and self.before.iters >= MIN_ITERS else None
        if self.past is None:
            self.before = None
        numbers = np.unique(np.concatenate([self.window.members.group, self.window.transfers.group]))
        self.group_of: dict[int, Group] = {int(number): self.groups.group(int(number)) for number in numbers}
        self.classes = stages(self.own.ranks.tolist(), self.group_of.values(), self.layout)
        self.iters = len(self.own.it)
        self.iter_ns = self.own.iter_ns

    @property
    def span_s(self) -> float:
        """Seconds from the begin of the first iteration to the end of the last, on any one rank."""
        t = self.window.ranks
        if not len(t.it):
            return 0.0
        mine = t.rank == t.rank[0]
        return float((t.t_ns[mine] + np.nan_to_num(t.dur[mine])).max() - t.t_ns[mine].min()) / 1e9

    def bear_out(self, late: Late) -> None:
        """What the groups of a rank say of it."""
        bear_out(late, self.window.members, self.iters, self.iter_ns, self.group_of, self.own, self.peers(late.rank))

    def peers(self, rank: int) -> list[int]:
        """Ranks that do the same work, itself among them."""
        return next((ranks for ranks in self.classes if rank in ranks), [rank])

    def suspect(self, what: str, cause: str, verdict: str, text: str, **values: Any) -> Suspect:
        """A suspect with what is common to all."""
        ranks = [int(rank) for rank in values.pop("ranks", [])]
        evidence = {"iter_ns": int(np.nan_to_num(self.iter_ns)), **values.pop("evidence", {})}
        if self.onset is not None:
            evidence |= {"episode": self.onset.episode, "onset_index": self.onset.index}
        if self.missing:
            evidence["missing_ranks"] = self.missing[:64]
        if not self.timed:
            evidence["confidence"] = "low: from times of arrival, no durations"
        hosts = values.pop("hosts", None)
        return Suspect(
            what=what, ranks=ranks, cause=cause, verdict=verdict, text=text, iters=self.iters, t_ns=self.t_ns,
            hosts=self.groups.hosts_of(ranks) if hosts is None else hosts, evidence=plain(evidence), **values,
        )  # fmt: skip


def plain(value: Any) -> Any:
    """Numbers for people and the wire: numpy scalars become Python's, floats are cut to six digits."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.bool_ | bool):
        return bool(value)
    if isinstance(value, np.integer | int):
        return int(value)
    if isinstance(value, np.floating | float):
        return float(f"{float(value):.6g}") if np.isfinite(value) else None
    return value
