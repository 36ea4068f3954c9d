# SPDX-License-Identifier: Apache-2.0
"""gh-profile on real gloo jobs: a rank under a CPU quota, a host's link behind a token bucket, and what is no fault.

Each test is one short job (tests/system/profile_bed.py says how it is run). Two cores carry all ranks, so a healthy
rank is late now and then; a wrong name is a failure, and so is no name for the planted part.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bed.host import unable
from tests.system.profile_bed import SCENARIOS, Outcome, judge, record

pytestmark = [pytest.mark.system, pytest.mark.slow]
pytest.importorskip("torch", reason="torch is not installed")


def outcome(name: str, folder: Path) -> Outcome:
    if SCENARIOS[name].hosts and (why := unable()):
        pytest.skip(why)
    return judge(record(name, folder), explain=True)


def said(found: Outcome) -> str:
    """What a failure shows."""
    return "\n".join([found.explained, *(f"{s.verdict}: {s.text}" for s in found.said)])


@pytest.mark.parametrize("name", ["tp2dp2", pytest.param("pp2dp2", marks=pytest.mark.long)])
def test_a_rank_under_a_quota_is_named(name: str, tmp_path: Path) -> None:
    found = outcome(name, tmp_path)
    assert found.verdict == "right", said(found)


@pytest.mark.long
def test_a_slow_link_of_a_host_is_named(tmp_path: Path) -> None:
    found = outcome("link 2 hosts", tmp_path)
    assert found.verdict == "right", said(found)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) for name in ("healthy dp4", "heavier stage", "uneven")]
)
def test_nobody_is_blamed(name: str, tmp_path: Path) -> None:
    found = outcome(name, tmp_path)
    assert not [s for s in found.said if s.verdict == "attributed"], said(found)
