# SPDX-License-Identifier: Apache-2.0
"""Verification: is the change that the posterior believes in large, certain and lasting enough to report?

The posterior alone alarms in most noisy series (ALGORITHMS.md section 1.4), so nothing is reported without
these tests on the raw values: the difference of medians, its interval widened for autocorrelation, a rank
test, and that the last values still lie on the new side.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from ghtools.job.native import lib

Floats = NDArray[np.float32]

N_CONFIRM = 6  # values after the change; with 100 before, fewer cannot reach the rank test's threshold
N_FAST = 5  # enough for a jump that hardly any value before comes near
N_GIVE_UP = 30  # a candidate that is not confirmed by then is dropped
FAST_LOG, FAST_NS = log(1.5), 2e9
# Evidence of separation, in nats: each value after lies beyond all but a share q of those before, so that
# n of them by chance have a probability near q^n. It stands in for the rank test where some values before
# are as large (restart spikes, checkpoints), which costs the rank test more than it should.
NOISE_FACTOR, NOISE_FREE = 3.0, 0.02
# A host that noisy has bursts of some seconds, which are no episodes: a change must last as long, or 10 iterations.
NOISY, NOISY_NS, N_NOISY = 0.05, 3e9, 10
APART, APART_LOG = 18.0, log(1.25)
BY_CHANCE = 14.0  # nats: a run this unlikely is met once in a million places
SE_MEDIAN = 1.2533  # standard error of a median of n normal values: this, times sigma / sqrt(n)


class Compared(c.Structure):
    """struct gh_compared of csrc/native/compare.c; natural logs of nanoseconds."""

    _fields_ = tuple(
        (name, c.c_double)
        for name in (
            "median_before", "median_after", "scale_before", "scale_after", "lag1", "rank_z",
            "lowest_after", "highest_after", "lowest_before", "highest_before",
        )
    )  # fmt: skip
    median_before: float
    median_after: float
    scale_before: float
    scale_after: float
    lag1: float
    rank_z: float
    lowest_after: float
    highest_after: float
    lowest_before: float
    highest_before: float


lib.gh_compare.argtypes = (c.c_void_p, c.c_int64, c.c_void_p, c.c_int64, c.c_void_p)


def compare(before: Floats, after: Floats) -> Compared:
    """Medians, scales, autocorrelation and rank test of two samples of 1 to 256 finite log durations."""
    out = Compared()
    before, after = np.ascontiguousarray(before, np.float32), np.ascontiguousarray(after, np.float32)
    if lib.gh_compare(before.ctypes.data, len(before), after.ctypes.data, len(after), c.byref(out)):
        raise ValueError("a sample must hold 1 to 256 finite values")
    return out


@dataclass(frozen=True)
class Judgement:
    """What verification found. `d` is log(after / before), `se` its standard error."""

    outcome: str  # confirm, reject or wait
    d: float
    se: float
    z: float
    n_before: int
    n_after: int
    compared: Compared
    min_log: float  # the least size that would do here
    failed: tuple[str, ...] = ()
    by: str = ""  # what decided in place of the tests

    @property
    def ratio(self) -> float:
        return exp(self.d)

    def text(self) -> str:
        """The numbers and the tests, for people."""
        if self.by:
            tests = self.by
        elif not self.failed:
            tests = "all tests passed"
        else:
            tests = ("failed: " if self.outcome == "reject" else "not passed yet: ") + ", ".join(self.failed)
        return (
            f"{exp(self.compared.median_before) / 1e6:.4g} -> {exp(self.compared.median_after) / 1e6:.4g} ms "
            f"({100 * (self.ratio - 1):+.1f} %, se {100 * self.se:.1f}), rank z {self.z:.1f}, "
            f"{self.n_before} before, {self.n_after} after; {tests}"
        )


def separation(before: Floats, after: Floats, side: float) -> float:
    """Evidence in nats that `after` lies beyond `before` (side +1 above, -1 below); one value may stray."""
    na = len(after)
    stray = 1 if na >= 8 else 0
    edge = float(np.partition(side * after, stray)[stray])
    share = (1 + int(np.count_nonzero(side * before >= edge))) / (len(before) + 1)
    return -(na - stray) * log(share)


def one_sided(before: Floats, after: Floats, middle: float, side: float) -> float:
    """Evidence in nats that values lie beyond `middle` more often after than before.

    A series of two modes (cache hits and misses, long and short sequences) has runs in its slower mode by chance: the
    rank test counts values, this counts how likely such a run is. n times the divergence of the two shares.
    """
    p = (int(np.count_nonzero(side * (after - middle) > 0)) + 0.5) / (len(after) + 1)
    q = (int(np.count_nonzero(side * (before - middle) > 0)) + 0.5) / (len(before) + 1)
    return len(after) * (p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))) if p > q else 0.0


def judge(
    before: Floats,
    after: Floats,
    min_log: float,
    needed: Callable[[float], int] = lambda size: N_CONFIRM,
    steady: bool = False,
    seen: Floats | None = None,
) -> Judgement:
    """Test a candidate change; `min_log` is the least |log ratio| worth reporting.

    `needed` says how many values a change of some size needs: more where bursts have passed. Few values before
    (a job's first iterations) ask for a larger change and more values after. Where the noise is large the level
    itself wanders (a busy host), and a change must be larger too, unless `steady` says that a return is tested.
    A run by chance is told from `seen`, all values that are known of the level, where they are more than `before`.
    """
    nb, na = len(before), len(after)
    found = compare(before, after)
    d = found.median_after - found.median_before
    n_confirm = needed(d)
    # A handful of values says little about its own spread: at least that of before is assumed.
    scale_after = max(found.scale_after, found.scale_before) if na < 12 else found.scale_after
    inflate = (1 + found.lag1) / (1 - found.lag1) if nb >= 20 else 1.5
    variance = found.scale_before**2 / nb + scale_after**2 / na
    se = SE_MEDIAN * sqrt(variance * inflate)
    side = 1.0 if d > 0 else -1.0
    z = side * found.rank_z / inflate**0.25
    size = abs(d)
    if not steady:
        min_log = max(min_log, NOISE_FACTOR * (found.scale_before - NOISE_FREE))
        if found.scale_before > NOISY:
            n_confirm = max(n_confirm, min(N_NOISY, ceil(NOISY_NS / exp(min(found.median_after, 40.0)))))
    if nb < 20:
        min_log, n_confirm = 1.5 * min_log, n_confirm + 2
    z_min = 4.0 if nb >= 60 else 3.6 if nb >= 30 else 3.3 if nb >= 20 else 3.0
    width = 3.0 if na < N_GIVE_UP else 1.0
    middle = 0.5 * (found.median_before + found.median_after)
    recent = sorted(after[-3:].tolist())[(min(na, 3) - 1) // 2]
    stays = side * (recent - middle) > 0
    apart = separation(before, after, side)
    quick = size >= FAST_LOG and apart >= 18 and n_confirm == N_CONFIRM and nb >= 30
    if quick and float(np.exp(after.astype(np.float64)).sum()) >= FAST_NS:
        n_confirm = N_FAST
    failed = []
    if na < n_confirm:
        failed.append(f"{na} of {n_confirm} values")
    if size < min_log - (
        0.3 * min(se, 0.02) if na >= 20 else 0
    ):  # steps at the threshold are measured under it as often as over
        failed.append(f"under {100 * (exp(min_log) - 1):.0f} %")
    if size - width * se < 0.63 * min_log:
        failed.append("interval")
    if z < z_min and not (apart >= APART and size >= APART_LOG and nb >= 20):
        failed.append("rank test")
    if (side > 0 or nb >= 20) and one_sided(before if seen is None else seen, after, middle, side) < BY_CHANCE:
        failed.append("a run by chance")
    if not stays:
        failed.append("went back")
    outcome = "wait" if failed else "confirm"
    if failed and (na >= N_GIVE_UP or (na >= N_CONFIRM and size + 2 * se < min_log)):
        outcome = "reject"
    return Judgement(outcome, d, se, z, nb, na, found, min_log, tuple(failed))
