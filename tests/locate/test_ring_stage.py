# SPDX-License-Identifier: Apache-2.0
"""gh-validate-ring --suspects: what asks for a test, how often, and that a test that fails does not end the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ghtools.job.pause import CouldNotTell
from ghtools.locate.ring_stage import RingStage, asks
from ghtools.stream.records import Change, Finding, Link, Record, Suspect

from .at_once import at_once


def suspect(what: str = "link", verdict: str = "attributed", cause: str = "communication") -> Suspect:
    return Suspect(what=what, ranks=[1, 2], verdict=verdict, cause=cause)


def onset(episode: int) -> Change:
    return Change(type="onset", stage="confirmed", level="job", episode=episode)


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Outcomes:
    """A test that says what it is told to, and counts."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.asked = list(outcomes), 0

    def __call__(self, asked_by: Suspect) -> Iterator[Record]:
        self.asked += 1
        yield Link(ranks=[1, 2])
        outcome = self.outcomes.pop(0) if self.outcomes else "cleared"
        if isinstance(outcome, Exception):
            raise outcome
        yield Finding(verdict=outcome)


def stage(tests: Outcomes, clock: Clock, every_s: float = 0.0) -> RingStage:
    return RingStage(tests, every_s, clock, lambda text: None, at_once)


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (suspect(), True),
        (suspect("group"), True),
        (suspect("host"), True),
        (suspect("rank"), True),
        (suspect("rank", cause="compute"), False),
        (suspect("host", cause="compute"), True),
        (suspect(verdict="inconclusive"), False),  # inside a host
        (Suspect(what="link", hosts=["a", "b"], verdict="inconclusive", cause="communication"), True),
        (suspect("host", verdict="inconclusive"), True),
        (suspect("host", verdict="inconclusive", cause="compute"), False),
        (suspect(verdict="cleared"), False),
        (suspect("none", cause="common"), False),
    ],
)
def test_what_asks_for_a_test(record: Suspect, wanted: bool) -> None:
    assert asks(record) == wanted


def test_once_an_episode() -> None:
    tests, clock = Outcomes("confirmed", "cleared"), Clock()
    made = stage(tests, clock)
    said = [
        record for item in (onset(1), suspect(), suspect("group"), onset(1), suspect()) for record in made.feed(item)
    ]
    assert [record.kind for record in said] == ["link", "finding"]
    said = [record for item in (onset(2), suspect()) for record in made.feed(item)]
    assert len(said) == 2
    assert tests.asked == 2


def test_not_too_often() -> None:
    tests, clock = Outcomes(), Clock()
    made = stage(tests, clock, every_s=60)
    for now, episode, wanted in ((0, 1, 1), (30, 2, 1), (59, 3, 1), (61, 3, 2), (62, 4, 2), (122, 4, 3)):
        clock.now = float(now)
        list(made.feed(onset(episode)))
        list(made.feed(suspect()))
        assert tests.asked == wanted, now


def test_a_test_that_fails_is_a_finding_and_the_stream_goes_on() -> None:
    tests, clock = Outcomes(CouldNotTell("the job could not be held", "rank 2 did not come"), "confirmed"), Clock()
    made = stage(tests, clock)
    said = list(made.feed(suspect()))
    assert [record.kind for record in said] == ["link", "finding"]
    finding = said[1]
    assert isinstance(finding, Finding)
    assert (finding.verdict, finding.ranks) == ("could not tell", [1, 2])
    assert "rank 2 did not come" in finding.text
    list(made.feed(onset(7)))
    assert [record.verdict for record in made.feed(suspect()) if isinstance(record, Finding)] == ["confirmed"]
    assert list(made.finish()) == []


def test_a_healthy_ring_clears_the_suspect() -> None:
    made = stage(Outcomes(), Clock())
    _, finding = made.feed(suspect("group"))
    assert isinstance(finding, Finding)
    assert (finding.verdict, finding.what, finding.ranks) == ("cleared", "group", [1, 2])
