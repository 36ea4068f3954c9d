# SPDX-License-Identifier: Apache-2.0
"""What the shim costs a job: windows with tracking on against windows with tracking off (gh-doctor --overhead)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Overhead:
    """Relative cost of tracking, in per cent, with its 95 % interval, from `pairs` neighbouring windows."""

    pct: float
    lo_pct: float
    hi_pct: float
    pairs: int

    @property
    def told(self) -> bool:
        """Whether the interval is narrow enough to say anything (5 points either way)."""
        return self.pairs >= 3 and self.hi_pct - self.lo_pct <= 10.0


def paired_overhead(on_s: Sequence[float], off_s: Sequence[float]) -> Overhead:
    """Compare times of equal work with tracking on and off, window by neighbouring window.

    Pairs of neighbours see the same state of a noisy machine. The estimate is the median of the pairs' log ratios,
    its interval that of the sign test (order statistics), which no outlier can widen or narrow.
    """
    ratios = np.sort(np.log(np.asarray(on_s, float) / np.asarray(off_s, float)))
    pairs = len(ratios)
    if not pairs:
        return Overhead(float("nan"), float("nan"), float("nan"), 0)
    lo, hi = _sign_interval(pairs)
    pct = [100 * (float(np.exp(value)) - 1) for value in (np.median(ratios), ratios[lo], ratios[hi])]
    return Overhead(pct[0], pct[1], pct[2], pairs)


def _sign_interval(count: int, miss: float = 0.05) -> tuple[int, int]:
    """Indices of the order statistics between which the median lies with 95 % (all of them if there are too few)."""
    tail, weight, k = 0.0, 0.5**count, 0
    while tail + weight <= miss / 2:
        tail += weight
        weight = weight * (count - k) / (k + 1)
        k += 1
    low = max(k - 1, 0)
    return low, count - 1 - low
