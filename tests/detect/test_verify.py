# SPDX-License-Identifier: Apache-2.0
"""The statistics of verification against naive versions, and its decisions at the edges."""

from __future__ import annotations

from math import exp, log
from statistics import median

import numpy as np
import pytest

from ghtools.detect.verify import N_CONFIRM, compare, judge, separation
from tests import naive_bocd

MIN_LOG = log(1.1)


@pytest.mark.parametrize("seed", range(20))
def test_statistics_equal_the_naive_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = rng.normal(20, 0.1, rng.integers(1, 120)).astype(np.float32)
    after = rng.normal(20.1, 0.1, rng.integers(1, 60)).astype(np.float32)
    if seed % 2:  # ties
        before, after = np.round(before, 1), np.round(after, 1)
    found = compare(before, after)
    b, a = [float(v) for v in before], [float(v) for v in after]
    assert found.median_before == pytest.approx(median(b))
    assert found.median_after == pytest.approx(median(a))
    assert found.scale_before == pytest.approx(naive_bocd.mad(b), abs=1e-5)
    assert found.scale_after == pytest.approx(naive_bocd.mad(a), abs=1e-5)
    assert found.rank_z == pytest.approx(naive_bocd.rank_z(b, a), abs=1e-6)
    assert (found.lowest_after, found.highest_before) == (min(a), max(b))
    assert 0 <= found.lag1 <= 0.95


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (257, 5), (5, 257)])
def test_samples_of_the_wrong_size_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="1 to 256"):
        compare(np.zeros(sizes[0], np.float32), np.zeros(sizes[1], np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        compare(np.array([1, value, 2], np.float32), np.ones(5, np.float32))
    with pytest.raises(ValueError, match="finite"):
        compare(np.ones(5, np.float32), np.array([value], np.float32))


def noise(n: int, level: float = 20.0, cv: float = 0.02, seed: int = 0) -> np.ndarray:
    return (level + cv * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def test_a_clear_step_is_confirmed_at_the_least_number_of_values() -> None:
    before, after = noise(100), noise(40, 20 + log(1.3), seed=1)
    outcomes = [judge(before, after[:n], MIN_LOG).outcome for n in range(1, 9)]
    assert outcomes == ["wait"] * (N_CONFIRM - 1) + ["confirm"] * (9 - N_CONFIRM)
    found = judge(before, after, MIN_LOG)
    assert found.ratio == pytest.approx(1.3, rel=0.02)
    assert not found.failed


def test_a_long_large_jump_needs_one_value_less() -> None:
    before, after = noise(100, log(1e9)), noise(6, log(1e9) + log(2), seed=1)
    assert [judge(before, after[:n], MIN_LOG).outcome for n in (4, 5)] == ["wait", "confirm"]
    quick = [v - log(100) for v in (before, after[:5])]  # iterations of 10 ms: 0.1 s of evidence is not enough
    assert judge(*quick, MIN_LOG).outcome == "wait"


@pytest.mark.parametrize("size", [0.0, 0.03, 0.07])
def test_what_is_under_the_threshold_is_never_confirmed(size: float) -> None:
    before, after = noise(100), noise(40, 20 + log(1 + size), seed=1)
    outcomes = [judge(before, after[:n], MIN_LOG).outcome for n in range(1, 41)]
    assert "confirm" not in outcomes
    assert outcomes[-1] == "reject"


def test_what_went_back_is_not_confirmed() -> None:
    after = np.concatenate((noise(10, 20.5, seed=1), noise(3, 20.0, seed=2)))
    assert "went back" in judge(noise(100), after, MIN_LOG).failed


def test_few_values_before_ask_for_more() -> None:
    twelve = noise(12)
    small, large = noise(12, 20 + log(1.12), seed=1), noise(12, 20 + log(1.4), seed=1)
    assert judge(twelve, small, MIN_LOG).outcome != "confirm"
    assert judge(twelve, large, MIN_LOG).outcome == "confirm"
    assert judge(twelve, large[:N_CONFIRM], MIN_LOG).outcome == "wait"


def test_a_noisy_host_asks_for_a_larger_change_but_not_for_a_return() -> None:
    before, after = noise(100, cv=0.12), noise(25, 20 + log(1.25), cv=0.05, seed=1)
    assert judge(before, after, MIN_LOG).outcome != "confirm"
    assert judge(before, after, MIN_LOG, steady=True).outcome == "confirm"


def test_constant_series() -> None:
    before, after = np.full(100, 20, np.float32), np.full(8, 20 + log(1.2), np.float32)
    assert judge(before, after, MIN_LOG).outcome == "confirm"
    assert judge(before, before[:10], MIN_LOG).outcome == "reject"


def test_separation_counts_how_rare_the_values_after_were_before() -> None:
    before = np.arange(100, dtype=np.float32)
    assert separation(before, np.full(5, 200, np.float32), 1) == pytest.approx(5 * log(101))
    assert separation(before, np.full(5, 89.5, np.float32), 1) == pytest.approx(-5 * log(11 / 101))
    assert separation(before, np.full(5, -1, np.float32), -1) == pytest.approx(5 * log(101))


def test_the_text_names_sizes_and_failures() -> None:
    text = judge(noise(100, log(1e9)), noise(3, log(1.5e9)), MIN_LOG).text()
    assert "1001 -> 15" in text
    assert "3 of 6 values" in text
    assert exp(MIN_LOG) == pytest.approx(1.1)


def test_a_run_in_the_slower_of_two_modes_is_no_change() -> None:
    rng = np.random.default_rng(3)
    before = np.where(rng.random(100) < 0.37, 0.2, 0.0) + 0.01 * rng.standard_normal(100)
    run = 0.2 + 0.01 * rng.standard_normal(9)
    found = judge(before, run, np.log(1.1))
    assert found.outcome == "wait"
    assert "a run by chance" in found.failed
    assert judge(0.01 * rng.standard_normal(100), run, np.log(1.1)).outcome == "confirm"
