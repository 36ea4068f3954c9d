# SPDX-License-Identifier: Apache-2.0
"""Restarts: a new process warms up again, and is compared with the one before."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.detect.memory import Settings
from ghtools.detect.watch import Watch
from ghtools.stream.records import PHASE_CODE, Change
from tests.detect.bocd_help import MODEL, confirmed, iters, noisy


def two_lives(
    first: np.ndarray, second: np.ndarray, how: str = "incarnation", index: int | None = None
) -> list[Change]:
    watch = Watch(0, MODEL, Settings())
    one = iters(first)
    end = int(one.t_ns[-1] + one.dur_ns[-1])
    two = iters(second, first=len(first) if index is None else index, t0=end + 60 * 10**9)
    if how == "incarnation":
        two.incarnation = 1
    elif how == "phase":
        two.phase[0] = PHASE_CODE["restart"]
    return [*watch.feed(one), *watch.feed(two)]


def settling(n: int, seed: int = 1) -> np.ndarray:
    """A new process: a very slow first iteration, some slow ones, then the same level."""
    x = noisy(n, seed=seed)
    x[0] *= 40
    x[1:4] *= 1.5
    return x


@pytest.mark.parametrize("how", ["incarnation", "phase", "rewound"])
def test_a_restart_at_the_same_pace_is_silent(how: str) -> None:
    # "rewound": a checkpoint was loaded, indices start again at an earlier one while time goes on.
    made = two_lives(noisy(200), settling(200), how, index=150 if how == "rewound" else None)
    assert confirmed(made) == []


def test_slow_since_a_restart_is_found_and_its_cause_left_open() -> None:
    made = [c for c in two_lives(noisy(200), 1.4 * settling(200)) if c.stage == "confirmed"]
    assert [(c.type, c.verdict) for c in made] == [("onset", "unknown")]
    assert 200 <= made[0].onset_index <= 210
    assert "restart" in made[0].why
    assert made[0].before_ns == pytest.approx(1e9, rel=0.02)


def test_a_restart_can_end_an_episode() -> None:
    made = [c for c in two_lives(noisy(200, (120, 200, 1.5)), settling(200)) if c.stage == "confirmed"]
    assert [(c.type, c.verdict, c.episode) for c in made] == [("onset", "fail-slow", 1), ("relief", "recovered", 1)]
    assert made[1].lost_ns == pytest.approx(40e9, rel=0.1)


def test_an_episode_goes_on_over_a_restart() -> None:
    slow = 1.5 * settling(200)
    slow[100:] /= 1.5
    made = [c for c in two_lives(noisy(200, (120, 200, 1.5)), slow) if c.stage == "confirmed"]
    assert [(c.type, c.verdict, c.episode) for c in made] == [("onset", "fail-slow", 1), ("relief", "recovered", 1)]
    assert made[1].onset_index == 300


def test_faster_since_a_restart_is_the_new_normal() -> None:
    second = np.concatenate((0.7 * settling(150), noisy(150, level=1.0, seed=2)))
    made = [c for c in two_lives(noisy(200), second) if c.stage == "confirmed"]
    assert [(c.type, c.verdict) for c in made] == [("relief", "restart"), ("onset", "fail-slow")]
    assert made[1].onset_index == 350


def test_a_suspicion_is_withdrawn_at_a_restart() -> None:
    made = two_lives(noisy(153, (150, 153, 1.5)), settling(100))
    assert [(c.stage, c.verdict) for c in made] == [("suspected", "unknown"), ("withdrawn", "restart")]


def test_many_restarts() -> None:
    watch, made, t0 = Watch(0, MODEL, Settings()), [], 0
    for life in range(12):
        rec = iters(settling(7 + 11 * (life % 4), seed=life), t0=t0, incarnation=life)
        t0 = int(rec.t_ns[-1] + rec.dur_ns[-1])
        made += list(watch.feed(rec))
    assert confirmed(made) == []


@pytest.mark.parametrize("ratio", [2.5, 0.4])
def test_after_a_rearm_an_iteration_is_something_else_and_nothing_is_compared(ratio: float) -> None:
    # gh-period has learnt that two micro-batches are one iteration: twice as long is no fail-slow.
    rec = iters(noisy(400, (200, 400, ratio), (300, 400, 1.5)))
    rec.phase[200] = PHASE_CODE["rearm"]
    assert confirmed(Watch(0, MODEL, Settings()).feed(rec)) == [("onset", "fail-slow", 300)]
