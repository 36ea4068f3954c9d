# SPDX-License-Identifier: Apache-2.0
"""The posterior of csrc/native/bocd.c against a naive version, and what it must never do."""

from __future__ import annotations

import ctypes as c
import math

import numpy as np
import pytest

from ghtools.detect import series as hot
from ghtools.detect.series import LAYOUT, Model, Prior, Series, State, columns
from ghtools.job.native import lib
from ghtools.stream.errors import InputError
from ghtools.stream.records import Iters
from tests import naive_bocd

SECOND = 1e9


def feed(series: Series, dur_ns: np.ndarray, first: int = 0) -> None:
    n = len(dur_ns)
    index = np.arange(first, first + n)
    rec = Iters(index=index, t_ns=index * 10, dur_ns=dur_ns.astype("<i8"), phase=np.zeros(n, "u1"))
    addresses, alive = columns(rec)
    done = 0
    while done < n:
        done = series.feed(*addresses, n, done)
    assert len(alive) == 4


def armed(scale: float = 0.02, hazard: float = 1 / 1000) -> Series:
    series = Series(Model(Prior(hazard=hazard)))
    series.arm(math.log(SECOND), scale, 0)
    series.state.anchor = series.state.level = math.log(SECOND)
    series.state.look_min = series.state.near_min = 2.0
    series.state.guard_by = 99.0
    return series


def run(y: np.ndarray, scale: float, hazard: float = 1 / 1000) -> np.ndarray:
    """Posterior after each of the log values `y`, shape (len(y), 33)."""
    series = armed(scale, hazard)
    out = []
    for i, v in enumerate(y):
        feed(series, np.array([math.exp(v)]), i)
        out.append(series.posterior())
    return np.array(out)


def test_layout_equals_the_compiled_one() -> None:
    room = (c.c_int64 * 32)()
    assert lib.gh_series_layout(room, 32) == len(LAYOUT)
    assert [getattr(State, name).offset for name in LAYOUT] == list(room[: len(LAYOUT)])
    assert c.sizeof(State) == lib.gh_series_size()
    lib.gh_news_size.restype = c.c_int64
    assert c.sizeof(hot.News) == lib.gh_news_size()


@pytest.mark.parametrize("seed", range(4))
def test_posterior_equals_the_naive_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = math.log(SECOND) + 0.02 * rng.standard_normal(260)
    y[90:] += rng.choice([-0.3, -0.1, 0.15, 0.4])
    y[200:] += rng.choice([-0.12, 0.12])
    y[150] += 1.0
    seen = np.log(np.exp(y).astype("<i8").astype(np.float32)).astype(float)
    z = (np.array(naive_bocd.median3(list(seen))) - np.float32(math.log(SECOND))) / 0.02
    expected = np.array(naive_bocd.posterior(list(z), 1 / 1000))
    assert np.abs(run(y, 0.02) - expected).max() < 1e-3


def test_heavy_tails_move_the_posterior_little_from_the_naive_one() -> None:
    # Only the 16 heaviest of the runs over 32 are kept, which shows where many of them stay plausible.
    rng = np.random.default_rng(5)
    y = math.log(SECOND) + 0.02 * rng.standard_t(2, 200)
    seen = np.log(np.exp(y).astype("<i8").astype(np.float32)).astype(float)
    z = (np.array(naive_bocd.median3(list(seen))) - np.float32(math.log(SECOND))) / 0.02
    expected = np.array(naive_bocd.posterior(list(z), 1 / 1000))
    got = run(y, 0.02)
    assert np.abs(got[:, 5:32].sum(1) - expected[:, 5:32].sum(1)).max() < 0.15
    assert np.abs(got - expected).mean() < 1e-3


@pytest.mark.parametrize("hazard", [1 / 1000, 1 / 50])
def test_mass_at_zero_is_always_the_hazard(hazard: float) -> None:
    # ALGORITHMS.md section 1.1: growth and change share the predictive, so P(r = 0) says nothing.
    rng = np.random.default_rng(0)
    y = 0.02 * rng.standard_normal(120)
    y[60:] += 0.12
    naive = naive_bocd.posterior(list(y / 0.02), hazard)
    assert {round(row[0], 12) for row in naive} == {round(hazard, 12)}
    posterior = run(math.log(SECOND) + y, 0.02, hazard)
    assert np.allclose(posterior[:, 0], hazard)
    assert np.allclose(posterior.sum(1), 1, atol=1e-4)
    assert posterior[66, 5:32].sum() > 0.9  # while the look-back window sees the change at 60


def test_one_spike_leaves_the_look_back_window_empty() -> None:
    rng = np.random.default_rng(1)
    y = math.log(SECOND) + 0.02 * rng.standard_normal(120)
    y[60] += math.log(5)
    posterior = run(y, 0.02)
    assert posterior[60:, 2:32].sum(1).max() < 0.5


@pytest.mark.parametrize("kind", ["constant", "spikes", "steps", "tiny", "huge"])
def test_state_stays_a_distribution(kind: str) -> None:
    rng = np.random.default_rng(3)
    n = 5000
    dur = {
        "constant": np.full(n, SECOND),
        "spikes": SECOND * np.exp(np.clip(0.5 * rng.standard_cauchy(n), -15, 15)),
        "steps": SECOND * np.repeat(rng.uniform(0.5, 2, n // 50), 50),
        "tiny": np.ones(n),
        "huge": np.full(n, 2.0**62),
    }[kind]
    series = armed(0.005)
    for i in range(0, n, 500):
        feed(series, dur[i : i + 500], i)
        posterior = series.posterior()
        assert np.isfinite(posterior).all()
        assert abs(float(posterior.sum()) - 1) < 1e-3


def test_same_input_same_bytes_whatever_the_batches() -> None:
    dur = SECOND * np.exp(0.05 * np.random.default_rng(9).standard_normal(400))
    whole, parts = armed(), armed()
    feed(whole, dur)
    for at in range(0, 400, 7):
        feed(parts, dur[at : at + 7], at)
    assert whole.to_bytes() == parts.to_bytes()


def test_bad_values_are_counted_and_ignored() -> None:
    series = armed()
    index = np.array([0, 1, 1, 2, 3, 5, 4, 6, 7])
    dur = np.array([5, 0, 5, -1, 6, 7, 9, 8, 4])
    phase = np.array([0, 0, 0, 0, 0, 0, 0, 2, 0], "u1")
    rec = Iters(index=index, t_ns=index * 10, dur_ns=dur, phase=phase)
    addresses, _alive = columns(rec)
    assert series.feed(*addresses, 9, 0) == 9
    s = series.state
    assert (s.count, s.n_bad, s.n_repeat, s.n_back, s.n_gap, s.n_skipped) == (4, 2, 1, 1, 1, 1)
    assert np.allclose(np.exp(series.logs(0, 9)), [5, 6, 7, 4])
    assert [series.index_at(at) for at in range(4)] == [0, 3, 5, 7]
    assert series.total_before(3) == 18


def test_a_damaged_state_is_refused() -> None:
    series = armed()
    with pytest.raises(InputError, match="bytes"):
        Series(series.model, b"too short")
    data = bytearray(series.to_bytes())
    data[State.bocd.offset : State.y.offset] = b"\xff" * (State.y.offset - State.bocd.offset)
    with pytest.raises(InputError, match="damaged"):
        Series(series.model, bytes(data))
