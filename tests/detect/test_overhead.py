# SPDX-License-Identifier: Apache-2.0
"""The interval of the shim's measured cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ghtools.detect.overhead import _sign_interval, paired_overhead


def test_no_pairs_tell_nothing() -> None:
    result = paired_overhead([], [])
    assert result.pairs == 0
    assert math.isnan(result.pct)
    assert not result.told


def test_a_cost_is_found_through_noise_and_drift() -> None:
    rng = np.random.default_rng(5)
    drift = np.linspace(1.0, 3.0, 40)
    off = drift * rng.normal(1.0, 0.005, 40)
    on = drift * 1.02 * rng.normal(1.0, 0.005, 40)
    on[7] *= 5  # one window met something else
    result = paired_overhead(on, off)
    assert result.lo_pct < 2.0 < result.hi_pct
    assert result.told


def test_equal_windows_cost_nothing() -> None:
    result = paired_overhead([1.0] * 10, [1.0] * 10)
    assert (result.pct, result.lo_pct, result.hi_pct) == (0.0, 0.0, 0.0)


def test_wide_intervals_are_not_told() -> None:
    assert not paired_overhead([1.0, 2.0, 1.5, 1.0], [1.0, 1.0, 1.0, 2.0]).told


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 20, 57])
def test_the_sign_interval_holds_95_per_cent(count: int) -> None:
    low, high = _sign_interval(count)

    def missed(index: int) -> float:
        """Chance that the median lies outside the order statistics number `index` from either end."""
        return 2 * sum(math.comb(count, k) for k in range(index + 1)) / 2**count

    assert low <= high
    if missed(0) <= 0.05:
        assert missed(low) <= 0.05 < missed(low + 1)
    else:
        assert low == 0  # too few pairs for 95 %: all of them
