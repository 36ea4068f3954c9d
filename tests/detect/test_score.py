# SPDX-License-Identifier: Apache-2.0
"""Scoring: which change belongs to which label, and the intervals against slow, obvious versions."""

from __future__ import annotations

from math import exp, factorial, isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.detect.labels import Label
from ghtools.detect.score import Report, Tolerance, named, quantile, rate, score, wilson
from ghtools.stream.records import Change, Finding, Suspect


def onset(at: int, said: int, episode: int = 1, **more: object) -> Change:
    fields = {"stage": "confirmed", "verdict": "fail-slow", "ratio": 1.5, **more}
    return Change(onset_index=at, said_index=said, episode=episode, **fields)  # type: ignore[arg-type]


def relief(at: int, said: int, episode: int = 1) -> Change:
    return Change(
        type="relief", stage="confirmed", verdict="recovered", onset_index=at, said_index=said, episode=episode
    )


EPISODE = [Label(100, 200, ratio=1.5)]


def test_found_with_its_end() -> None:
    got = score(EPISODE, [onset(99, 102, stage="suspected"), onset(101, 105), relief(200, 206)], 300)
    assert got.right and not got.quiet
    assert (got.delay, got.suspected, got.relief_delay, got.off, got.ratio_error) == ([5], [2], [6], [1], [0.0])


def test_missed_and_false() -> None:
    got = score(EPISODE, [onset(40, 45)], 300)
    assert not got.right and got.missed == EPISODE and len(got.false) == 1
    assert score(EPISODE, [onset(100, 161)]).missed  # said too late
    assert not score(EPISODE, [onset(100, 161)]).false  # but not where nothing was
    assert score(EPISODE, [onset(90, 97)]).false  # said before it could be known
    assert not score(EPISODE, [onset(100, 161)], near=Tolerance(within=61)).missed


def test_one_change_is_one_label() -> None:
    two = [Label(100, 150), Label(150, 200)]
    assert len(score(two, [onset(100, 105), relief(200, 205)]).missed) == 1
    assert score(two, [onset(100, 105), onset(150, 156, 1), relief(200, 205)]).right


def test_updates_and_repeats_are_not_false() -> None:
    got = score([Label(100)], [onset(100, 105), onset(130, 140), relief(150, 155), onset(160, 170, 2)])
    assert got.right and got.repeated == 1
    got = score([], [onset(100, 105), onset(130, 140)], 300)
    assert len(got.false) == 1  # one false episode that got worse


@pytest.mark.parametrize("kind", ["planned", "warm-up", "restart", "blip"])
def test_what_must_not_be_called_fail_slow(kind: str) -> None:
    label = [Label(100, 110, kind)]
    assert score(label, []).right and score(label, []).quiet
    got = score(label, [onset(101, 106)])
    assert (len(got.misnamed), len(got.false)) == ((1, 0) if kind == "planned" else (0, 1))
    assert score(label, [onset(101, 106, verdict=kind)]).right


def test_faster_is_found_as_relief() -> None:
    assert score([Label(100, kind="faster")], [relief(100, 106, 0)]).right
    assert not score([Label(100, kind="faster")], [onset(100, 106)]).right


def test_a_ramp_may_be_found_until_it_is_whole() -> None:
    label = [Label(100, kind="drift", full=150)]
    assert score(label, [onset(120, 200, type="drift")]).right
    assert not score([Label(100, kind="drift")], [onset(120, 200, type="drift")]).right


def test_suspicions_elsewhere_are_counted() -> None:
    assert score(EPISODE, [onset(40, 43, stage="suspected")]).doubts == 1


def test_named_parts() -> None:
    labels = [Label(10, ranks=(3,), cause="compute"), Label(20, ranks=(5,))]
    told = [
        Suspect(ranks=[3], verdict="attributed", cause="compute"),
        Suspect(ranks=[5], verdict="inconclusive"),
        Finding(ranks=[1], verdict="confirmed"),
    ]
    got = named(labels, told)
    assert (got.right, got.none, got.wrong, got.cause_right, got.cause_known) == (1, 1, 1, 1, 1)


def test_report_sums() -> None:
    report = Report()
    report.add(score(EPISODE, [onset(100, 105), relief(200, 205)], 300))
    report.add(score([], [onset(100, 105)], 700))
    report.add(score([], [], 1000))
    got = report.as_dict()
    assert got["series_right"]["count"] == 2 and got["series_right"]["of"] == 3
    assert got["quiet_series_with_a_false_episode"]["count"] == 1
    assert got["false_alarms_per_10000_iters"]["value"] == pytest.approx(5.0)
    assert got["delay"]["median"]["value"] == 5.0


@given(st.integers(1, 400), st.data())
def test_wilson_solves_its_equation(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    low, high = wilson(hits, n)
    share = hits / n
    assert 0 <= low <= share <= high <= 1
    for edge in (low, high):
        if 0 < edge < 1:
            assert abs(share - edge) == pytest.approx(1.959964 * (edge * (1 - edge) / n) ** 0.5, abs=1e-9)


@given(st.integers(0, 30))
def test_rate_leaves_two_and_a_half_per_cent_on_each_side(events: int) -> None:
    def below(mean: float, k: int) -> float:
        return sum(exp(-mean) * mean**i / factorial(i) for i in range(k + 1))

    low, high = rate(events, 1.0)
    assert below(high, events) == pytest.approx(0.025, abs=1e-6)
    assert (1 - below(low, events - 1) if events else 0.025) == pytest.approx(0.025, abs=1e-6)


def test_quantile_interval_covers() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        _, low, high = quantile(list(rng.standard_normal(101)), 0.5)
        inside += low <= 0 <= high
    # 95 % of 400 give or take four standard errors
    assert 0.90 <= inside / 400 <= 0.99
    assert isnan(quantile([], 0.5)[0])
