# SPDX-License-Identifier: Apache-2.0
"""Seeded populations as regression: hundreds of quiet and changed series of the kinds of ALGORITHMS.md section 1.4.

tests/bench/detector_table.py prints the whole table. The limits here are what those tables stand for, with room
for the small sample.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.detector_table import reports, run, score
from tests.bench.populations import CHANGED, QUIET, case

SEED, COUNT = 11, 60
FALSE_MOST = {"N6": 3, "N7": 3, "N4": 1, "N5": 1}
MISSED_MOST = {"P0": 6, "P5": 5, "P10": 2, "P6": 1}


@pytest.mark.parametrize("kind", QUIET)
def test_quiet_kinds_stay_quiet(kind: str) -> None:
    false = sum(bool(reports(run(case(kind, SEED, i).x))) for i in range(COUNT))
    assert false <= FALSE_MOST.get(kind, 0)


@pytest.mark.parametrize("kind", CHANGED)
def test_changes_are_found(kind: str) -> None:
    rows = [score(one, run(one.x)) for one in (case(kind, SEED, i) for i in range(COUNT))]
    assert sum(row["missed"] for row in rows) <= MISSED_MOST.get(kind, 0)
    assert sum(row["false"] for row in rows) == 0


def test_the_goal_for_steps_of_fifteen_per_cent() -> None:
    rows = [score(one, run(one.x)) for one in (case("G15", SEED, i) for i in range(150))]
    delay = np.array([row["delay"] for row in rows])
    suspected = np.array([row["suspected"] for row in rows])
    assert np.median(delay) <= 5
    assert np.percentile(delay, 95) <= 8
    assert np.percentile(suspected, 95) <= 3
