# SPDX-License-Identifier: Apache-2.0
"""The four detectors of the study: seconds in, changes out, all online."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import log

import numpy as np

from ghtools.detect.series import LOOK, WAKE, Model, Prior, Series, columns
from ghtools.detect.watch import Settings, Watch
from ghtools.stream.records import PHASE_CODE, Change, Iters
from tests.bench.detect_study_series import Made

MODEL = Model(Prior())
WARMUP, LONG, SHORT = 30, 100, 10
THRESHOLD = 0.10


def iters_of(made: Made) -> list[Iters]:
    """The records that carry a series: one, or one a process where there are restarts."""
    dur = np.maximum(np.rint(made.x * 1e9), 1).astype("<i8")
    begins, index = np.cumsum(dur) - dur, np.arange(len(dur), dtype="<i8")
    phase = np.zeros(len(dur), "u1")
    phase[list(made.restarts)] = PHASE_CODE["restart"]
    cuts = [0, *made.restarts, len(dur)]
    return [
        Iters(rank=0, incarnation=k, index=index[a:b], t_ns=begins[a:b], dur_ns=dur[a:b], phase=phase[a:b])
        for k, (a, b) in enumerate(pairwise(cuts))
    ]


def ours(made: Made) -> list[Change]:
    """gh-bocd as shipped, one rank."""
    watch = Watch(0, MODEL, Settings(schedule=made.schedule))
    return [change for rec in iters_of(made) for change in watch.feed(rec)]


class Episodes:
    """Turns levels that were found into changes, as all methods must to be scored alike."""

    def __init__(self) -> None:
        self.number, self.base = 0, 0.0

    def change(self, before: float, after: float, onset: int, said: int) -> Iterator[Change]:
        """A change of level; logs."""
        slow = after > before
        if slow and not self.base:
            self.number, self.base = self.number + 1, before
        back = not slow and self.base and after - self.base < 0.5 * log(1 + THRESHOLD)
        yield Change(
            type="onset" if slow else "relief",
            stage="confirmed",
            verdict="fail-slow" if slow else "recovered" if back else "unknown",
            episode=self.number if self.base else 0,
            ratio=float(np.exp(after - before)),
            onset_index=onset,
            said_index=said,
        )
        if back:
            self.base = 0.0


def window(made: Made) -> list[Change]:
    """Sliding window: the mean of the last 10 is over 110 % of the median of the 100 before an alarm."""
    x, out, episodes = made.x, [], Episodes()
    n = len(x)
    sums = np.concatenate(([0.0], np.cumsum(x)))
    mean = np.full(n, np.nan)
    mean[SHORT - 1 :] = (sums[SHORT:] - sums[:-SHORT]) / SHORT
    at, slow = WARMUP, False
    reference = float(np.median(x[:WARMUP]))
    while at < n:
        if not slow:
            begin = max(0, at - LONG)
            reference = float(np.median(x[begin : at - SHORT + 1]))
            until = min(at + SHORT, n)  # the median is taken anew every 10 iterations
        else:
            until = n
        off = mean[at:until] / reference - 1
        hits = np.flatnonzero(off < THRESHOLD if slow else off > THRESHOLD)
        if not len(hits):
            at = until
            continue
        at += int(hits[0])
        before, after = log(reference), log(mean[at])
        if slow:
            out += list(episodes.change(before + log(1 + THRESHOLD), min(after, before), at - SHORT + 1, at))
        else:
            out += list(episodes.change(before, after, at - SHORT + 1, at))
        slow = not slow
        at += 1
    return out


def _bocd(made: Made, verify: bool) -> list[Change]:
    """The posterior alone, P(5 <= r <= 32) > 0.9; with `verify`, the means before and after differ by 10 %."""
    series, out, episodes = Series(MODEL), [], Episodes()
    s = series.state
    s.look_min, s.near_min, s.look_by, s.near_by, s.guard_by = 0.9, 2.0, 0.0, 1e9, 1e9
    s.wake_at = WARMUP
    segment = 0
    for rec in iters_of(made):
        addresses, alive = columns(rec)
        n, done = len(alive[0]), 0
        while done < n:
            done = series.feed(*addresses, n, done)
            why, at = series.news.why, series.news.at
            if why & WAKE:
                values = series.logs(0, s.count)
                scale = max(1.4826 * float(np.median(np.abs(values - np.median(values)))), 0.005)
                series.arm(float(np.median(values)), scale, 0)
                s.level = float(np.median(values))
            if not why & LOOK:
                continue
            begin = at - series.news.mode
            s.look_from = at + 32  # the mass stays at look-back lengths until the run is older than that
            before, after = series.logs(max(segment, begin - LONG), begin), series.logs(begin, s.count)
            if len(before) < 5 or not len(after):
                continue
            old, new = float(np.log(np.exp(before).mean())), float(np.log(np.exp(after).mean()))
            segment = begin
            s.level = new
            if verify and abs(new - old) < log(1 + THRESHOLD):
                continue
            out += list(episodes.change(old, new, series.index_at(begin), series.news.index))
    return out


def bocd_alone(made: Made) -> list[Change]:
    return _bocd(made, verify=False)


def bocd_verified(made: Made) -> list[Change]:
    return _bocd(made, verify=True)


METHODS: dict[str, Callable[[Made], list[Change]]] = {
    "sliding window": window, "BOCD alone": bocd_alone, "BOCD + mean of 10 %": bocd_verified, "gh-bocd": ours,
}  # fmt: skip
