# SPDX-License-Identifier: Apache-2.0
"""One rank's changes: what is an episode, what is not, and that the same input gives the same output."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.detect.memory import Settings
from ghtools.detect.watch import Watch
from ghtools.stream.records import PHASE_CODE, Iters
from tests.detect.bocd_help import MODEL, changes, confirmed, cut, iters, noisy


def test_a_slow_phase_is_one_onset_and_one_relief() -> None:
    made = changes(noisy(400, (120, 210, 1.5)))
    onset, relief = (c for c in made if c.stage == "confirmed")
    assert (onset.type, onset.verdict, onset.onset_index, onset.episode) == ("onset", "fail-slow", 120, 1)
    assert onset.said_index <= 125
    assert onset.ratio == pytest.approx(1.5, rel=0.02)
    assert onset.ratio_lo < onset.ratio < onset.ratio_hi
    assert onset.probability > 0.9
    assert (relief.type, relief.verdict, relief.onset_index, relief.episode) == ("relief", "recovered", 210, 1)
    assert relief.said_index <= 217
    assert relief.n_iters == 90
    assert relief.lost_ns == pytest.approx(45e9, rel=0.05)
    assert onset.said_t_ns > onset.onset_t_ns


def test_it_is_suspected_first_and_within_three_iterations() -> None:
    made = changes(noisy(300, (150, 300, 1.15)))
    assert [(c.stage, c.onset_index) for c in made] == [("suspected", 150), ("confirmed", 150)]
    assert made[0].said_index <= 153
    assert made[1].said_index <= 158


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("ratio", [1.3, 3.0, 20.0])
def test_a_blip_is_no_episode(length: int, ratio: float) -> None:
    for seed in range(5):
        made = changes(noisy(400, (150, 150 + length, ratio), (260, 260 + length, ratio), seed=seed))
        assert confirmed(made) == []


def test_a_short_burst_is_suspected_and_withdrawn_as_a_blip() -> None:
    made = changes(noisy(400, (150, 154, 1.4)))
    assert [(c.type, c.stage, c.verdict) for c in made] == [
        ("onset", "suspected", "unknown"),
        ("onset", "withdrawn", "blip"),
    ]


def test_bursts_that_passed_make_it_patient() -> None:
    bursts = [(at, at + 5, 1.3) for at in (120, 170, 220)]
    quick, slow = changes(noisy(400, (300, 400, 1.3))), changes(noisy(400, *bursts, (300, 400, 1.3)))
    assert confirmed(quick) == confirmed(slow) == [("onset", "fail-slow", 300)]
    assert slow[-1].said_index > quick[-1].said_index


def test_spikes_at_every_evaluation_are_no_episode() -> None:
    x = noisy(600)
    x[10::17] *= 2.0
    assert confirmed(changes(x)) == []


def test_a_ladder_of_small_steps_is_found() -> None:
    made = changes(noisy(500, (150, 500, 1.07), (200, 500, 1.07), cv=0.02))
    slow = [c for c in made if c.stage == "confirmed" and c.verdict == "fail-slow"]
    assert slow and slow[0].ratio > 1.1
    assert slow[0].said_index < 240


def test_a_ramp_is_found_as_drift() -> None:
    x = noisy(500)
    x[150:] *= 1 + 0.2 * np.minimum(np.arange(350) / 150, 1)
    slow = [c for c in changes(x) if c.stage == "confirmed"]
    assert slow[0].type == "drift"


def test_a_small_loss_that_lasts_is_said_later_and_not_as_fail_slow() -> None:
    made = [c for c in changes(noisy(600, (200, 400, 1.06), cv=0.01)) if c.stage == "confirmed"]
    assert [(c.type, c.verdict) for c in made] == [("drift", "unknown"), ("relief", "recovered")]
    assert abs(made[0].onset_index - 200) <= 3
    assert made[0].said_index >= 225
    assert made[1].lost_ns == pytest.approx(12e9, rel=0.15)


def test_a_loss_under_five_per_cent_is_not_said() -> None:
    assert confirmed(changes(noisy(600, (200, 600, 1.03), cv=0.01))) == []


def test_worse_inside_an_episode_is_the_same_episode() -> None:
    made = [c for c in changes(noisy(500, (120, 400, 1.5), (200, 400, 1.6))) if c.stage == "confirmed"]
    assert [(c.type, c.episode, c.onset_index) for c in made] == [
        ("onset", 1, 120),
        ("onset", 1, 200),
        ("relief", 1, 400),
    ]
    assert made[2].n_iters == 280


def test_partly_better_keeps_the_episode_open() -> None:
    made = [c for c in changes(noisy(500, (120, 400, 1.5), (120, 200, 2.0))) if c.stage == "confirmed"]
    assert [(c.type, c.verdict, c.episode) for c in made] == [
        ("onset", "fail-slow", 1),
        ("relief", "unknown", 1),
        ("relief", "recovered", 1),
    ]


def test_two_episodes_have_two_numbers() -> None:
    made = [c for c in changes(noisy(500, (120, 180, 1.4), (200, 260, 1.4))) if c.stage == "confirmed"]
    assert [c.episode for c in made] == [1, 1, 2, 2]


def test_faster_without_an_episode_is_relief_of_none() -> None:
    made = [c for c in changes(noisy(500, (250, 500, 0.8))) if c.stage == "confirmed"]
    assert [(c.type, c.verdict, c.episode, c.onset_index) for c in made] == [("relief", "unknown", 0, 250)]


def test_slow_first_iterations_are_warm_up() -> None:
    x = noisy(300, (0, 25, 1.3))
    x[0] *= 60
    assert [(kind, verdict) for kind, verdict, _ in confirmed(changes(x))] == [("relief", "warm-up")]


@pytest.mark.parametrize("at", [12, 16, 25])
def test_a_step_in_the_middle_of_warm_up_is_not_learnt_as_normal(at: int) -> None:
    for seed in range(3):
        made = confirmed(changes(noisy(200, (at, 200, 2.0), seed=seed)))
        assert [(kind, verdict) for kind, verdict, _ in made] == [("onset", "fail-slow")]
        assert abs(made[0][2] - at) <= 1


def test_a_job_of_few_long_iterations() -> None:
    made = [c for c in changes(noisy(40, (15, 40, 1.5), level=30.0)) if c.stage == "confirmed"]
    assert [(c.type, c.onset_index) for c in made] == [("onset", 15)]
    assert made[0].said_index <= 24


@pytest.mark.parametrize("scheduled", [(200,), ()])
def test_a_planned_change_is_named(scheduled: tuple[int, ...]) -> None:
    made = confirmed(changes(noisy(400, (200, 400, 1.8)), Settings(schedule=scheduled)))
    assert made == [("onset", "planned" if scheduled else "fail-slow", 200)]


def test_after_a_planned_change_the_new_level_is_the_normal_one() -> None:
    made = confirmed(changes(noisy(500, (200, 500, 1.8), (300, 400, 1.3)), Settings(schedule=(200,))))
    assert made == [("onset", "planned", 200), ("onset", "fail-slow", 300), ("relief", "recovered", 400)]


def test_the_threshold_is_the_users() -> None:
    x = noisy(400, (200, 400, 1.08), cv=0.01)
    assert confirmed(changes(x, Settings(min_change=0.05))) == [("onset", "fail-slow", 200)]
    assert ("onset", "fail-slow", 200) not in confirmed(changes(x, Settings(min_change=0.20)))


@pytest.mark.parametrize("size", [1, 7, 64])
def test_batches_do_not_matter(size: int) -> None:
    x = noisy(500, (120, 200, 1.4), (300, 302, 3.0), (400, 500, 1.12), seed=3)
    watch = fresh()
    parts = [c for rec in cut(iters(x), size) for c in watch.feed(rec)]
    assert [vars(c) for c in parts] == [vars(c) for c in changes(x)]


def fresh() -> Watch:
    return Watch(0, MODEL, Settings())


def test_outliers_warm_up_and_gaps_are_left_out() -> None:
    rec = iters(noisy(400))
    for phase, every in (("outlier", 9), ("gap", 31), ("rearm", 37), ("warmup", 41)):
        rec.phase[5::every] = PHASE_CODE[phase]
    rec.dur_ns[rec.phase != 0] *= 8
    watch = fresh()
    assert list(watch.feed(rec)) == []
    assert watch.series.state.n_skipped == int((rec.phase != 0).sum())


def test_nonsense_is_counted_and_never_alerted() -> None:
    rng = np.random.default_rng(4)
    rec = iters(noisy(900))
    index, t_ns, dur = rec.index.copy(), rec.t_ns.copy(), rec.dur_ns.copy()
    dur[rng.integers(20, 900, 30)] = 0
    dur[rng.integers(20, 900, 30)] = -5
    where = rng.choice(np.arange(50, 900, 4), 40, replace=False)
    index[where[:20]] = index[where[:20] - 1]
    t_ns[where[20:]] -= 10**12
    watch = fresh()
    assert list(watch.feed(Iters(index=index, t_ns=t_ns, dur_ns=dur, phase=rec.phase))) == []
    s = watch.series.state
    assert s.n_repeat >= 15 and s.n_back >= 15 and s.n_bad >= 40


def test_a_gap_in_the_index_is_no_change() -> None:
    rec = iters(noisy(400))
    rec.index[200:] += 1000
    watch = fresh()
    assert list(watch.feed(rec)) == []
    assert watch.series.state.n_gap == 1


@pytest.mark.parametrize("size", [1, 7, 200])
def test_a_logging_interval_is_no_gap(size: int) -> None:
    rec = iters(noisy(200))
    rec.index[:] = 100 * (1 + rec.index)
    rec.index[150:] += 300  # this is one
    watch = fresh()
    for part in cut(rec, size):
        part.extra["every"] = 100
        assert list(watch.feed(part)) == []
    assert watch.series.state.n_gap == 1


def test_an_empty_batch_and_a_single_value() -> None:
    watch = fresh()
    assert list(watch.feed(iters(np.empty(0)))) == []
    assert list(watch.feed(iters(np.array([1.0])))) == []


def test_constant_times() -> None:
    assert confirmed(changes(np.ones(300))) == []
    assert confirmed(changes(np.repeat([1.0, 1.5, 1.0], 100))) == [
        ("onset", "fail-slow", 100),
        ("relief", "recovered", 200),
    ]


TWO_MODES = ".#####.####.#....#........####.#####..####..#####....#..#........#..#.#..##.###..##..#...."


@pytest.mark.parametrize("seed", [10, 13, 19, 23, 31])
def test_the_first_iterations_of_two_modes_are_no_episode(seed: int) -> None:
    x = noisy(len(TWO_MODES), cv=0.01, seed=seed) * [1.24 if mark == "#" else 1.0 for mark in TWO_MODES]
    assert [c for c in confirmed(changes(x)) if c[0] != "relief"] == []


def test_few_values_before_are_enough_to_tell_a_step_but_not_a_run() -> None:
    assert ("onset", "fail-slow", 14) in confirmed(changes(noisy(60, (14, 60, 1.3), cv=0.01)))
    x = noisy(40, cv=0.01) * [
        1.3 if mark == "#" else 1.0 for mark in "........##.....####.###.......##.#..#.#.   "[:40]
    ]
    assert confirmed(changes(x)) == []


def test_a_job_that_is_slow_again_after_a_slow_start_is_found() -> None:
    made = changes(noisy(200, (0, 30, 1.3), (70, 200, 1.3), cv=0.01))
    assert [c[:2] for c in confirmed(made)] == [("relief", "warm-up"), ("onset", "fail-slow")]
    assert made[-1].said_index <= 70 + 30


def test_what_is_confirmed_says_what_decided() -> None:
    made = [c for seed in range(30) for c in changes(noisy(400, (150, 158 + seed, 1.3), cv=0.03, seed=seed))]
    told = [c.why.rpartition("; ")[2] for c in made if c.stage == "confirmed"]
    assert set(told) >= {"all tests passed", "the last values are those of before the episode"}
    assert not any("failed" in why or "not passed" in why for why in told)
