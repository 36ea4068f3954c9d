# SPDX-License-Identifier: Apache-2.0
"""What a picture of a job is drawn from: iteration times by rank, decimated, changes, phases and planted truth.

Memory is bounded: iterations fall into buckets of equal width (a power of two), of which each rank keeps the
least and greatest time; when the buckets run out, pairs are merged and the width doubles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.records import PHASE_CODE, PHASES, Calls, Change, Comm, Head, Iters, Job, Record

MAX_BUCKETS = 4096
MAX_CELLS = 1 << 22  # over all ranks
MAX_CHANGES = 1024
LINE_PHASES = (PHASE_CODE["steady"], PHASE_CODE["rearm"])  # the others are drawn as marks

F32 = NDArray[np.float32]


@dataclass
class Episode:
    """One slow time: of the job (rank -1) or of a rank. `end` is None while it lasts."""

    rank: int
    begin: int
    before_ns: int
    after_ns: int
    said: int
    end: int | None = None
    lost_ns: int = 0
    drift: bool = False

    @property
    def ratio(self) -> float:
        """After / before."""
        return self.after_ns / self.before_ns if self.before_ns > 0 else 1.0


@dataclass
class Planted:
    """An episode that a synthetic stream says it has."""

    begin: int
    end: int | None
    rank: int
    ratio: float


@dataclass
class PlotData:
    """Collects a stream; `add` every record, in order."""

    job: str = ""
    backend: str = ""
    world_size: int = 0
    width: int = 1  # iterations a bucket
    first: int = 0  # iteration with which bucket 0 begins
    iterations: int = 0  # greatest index seen, less the first, plus one
    episodes: list[Episode] = field(default_factory=list)
    planted: list[Planted] = field(default_factory=list)
    searched: bool = False  # a change detector has been at it
    rank_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._begun = False
        self._foreign = False  # iters came with the stream: they are not ours to find
        self._finder: Any = None
        self._total_ns: dict[int, int] = {}
        self._clear(16, MAX_BUCKETS)

    def _clear(self, rows: int, buckets: int) -> None:
        self.low: F32 = np.full((rows, buckets), np.nan, np.float32)
        self.high: F32 = np.full((rows, buckets), np.nan, np.float32)
        self.marks: F32 = np.full((len(PHASES), buckets), np.nan, np.float32)
        self.t_ns = np.full(buckets, np.iinfo(np.int64).max, np.int64)

    def add(self, record: Record) -> None:
        """Take what the picture needs of a record; of calls only if no iterations come with them."""
        if isinstance(record, Iters):
            if not self._foreign:
                self._foreign, self._finder = True, None
                self._rows, self.rank_ids, self._begun, self.iterations, self.width = {}, [], False, 0, 1
                self._total_ns = {}
                self._clear(16, MAX_BUCKETS)
            self._iters(record)
        elif isinstance(record, Change):
            self._change(record)
        elif isinstance(record, Head):
            self.job = record.job or self.job
            self.searched |= "gh-bocd" in record.via
            self._truth(record.truth)
        elif isinstance(record, Job):
            self.job = record.job or self.job
            self.backend, self.world_size = record.backend, record.world_size or len(record.ranks)
            self._find(record)
        elif isinstance(record, Calls | Comm):
            self._find(record)

    def finish(self) -> None:
        """To be called when the stream has ended."""
        if self._finder is not None and not self._foreign:
            self._take(self._finder.flush())

    def _find(self, record: Calls | Comm | Job) -> None:
        """Iterations from calls, with the same code as gh-period."""
        if self._foreign:
            return
        if self._finder is None:
            from ghtools.detect.period import PeriodFinder

            self._finder = PeriodFinder()
        if isinstance(record, Calls):
            self._take(self._finder.feed(record))
        elif isinstance(record, Comm):
            self._finder.comm(record)
        else:
            self._finder.job(record)

    def _take(self, made: Iterable[Record]) -> None:
        for record in made:
            if isinstance(record, Iters):
                self._iters(record)

    def _iters(self, record: Iters) -> None:
        good = (record.dur_ns > 0) & (record.index >= 0) & (record.index < 1 << 62)
        index, dur_ns, phase, t_ns = (a[good] for a in (record.index, record.dur_ns, record.phase, record.t_ns))
        if not len(index):
            return
        if not self._begun:
            self._begun, self.first = True, int(index.min())
        row = self._row(record.rank)
        self._total_ns[record.rank] = self._total_ns.get(record.rank, 0) + int(dur_ns.sum()) * _every(record)
        index = np.maximum(index - self.first, 0)
        self.iterations = max(self.iterations, int(index.max()) + 1)
        while int(index.max()) // self.width >= self.low.shape[1]:
            self._halve()
        bucket = index // self.width
        value = dur_ns.astype(np.float32)
        trusted = phase != PHASE_CODE["gap"]
        line = np.isin(phase, LINE_PHASES)
        np.fmin.at(self.low[row], bucket[line], value[line])
        np.fmax.at(self.high[row], bucket[line], value[line])
        code = np.minimum(phase, len(PHASES) - 1)
        marked = trusted & ~np.isin(phase, (PHASE_CODE["steady"],))
        np.fmax.at(self.marks, (code[marked], bucket[marked]), value[marked])
        np.minimum.at(self.t_ns, bucket, t_ns)

    def _row(self, rank: int) -> int:
        row = self._rows.get(rank)
        if row is None:
            row = self._rows[rank] = len(self._rows)
            self.rank_ids.append(rank)
            if row >= len(self.low):
                grown = np.full((len(self.low), self.low.shape[1]), np.nan, np.float32)
                self.low = np.concatenate([self.low, grown])
                self.high = np.concatenate([self.high, grown])
            while self.low.size > MAX_CELLS and self.low.shape[1] > 256:
                self._shrink()
        return row

    def _merge(self) -> int:
        """Merge pairs of buckets into the first half; the number of buckets in use now."""
        half = int(self.low.shape[1]) // 2
        for array, join in ((self.low, np.fmin), (self.high, np.fmax), (self.marks, np.fmax)):
            array[:, :half] = join(array[:, 0::2], array[:, 1::2])
            array[:, half:] = np.nan
        self.t_ns[:half] = np.minimum(self.t_ns[0::2], self.t_ns[1::2])
        self.t_ns[half:] = np.iinfo(np.int64).max
        self.width *= 2
        return half

    def _halve(self) -> None:
        self._merge()

    def _shrink(self) -> None:
        half = self._merge()
        self.low, self.high = self.low[:, :half].copy(), self.high[:, :half].copy()
        self.marks, self.t_ns = self.marks[:, :half].copy(), self.t_ns[:half].copy()

    def _change(self, change: Change) -> None:
        self.searched = True
        if change.stage != "confirmed":
            return
        rank = -1 if change.level == "job" else change.rank
        still = [e for e in self.episodes if e.rank == rank and e.end is None]
        if change.type == "relief":
            for episode in still:
                episode.end, episode.lost_ns = change.onset_index, change.lost_ns
        elif change.verdict in ("fail-slow", "unknown"):
            if still:  # a further step of the same slow time
                still[0].after_ns = change.after_ns
            elif len(self.episodes) < MAX_CHANGES:
                self.episodes.append(
                    Episode(
                        rank, change.onset_index, change.before_ns, change.after_ns, change.said_index,
                        drift=change.type == "drift",
                    )
                )  # fmt: skip

    def _truth(self, truth: dict[str, Any]) -> None:
        """Planted changes of gh-synth; anything that does not look like them is left alone."""
        changes = truth.get("changes")
        for change in changes[:MAX_CHANGES] if isinstance(changes, list) else []:
            if not isinstance(change, dict) or not isinstance(change.get("at"), int):
                continue
            at, end, rank = change["at"], change.get("end", -1), change.get("rank", -1)
            ratio = change.get("ratio", 1.0)
            if change.get("type") == "blip":
                end = at + 1
            if isinstance(end, int) and isinstance(rank, int) and isinstance(ratio, int | float):
                self.planted.append(Planted(at, end if end >= 0 else None, rank, float(ratio)))

    @property
    def shown(self) -> list[Episode]:
        """The job's episodes, or the ranks' where nothing was said of the job."""
        job = [e for e in self.episodes if e.rank == -1]
        return job or self.episodes

    def loss_ns(self, episode: Episode) -> int:
        """What an episode cost, or has cost so far."""
        if episode.end is not None:
            return episode.lost_ns
        since = self.first + self.iterations - episode.begin
        return max(0, since * (episode.after_ns - episode.before_ns))

    def x(self) -> NDArray[np.float64]:
        """Iteration number in the middle of each bucket in use, shape (buckets,)."""
        used = -(-self.iterations // self.width)
        return np.asarray(self.first + np.arange(used) * float(self.width) + (self.width - 1) / 2, np.float64)

    def lines(self) -> tuple[list[int], F32, F32]:
        """Ranks in order, and their least and greatest times in ns, shape (ranks, buckets); NaN where none."""
        used = -(-self.iterations // self.width)
        order = np.argsort(self.rank_ids, kind="stable")
        return sorted(self.rank_ids), self.low[order, :used], self.high[order, :used]

    def total_ns(self) -> int:
        """Time that the iterations took, of the rank that has most of them."""
        return max(self._total_ns.values(), default=0)


def _every(record: Iters) -> int:
    """Iterations that each point stands for: a log that is sparse says so (gh-import)."""
    every = record.extra.get("every", 1)
    return every if isinstance(every, int) and 1 <= every <= 1 << 40 else 1


def collect(records: Iterable[Record]) -> PlotData:
    """All records of a stream, of several sections too."""
    data = PlotData()
    for record in records:
        data.add(record)
    data.finish()
    return data


def ceiling(data: PlotData, values_ns: NDArray[Any]) -> float:
    """Upper end of a time axis, ns: some extreme iterations may not flatten all others."""
    greatest, usual = float(values_ns.max()), float(np.quantile(values_ns, 0.98))
    return max([1.1 * min(greatest, 1.5 * usual), *(1.2 * episode.after_ns for episode in data.shown)])


def title(data: PlotData) -> tuple[str, str]:
    """What the picture shows, and what it says, as two lines of text."""
    from . import text

    _, low, high = data.lines()
    values = (low + high) / 2
    median = float(np.nanmedian(values)) if np.isfinite(values).any() else 0.0
    ranks = len(data.rank_ids)
    parts = [f"job {data.job}" if data.job else "job"]
    if data.rank_ids != [-1]:
        parts.append(text.plural(ranks, "rank"))
    parts += [text.plural(data.iterations, "iteration"), f"median {text.duration(median)}"]
    shown = data.shown
    if not shown:
        nothing = "no slow episode" if data.searched else "not searched for changes: gh-bocd --keep before gh-plot does"
        return ", ".join(parts), nothing
    lost = sum(data.loss_ns(e) for e in shown)
    share = f" ({100 * lost / data.total_ns():.0f} % of the time)" if data.total_ns() else ""
    if len(shown) == 1:
        e = shown[0]
        who = f"rank {e.rank} " if e.rank >= 0 else ""
        span = f"iterations {e.begin} to {e.end if e.end is not None else 'the end'}"
        step = f"{text.duration(e.before_ns)} to {text.duration(e.after_ns)} ({text.per_cent(e.ratio)})"
        return ", ".join(parts), f"{who}slow in {span}: {step}, {text.duration(lost)} lost{share}"
    return ", ".join(parts), f"{len(shown)} slow episodes, {text.duration(lost)} lost{share}"
