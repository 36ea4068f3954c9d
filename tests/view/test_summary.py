# SPDX-License-Identifier: Apache-2.0
"""What gh-run says at the end."""

from __future__ import annotations

from ghtools.stream.records import Alert
from ghtools.view.summary import Summary
from tests.detect.test_alerts import onset, relief

PART = {"what": "rank", "ranks": [2], "hosts": ["b"], "cause": "compute", "ratio": 2.9, "verdict": "attributed"}


def test_an_episode_says_which_part_it_was() -> None:
    summary = Summary("1")
    link = {"what": "link", "ranks": [1, 2], "hosts": ["a", "b"], "cause": "communication", "by": "ring pass 2"}
    named = Alert(state="named", level="job", episode=1, suspects=[PART])
    for record in (onset(120), named, relief(210), onset(300, episode=2), relief(350, episode=2)):
        assert list(summary.feed(record)) == []
    list(summary.feed(Alert(state="recovered", level="job", episode=2, suspects=[PART | {"ranks": [3]}, link])))
    list(summary.feed(Alert(state="named", level="rank", rank=1, episode=1, suspects=[])))
    first, second = summary.episode_lines()
    assert first.endswith("s lost; rank 2 (b), compute 2.9x slower, attributed")
    assert second.endswith(
        "; rank 3 (b), compute 2.9x slower, attributed; link 1, 2 (a <-> b), communication, found by ring pass 2"
    )


def test_what_was_cleared_is_not_said() -> None:
    summary = Summary("1")
    for record in (onset(120), Alert(level="job", episode=1, suspects=[PART]), Alert(level="job", episode=1)):
        list(summary.feed(record))
    assert "rank 2" not in summary.episode_lines()[0]
