# SPDX-License-Identifier: Apache-2.0
"""The paper's rule, kept for comparison: the smallest lag with an autocorrelation of 0.95 or more.

The autocorrelation of symbols is the share of calls that equal the one `lag` calls later, divided by the
number of such pairs (the adjusted estimator). It usually names a layer or a micro-batch (ALGORITHMS.md 2.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ghtools.detect.period_choose import Choice
from ghtools.detect.period_levels import Level, prefix_sums
from ghtools.detect.period_symbols import U64, Columns

THRESHOLD = 0.95
WINDOW = 1 << 14  # calls looked at
SAMPLE = 512  # pairs a lag must pass before all of its pairs are counted


def match_fraction(h: U64, lags: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Share of equal pairs at each lag (default 1 to n // 2). Shape (len(lags),)."""
    n = len(h)
    lags = np.arange(1, n // 2 + 1) if lags is None else lags
    return np.array([float((h[:-k] == h[k:]).mean()) if k < n else 0.0 for k in lags.tolist()])


def smallest_lag(h: U64, threshold: float = THRESHOLD) -> int:
    """The smallest lag up to n // 2 whose match fraction reaches `threshold`; 0 if none does."""
    h = h[-WINDOW:]
    n = len(h)
    for k in range(1, n // 2 + 1):
        if n - k > SAMPLE and (h[:SAMPLE] == h[k : k + SAMPLE]).mean() < threshold - 0.2:
            continue
        if (h[:-k] == h[k:]).mean() >= threshold:
            return k
    return 0


def choose_acf(c: Columns, final: bool, repeats: int, reduces: bool) -> Choice:
    """A period_track chooser: every k-th call begins an iteration, k the smallest such lag."""
    if len(c) < 32 and not final:
        return Choice("wait", method="acf", why="too few calls")
    k = smallest_lag(c.h)
    if not k:
        why = f"no lag has an autocorrelation of {THRESHOLD}"
        return Choice("wait" if not final else "unknown", method="acf", why=why)
    sums = prefix_sums(c.h)
    starts = np.arange(0, len(c) - 1)
    level = Level(
        sig=int(sums[k] - sums[0]), calls=1, count=len(starts), share=1.0, order=0, token=0, purity=1.0, starts=starts
    )
    level.dur_ns = int(np.median(np.diff(c.t[::k])) / k)
    return Choice("found", level=level, every=k, method="acf", why=f"smallest lag with autocorrelation {THRESHOLD}")
