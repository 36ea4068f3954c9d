# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a running job can be stopped: a coming iteration, and the call with which it begins on each rank.

All ranks stop before the same iteration, so each has issued all that the iterations before need (DESIGN section 5). The
shim counts calls and knows nothing of iterations; here the number of that call is foretold from the steady iterations
before. A foretold number that is wrong costs a pause that does not come about, not more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.detect.period import PeriodFinder
from ghtools.job.ring import Tallies
from ghtools.stream.records import FLAG_EXEC, PHASE_CODE, Calls, Comm, Iters, Job, Record, columns

from .align import offset
from .collect import Bounds
from .cut import Known, Made, by_kind, consistent

STEADY_ITERS = 3  # with the same number of calls, the last ones of every rank
KEPT = 64  # iterations of a rank that are remembered
AHEAD_ITERS = 2  # over the newest iteration that any rank has begun
ORDINARY = [PHASE_CODE["steady"], PHASE_CODE["warmup"]]
MOST_CALLS = 1 << 18  # of a rank that are remembered
MADE = ("seq", "op", "comm", "peer")
NOTICE_S = 0.15  # for the request to be written and seen


@dataclass(frozen=True)
class Boundary:
    """`stops`: rank -> number of the call before which it is to stop. `in_s`: when that will be, roughly.

    `matched`: the ranks' calls were matched with each other, so that no rank waits there for one that stands.
    """

    stops: dict[int, int]
    in_s: float
    iteration_s: float
    matched: bool = False


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its last iterations, and how many calls each of them had."""

    bounds: Bounds
    calls: int


@dataclass
class BoundaryFinder:
    """Fed with a job's records; `places` says where its ranks stand, once it can be said."""

    finder: PeriodFinder = field(default_factory=PeriodFinder)
    iters: dict[int, list[Iters]] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    world_size: int = 0
    why_not: str = "no call has been seen"
    _calls: dict[int, list[Calls]] = field(default_factory=dict)  # by rank, the last ones, none missing between
    _numbers: dict[int, dict[int, int]] = field(default_factory=dict)  # by rank: its number in each communicator

    def feed(self, records: Iterable[Record]) -> None:
        """Take what has come."""
        for record in records:
            if isinstance(record, Job):
                self.world_size = record.world_size
                self.running = {r["rank"] for r in record.ranks if r.get("state") == "running"}
                self._take(self.finder.job(record))
            elif isinstance(record, Comm):
                self._numbers.setdefault(record.rank, {})[record.comm] = record.comm_rank
                self._take(self.finder.comm(record))
            elif isinstance(record, Calls):
                entries = record.flags & FLAG_EXEC == 0
                calls = record if entries.all() else _some(record, entries)
                self._keep(calls)
                self._take(self.finder.feed(calls))

    def _take(self, made: Iterable[Record]) -> None:
        for record in made:
            if isinstance(record, Iters) and len(record.index):
                kept = self.iters.setdefault(record.rank, [])
                if kept and kept[-1].incarnation != record.incarnation:
                    kept.clear()
                kept.append(record)
                del kept[:-KEPT]

    def _keep(self, calls: Calls) -> None:
        """Remember the last calls of a rank's process; those before a gap are forgotten."""
        kept = self._calls.setdefault(calls.rank, [])
        if kept and (kept[-1].incarnation != calls.incarnation or calls.lost):
            kept.clear()
        if not len(calls.seq):
            return
        kept.append(calls)
        while len(kept) > 1 and int(calls.seq[-1]) - int(kept[1].seq[0]) > MOST_CALLS:
            del kept[0]

    def known(self, tallies: Mapping[int, Tallies]) -> dict[int, Known] | None:
        """The calls of all running ranks, `tallies` of theirs included; None unless they are known of all.

        Where the calls that the tallies have counted have not all come yet, that is so in a moment.
        """
        found: dict[int, Known] = {}
        for rank in sorted(self.running):
            kept = self._calls.get(rank, [])
            if not kept or rank not in tallies:
                return None
            seq, op, comm, peer = (np.concatenate([getattr(c, name) for c in kept]) for name in MADE)
            order = np.argsort(seq, kind="stable")
            seq = seq[order]
            first = int(seq[0])
            if not np.array_equal(seq, np.arange(first, first + len(seq))) or int(seq[-1]) + 1 < tallies[rank].calls:
                return None
            numbers = self._numbers.get(rank, {})
            made = Made(op[order], comm[order].astype(np.uint64), peer[order], numbers, first, tallies[rank])
            found[rank] = by_kind(made)
        return found

    def places(self) -> dict[int, Place] | None:
        """Where each running rank stands; None if that cannot be said of all (`why_not` says why)."""
        if not self.running:
            self.why_not = "no rank runs"
            return None
        found: dict[int, Place] = {}
        for rank in sorted(self.running):
            bounds = _bounds(self.iters.get(rank, []))
            if len(bounds.index) <= STEADY_ITERS:
                self.why_not = f"rank {rank} shows no iteration yet"
                return None
            steps, numbers = np.diff(bounds.seq[-STEADY_ITERS - 1 :]), np.diff(bounds.index[-STEADY_ITERS - 1 :])
            if bounds.seq.min() < 0 or np.any(numbers != 1) or np.any(steps != steps[0]) or steps[0] <= 0:
                self.why_not = f"the last iterations of rank {rank} do not have the same number of calls"
                return None
            found[rank] = Place(bounds, int(steps[0]))
        self.why_not = ""
        return found


def meet(
    places: Mapping[int, Place], now_ns: int, notice_s: float = NOTICE_S, known: Mapping[int, Known] | None = None
) -> Boundary | None:
    """An iteration that no rank can have begun `notice_s` from now; None if none can be told.

    `now_ns` and the times of all places are on one clock, good to half an iteration. With their calls in `known` the
    begins are moved to where the ranks can really stop together (cut.py); without, they are believed.
    """
    bounds = {rank: place.bounds for rank, place in places.items()}
    first = min(bounds)
    shift = {rank: offset(b, bounds[first], one_clock=True) for rank, b in bounds.items()}
    iteration_s = float(np.median([_length_ns(b) for b in bounds.values()])) / 1e9
    if iteration_s <= 0:
        return None
    # An iteration is known when the next one has begun; more may have begun since.
    begun = {r: int(b.index[-1]) + shift[r] + 1 + _since(b, now_ns, iteration_s) for r, b in bounds.items()}
    target = max(begun.values()) + AHEAD_ITERS + math.ceil(notice_s / iteration_s)
    stops = {
        rank: int(b.seq[-1]) + places[rank].calls * (target - int(b.index[-1]) - shift[rank])
        for rank, b in bounds.items()
    }
    if known is not None:
        common = min(int(b.index[-1]) + shift[r] for r, b in bounds.items())
        begins = {
            r: int(b.seq[-1]) - places[r].calls * (int(b.index[-1]) + shift[r] - common) for r, b in bounds.items()
        }
        cut = consistent(known, begins, {r: place.calls for r, place in places.items()})
        if cut is None:
            return None
        stops = {rank: stop + cut[rank] - begins[rank] for rank, stop in stops.items()}
    return Boundary(stops, (target - min(begun.values())) * iteration_s, iteration_s, known is not None)


def _length_ns(bounds: Bounds) -> float:
    """Median of the last ordinary iterations; one that was held for a test is none."""
    ordinary = np.isin(bounds.phase, ORDINARY)
    return float(np.median(bounds.dur_ns[ordinary][-16:] if ordinary.any() else bounds.dur_ns[-16:]))


def _since(bounds: Bounds, now_ns: int, iteration_s: float) -> int:
    """Whole iterations that may have passed since the newest known one ended."""
    passed_s = (now_ns - int(bounds.t_ns[-1]) - int(bounds.dur_ns[-1])) / 1e9
    return max(0, min(1 << 20, int(passed_s / iteration_s)))


def _bounds(records: list[Iters]) -> Bounds:
    def column(name: str) -> Any:
        parts = [getattr(record, name) for record in records]
        return np.concatenate(parts)[-KEPT:] if parts else np.empty(0, np.int64)

    return Bounds(*(column(name) for name in ("index", "t_ns", "dur_ns", "phase", "seq")))


def _some(calls: Calls, where: Any) -> Calls:
    """Rows of a batch that pass `where`."""
    return Calls(
        rank=calls.rank, incarnation=calls.incarnation, lost=calls.lost,
        **{name: getattr(calls, name)[where] for name in columns(Calls)},
    )  # fmt: skip
