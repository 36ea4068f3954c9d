# SPDX-License-Identifier: Apache-2.0
"""Suspects wait for the onset to be confirmed: a job is not held for what may be a blip."""

from __future__ import annotations

from ghtools.locate.ripe import Ripe
from ghtools.stream.records import Change, Suspect

SUSPECT = Suspect(ranks=[2], verdict="attributed")


def change(stage: str, kind: str = "onset", level: str = "job", rank: int = -1, verdict: str = "unknown") -> Change:
    return Change(type=kind, stage=stage, level=level, rank=rank, verdict=verdict)


def test_without_an_onset_at_once() -> None:
    assert Ripe().feed(SUSPECT) == [SUSPECT]


def test_with_the_confirmed_onset() -> None:
    ripe = Ripe()
    assert ripe.feed(change("suspected")) == ripe.feed(SUSPECT) == []
    assert ripe.feed(change("confirmed")) == [SUSPECT]
    assert ripe.feed(change("suspected", level="rank", rank=1)) == []
    assert ripe.feed(SUSPECT) == [SUSPECT]  # one slow-down is sure


def test_never_for_what_is_withdrawn() -> None:
    ripe = Ripe()
    ripe.feed(change("suspected", level="rank", rank=1))
    ripe.feed(change("suspected"))
    assert ripe.feed(SUSPECT) == ripe.feed(change("withdrawn")) == []
    assert ripe.feed(change("withdrawn", level="rank", rank=1)) == []
    assert ripe.feed(change("confirmed")) == []  # of another slow-down
    ripe = Ripe()
    ripe.feed(change("suspected"))
    ripe.feed(SUSPECT)
    assert ripe.feed(change("confirmed", verdict="planned")) == []


def test_after_a_relief_the_next_onset_is_doubtful_again() -> None:
    ripe = Ripe()
    ripe.feed(change("suspected"))
    ripe.feed(change("confirmed"))
    for stage in ("suspected", "withdrawn"):  # of the relief: it goes on
        ripe.feed(change(stage, "relief"))
        assert ripe.feed(SUSPECT) == [SUSPECT]
    ripe.feed(change("confirmed", "relief"))
    ripe.feed(change("suspected"))
    assert ripe.feed(SUSPECT) == []


def test_memory_is_bounded() -> None:
    ripe = Ripe()
    ripe.feed(change("suspected"))
    for rank in range(1000):
        ripe.feed(Suspect(ranks=[rank]))
    assert len(ripe.feed(change("confirmed"))) == 16
