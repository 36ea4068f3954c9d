# SPDX-License-Identifier: Apache-2.0
"""The parts of `make bench-detect` that a wrong figure could hide in: series, baselines, the dataset's scores."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.detect.score import score
from tests.bench.detect_study_methods import METHODS
from tests.bench.detect_study_public import covering, f1
from tests.bench.detect_study_series import HARD, NOISES, Made, generator
from tests.bench.detect_study_synthetic import make


@pytest.mark.parametrize("kind", [*HARD, *(f"+15 %; {noise}" for noise in NOISES)])
def test_a_series_is_made_from_its_name(kind: str) -> None:
    one, again, other = make(kind, 3, 1), make(kind, 3, 1), make(kind, 3, 2)
    assert np.array_equal(one.x, again.x) and one.labels == again.labels
    assert not np.array_equal(one.x[:50], other.x[:50])
    assert np.isfinite(one.x).all() and (one.x > 0).all()
    assert all(0 <= label.onset < len(one.x) for label in one.labels)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_a_plain_episode(method: str) -> None:
    x = np.exp(0.02 * generator(1, "plain", 0).standard_normal(400))
    x[150:250] *= 1.6
    got = METHODS[method](Made(x))
    assert any(c.type == "onset" and 140 <= c.onset_index <= 155 and 150 <= c.said_index <= 185 for c in got)
    assert any(c.type == "relief" and 250 <= c.said_index <= 285 for c in got)
    assert score([], METHODS[method](Made(np.full(400, 1.0)))).right


def test_f1_as_the_benchmark_defines_it() -> None:
    assert f1([[10], [10, 20]], [10, 20]) == 1.0
    assert f1([[], []], []) == 1.0
    # told {0, 12, 50}: 2 of 3 are someone's; recall (2/2 + 2/3) / 2
    assert f1([[10], [10, 20]], [12, 50]) == pytest.approx(2 * (2 / 3) * (5 / 6) / (2 / 3 + 5 / 6))
    assert f1([[10]], [16]) == pytest.approx(0.5)  # one too far


def test_covering_by_hand() -> None:
    assert covering([[50]], [50], 100) == 1.0
    assert covering([[50]], [], 100) == pytest.approx(0.5)
    # [0, 25) against [0, 50): 0.5, [25, 100) against [50, 100): 2/3
    assert covering([[25]], [50], 100) == pytest.approx(0.25 * 0.5 + 0.75 * 2 / 3)
