# SPDX-License-Identifier: Apache-2.0
"""Iterations of every rank from its communication calls, online (DESIGN section 6, ALGORITHMS.md section 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.detect.period_acf import choose_acf
from ghtools.detect.period_marker import parse
from ghtools.detect.period_track import Tracker
from ghtools.stream.errors import GhError
from ghtools.stream.records import Calls, Comm, Iters, Job, Period

GUIDE_ITERS, RECENT_ITERS = 4096, 16
SAME_UNIT = 0.25  # medians of a few noisy iterations; a rank that took a part for the whole is off by a factor of two
AGREE = 0.05  # ranks whose iteration times differ by no more than this agree


def iterations(calls: Calls, method: str = "anchors", marker: str = "") -> tuple[Iters | None, list[Period]]:
    """Iterations of one rank's whole stream of calls, as one record (None: none were found), and what was said."""
    finder = PeriodFinder(method, marker)
    made = [*finder.feed(calls), *finder.flush()]
    rows = [m for m in made if isinstance(m, Iters)]
    said = [m for m in made if isinstance(m, Period) and m.rank >= 0]
    if not rows:
        return None, said
    names = ("index", "t_ns", "dur_ns", "phase", "calls", "seq")
    joined: dict[str, Any] = {name: np.concatenate([getattr(row, name) for row in rows]) for name in names}
    return Iters(rank=calls.rank, incarnation=calls.incarnation, **joined), said


class PeriodFinder:
    """Finds what an iteration is on each rank and delivers the iterations.

    An iteration is delivered when the call that begins the next one arrives; its duration is the time
    between the two. Memory is bounded for ever: at most period_track.BUFFER_CALLS calls a rank.
    """

    def __init__(self, method: str = "anchors", marker: str = "") -> None:
        """`method` anchors or acf; a `marker` (period_marker.parse) overrides it. GhError on unknown ones."""
        if method not in ("anchors", "acf", "marker"):
            raise GhError(f"--method {method} is not known", try_="anchors or acf")
        if method == "marker" and not marker:
            raise GhError("--method marker needs a marker", try_="--marker op=all_reduce,bytes=4")
        self._chooser = choose_acf if method == "acf" else None
        self._marker = parse(marker) if marker else None
        self._trackers: dict[int, Tracker] = {}
        self._names: dict[int, str] = {}
        self._expected: set[int] = set()
        self._agreed = False
        self._said: dict[int, Period] = {}
        self._times: dict[int, NDArray[np.int64]] = {}  # durations of each rank's latest iterations
        self._guide = -1  # the rank whose iterations tell those that cannot tell their own
        self._began: NDArray[np.int64] = np.empty(0, np.int64)  # when these began

    def comm(self, rec: Comm) -> list[Iters | Period]:
        """Learn the name of a communicator."""
        if rec.name:
            self._names[rec.comm] = rec.name
        return []

    def job(self, rec: Job) -> list[Iters | Period]:
        """Learn which ranks there are."""
        running = [r.get("rank") for r in rec.ranks if r.get("state", "running") == "running"]
        self._expected = {rank for rank in running if isinstance(rank, int)}
        return []

    def feed(self, calls: Calls) -> Iterator[Iters | Period]:
        """Records that follow from a batch of one rank's calls."""
        tracker = self._trackers.get(calls.rank)
        if tracker is None:
            tracker = self._trackers[calls.rank] = Tracker(calls.rank, self._names, self._chooser, self._marker)
            if self._chooser is None and self._marker is None:
                tracker.bounds = self._bounds
        yield from self._pass(tracker.feed(calls))

    def flush(self) -> Iterator[Iters | Period]:
        """Records still owed when no more calls will come."""
        for rank in sorted(self._trackers):
            yield from self._pass(self._trackers[rank].flush())

    def _pass(self, made: list[Iters | Period]) -> Iterator[Iters | Period]:
        for rec in made:
            yield rec
            if isinstance(rec, Iters):
                if rec.rank == self._guide:
                    self._began = np.concatenate([self._began, rec.t_ns])[-GUIDE_ITERS:]
                steady = rec.dur_ns[rec.phase <= 1]
                if len(steady):
                    last = self._times.get(rec.rank, steady[:0])
                    self._times[rec.rank] = np.concatenate([last, steady])[-RECENT_ITERS:]
                if not self._agreed:
                    yield from self._agreement(int(rec.t_ns[-1]))
            else:
                self._said[rec.rank] = rec
                self._times.pop(rec.rank, None)
                self._lead(rec)
                yield from self._agreement(rec.t_ns)

    def _lead(self, rec: Period) -> None:
        """Let the rank that is surest of its iteration guide those that are not."""
        if rec.state == "found" and rec.method == "anchors" and self._guide < 0:
            self._guide = rec.rank
        elif rec.rank == self._guide and rec.state != "found":
            self._guide, self._began = -1, self._began[:0]

    def _bounds(self) -> NDArray[np.int64]:
        return self._began

    def _agreement(self, t_ns: int) -> Iterator[Period]:
        """Say once that all ranks have the same iteration time, or no longer a pattern."""
        ranks = self._expected | set(self._trackers)
        said = {r: self._said[r] for r in ranks if r in self._said and self._said[r].state == "found"}
        if len(said) < len(ranks):
            if self._agreed and any(p.state == "rearm" for p in self._said.values()):
                yield Period(rank=-1, t_ns=t_ns, state="rearm")
            self._agreed = False
            return
        if self._agreed or (self._times and len(self._times) < len(ranks)):
            return
        dur = {r: float(np.median(self._times[r])) if r in self._times else float(p.dur_ns) for r, p in said.items()}
        mid = float(np.median(list(dur.values())))
        if any(abs(d - mid) > SAME_UNIT * mid for d in dur.values()):
            self._reconcile(dur)
            return
        self._agreed = True
        counts, often = np.unique([p.calls for p in said.values()], return_counts=True)
        some = [p for p in said.values() if p.calls == counts[np.argmax(often)]][-1]
        yield Period(
            rank=-1, t_ns=t_ns, state="found", calls=some.calls, dur_ns=int(mid), method=some.method,
            anchor=some.anchor, confidence=min(p.confidence for p in said.values()),
        )  # fmt: skip

    def _reconcile(self, dur: dict[int, float]) -> None:
        """A rank whose pieces come k to an iteration of most others, or that reduces nothing, is to follow them."""
        guide = dur.get(self._guide)
        if guide is None or len(self._times) < len(dur):
            return
        alike = sum(abs(d - guide) <= AGREE * guide for d in dur.values())
        for rank, own in dur.items():
            k = round(guide / max(own, 1.0))
            pattern = self._trackers[rank].pattern
            if k < 2 or abs(guide / own / k - 1) > AGREE or pattern is None or len(self._times[rank]) < RECENT_ITERS:
                continue
            if 2 * alike >= len(dur) or not pattern.reduces:
                self._trackers[rank].follow()
