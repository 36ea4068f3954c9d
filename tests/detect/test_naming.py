# SPDX-License-Identifier: Apache-2.0
"""Suspects and findings in the words of alerts: who is slow, how sure that is, and what takes it back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.detect.alerts import CLOSED, WAITING_MAX, Alerts
from ghtools.detect.naming import MAX_PARTS, MAX_TEXT
from ghtools.stream.records import Alert, Change, Finding, Job, Suspect
from tests.detect.test_alerts import BASE, Clock, onset, relief

Said = Change | Suspect | Finding | Job
JOB = Job(
    job="j", backend="nccl",
    ranks=[{"rank": rank, "host": "ab"[rank // 2], "device": str(rank + 1), "local_rank": 0} for rank in range(4)],
)  # fmt: skip


def suspect(ranks: list[int] | None = None, verdict: str = "attributed", episode: int = 1, **kw: Any) -> Suspect:
    """What gh-profile says of rank 2, slow since iteration 120."""
    values: dict[str, Any] = {
        "what": "rank", "ranks": [2] if ranks is None else ranks, "cause": "compute", "ratio": 2.9,
        "t_ns": BASE + 130 * 10**9, "text": "why", "evidence": {"episode": episode, "onset_index": 120},
    }  # fmt: skip
    return Suspect(verdict=verdict, **{**values, **kw})


def finding(ranks: list[int] | None = None, verdict: str = "confirmed", **kw: Any) -> Finding:
    values: dict[str, Any] = {"cause": "compute", "ratio": 2.8, "by": "gemm", "t_ns": BASE + 140 * 10**9}
    return Finding(ranks=[2] if ranks is None else ranks, verdict=verdict, **{**values, **kw})


def run(records: Iterable[Said], notes: list[str] | None = None) -> tuple[list[Alert], Alerts]:
    alerts = Alerts(
        "j", lambda t: f"T{(t - BASE) // 10**9}", Clock(), (notes if notes is not None else []).append
    )  # fmt: skip
    made = [alert for record in records for alert in alerts.feed(record)]
    return [*made, *alerts.finish()], alerts


def texts(made: list[Alert], *states: str) -> list[str]:
    return [alert.text for alert in made if alert.state in states]


def test_an_episode_gets_the_name_of_its_part_and_then_the_test() -> None:
    made, alerts = run([JOB, onset(120), suspect(hosts=["b"]), finding(), relief(210)])
    assert [(a.id, a.state, a.severity) for a in made] == [
        ("j/job/-/1", "slow", "warning"), ("j/job/-/1", "named", "warning"), ("j/job/-/1", "named", "warning"),
        ("j/job/-/1", "recovered", "info"),
    ]  # fmt: skip
    assert texts(made, "named") == [
        "T130 rank 2 (host b, GPU 3): compute 2.9x slower since iteration 120, attributed",
        "T140 rank 2 (host b, GPU 3): compute 2.9x slower since iteration 120, attributed, confirmed by GEMM 2.8x",
    ]
    part = {
        "what": "rank", "ranks": [2], "hosts": ["b"], "cause": "compute", "ratio": 2.9, "since": 120,
        "verdict": "attributed", "by": "", "why": "", "test_ratio": 0.0,
    }  # fmt: skip
    tested = part | {"verdict": "confirmed", "by": "gemm", "test_ratio": 2.8}
    assert [a.suspects for a in made] == [[], [part], [tested], [tested]]
    assert {a.episode for a in made} == {1}
    assert not alerts.open


def test_what_is_found_of_a_ranks_gpu_is_of_the_rank() -> None:
    made, _ = run([JOB, onset(120), suspect(), finding(what="device")])
    named = texts(made, "named")
    assert len(named) == 2 and "attributed, confirmed by GEMM 2.8x" in named[1]
    made, _ = run([JOB, onset(120), suspect(), finding(what="device", verdict="cleared")])
    assert len(texts(made, "cleared")) == 1


def test_a_link_between_hosts() -> None:
    slow = {"what": "link", "hosts": ["a", "b"], "cause": "communication"}
    made, _ = run([onset(120), suspect([1, 2], ratio=3.1, **slow), finding([2, 1], by="ring pass 2", ratio=0, **slow)])
    assert texts(made, "named") == [
        "T130 link host a <-> host b: transfer 3.1x slower since iteration 120, attributed",
        "T140 link host a <-> host b: transfer 3.1x slower since iteration 120, attributed, confirmed by ring pass 2",
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"cause": "input", "ratio": 0.0}, "rank 2: input slower"),
        ({"cause": "host pause"}, "rank 2: host pause"),
        ({"cause": "communication"}, "links of rank 2: transfer 2.9x slower"),
        ({"what": "link", "ranks": [1, 2], "cause": "communication"}, "link rank 1 <-> rank 2: transfer 2.9x slower"),
        (
            {"what": "host", "ranks": [2, 3], "hosts": ["b"], "cause": "communication"},
            "links of host b: transfer 2.9x slower",
        ),
        (
            {"what": "group", "ranks": list(range(12)), "cause": "communication"},
            "group of ranks 0, 1, 2, 3, 4, 5, 6, 7, ...: transfer 2.9x slower",
        ),
    ],
)
def test_each_kind_of_part(values: dict[str, Any], text: str) -> None:
    made, _ = run([onset(120), suspect(**values)])
    assert texts(made, "named") == [f"T130 {text} since iteration 120, attributed"]


def test_a_part_is_named_once_an_episode() -> None:
    again = suspect(ratio=3.3, evidence={"episode": 2, "onset_index": 300})
    made, _ = run(
        [onset(120), suspect(), suspect(ratio=3.0), finding(), finding(), relief(210), suspect(),
         onset(300, episode=2), again, suspect(evidence={"episode": 2})]
    )  # fmt: skip
    assert [(a.state, a.episode) for a in made] == [
        ("slow", 1), ("named", 1), ("named", 1), ("recovered", 1), ("slow", 2), ("named", 2),
    ]  # fmt: skip


def test_a_name_that_comes_before_the_onset_is_confirmed_waits_for_it() -> None:
    early = [onset(120, stage="suspected"), suspect()]
    assert run(early)[0] == []
    made, _ = run([*early, onset(120)])
    assert [a.state for a in made] == ["slow", "named"]
    withdrawn = [onset(120, stage="withdrawn"), suspect(verdict="cleared", evidence={})]
    assert [a.state for a in run([*early, *withdrawn, onset(400, episode=2)])[0]] == ["slow"]


def test_the_name_of_a_rank_that_is_slow_alone() -> None:
    """A rank's onset is held back until the job is known not to follow; so is the name."""
    made, _ = run([onset(120, rank=2), suspect()])
    assert [(a.state, a.level, a.rank, a.id) for a in made] == [
        ("slow", "rank", 2, "j/rank/2/1"), ("named", "rank", 2, "j/rank/2/1"),
    ]  # fmt: skip


def test_a_name_that_comes_after_the_relief_is_still_said() -> None:
    made, _ = run([onset(120), relief(140), suspect(), suspect([3], verdict="inconclusive")])
    assert [a.state for a in made] == ["slow", "recovered", "named"]


def test_suspects_of_no_episode_alert_nobody() -> None:
    outside = [suspect(evidence={}), suspect(episode=7, evidence={"episode": 7}), finding()]
    assert run(outside)[0] == []
    assert [a.state for a in run([*outside, onset(120)])[0]] == ["slow"]
    assert [a.state for a in run([onset(120), suspect(evidence={"episode": 9, "onset_index": 300})])[0]] == ["slow"]


def test_what_clears_a_part_takes_it_back() -> None:
    made, alerts = run([onset(120), suspect(), finding(verdict="cleared", text="as fast as its peers")])
    assert texts(made, "cleared") == ["T140 rank 2: no longer suspected, cleared by GEMM: as fast as its peers"]
    assert made[-1].severity == "info" and made[-1].suspects == []
    assert "rank 2" not in alerts.still_slow()[0]
    made, _ = run([onset(120), suspect(), suspect(verdict="cleared", evidence={}, text="it has passed")])
    assert texts(made, "cleared") == ["T130 rank 2: no longer suspected, cleared: it has passed"]


def test_why_nobody_can_be_named_is_said_once() -> None:
    none = {"what": "none", "ranks": [], "cause": "unknown"}
    made, _ = run(
        [onset(120), suspect(verdict="inconclusive", **none | {"text": "cannot tell who is slow: no data of rank 2"}),
         suspect(verdict="inconclusive", **none), suspect([3], verdict="inconclusive")]
    )  # fmt: skip
    assert [(a.state, a.severity) for a in made] == [("slow", "warning"), ("unnamed", "info")]
    assert made[1].text == "T130 cannot tell who is slow: no data of rank 2"
    made, _ = run([onset(120), suspect(verdict="cleared", **none | {"text": "all 8 ranks work 1.4 times as long"})])
    assert texts(made, "unnamed") == ["T130 nobody is to blame: all 8 ranks work 1.4 times as long"]
    made, _ = run([onset(120), suspect(), suspect([3], verdict="inconclusive")])
    assert texts(made, "unnamed") == [], "somebody is named"


def test_a_test_finds_what_nobody_suspected() -> None:
    made, _ = run([onset(120), finding([3])])
    assert texts(made, "named") == ["T140 rank 3: compute slower since iteration 120, confirmed by GEMM 2.8x"]


def test_beside_a_named_part_a_test_names_pieces_of_it_only() -> None:
    link = {"what": "link", "cause": "communication"}
    end = finding([2], cause="communication", by="gh-validate-ring by tcp", ratio=3.0)
    made, _ = run([onset(120), suspect(), finding([3]), suspect([1, 2], **link), end])
    assert texts(made, "named")[1:] == [
        "T130 link rank 1 <-> rank 2: transfer 2.9x slower since iteration 120, attributed",
        "T140 links of rank 2: transfer slower since iteration 120, confirmed by the ring test 3.0x",
    ]


def test_a_test_before_the_onset_is_confirmed_waits_with_the_name() -> None:
    tested = finding(evidence={"why": "throttled"})
    made, _ = run([onset(120, stage="suspected"), suspect(), finding([3]), tested, onset(120)])
    assert texts(made, "named") == [
        "T130 rank 2: compute 2.9x slower since iteration 120, attributed",
        "T140 rank 2: compute 2.9x slower since iteration 120, attributed, confirmed by GEMM 2.8x (throttled)",
    ]
    cleared = [suspect(), finding(verdict="cleared"), onset(120)]
    assert texts(run(cleared)[0], "named") == []


def test_a_test_that_could_not_tell_is_a_note() -> None:
    notes: list[str] = []
    made, _ = run([onset(120), suspect(), finding(verdict="could not tell", text="rank 2 did not stop")], notes)
    assert [a.state for a in made] == ["slow", "named"]
    assert notes == ["T140 a test could not tell: rank 2 did not stop"]


def test_still_slow_at_the_end_says_who() -> None:
    _, alerts = run([onset(120), suspect()])
    assert alerts.still_slow()[0].endswith("312 -> 905 ms (+190 %); rank 2: compute 2.9x slower")


def test_stalled_ranks_alert_by_themselves_once() -> None:
    stalled = suspect([3, 5], cause="stalled", evidence={}, text="ranks 3 and 5 have not called all_reduce 17")
    made, alerts = run([stalled, stalled])
    assert [(a.state, a.severity, a.text) for a in made] == [
        ("stalled", "critical", "T130 STALLED: ranks 3 and 5 have not called all_reduce 17")
    ]
    assert alerts.still_slow() == ["still STALLED at the end: rank 3,5"]


def test_names_from_the_stream_are_one_printable_line() -> None:
    made, _ = run([onset(120), suspect(hosts=["a\x1b[31m\nb" + "x" * 1000])])
    (text,) = texts(made, "named")
    assert text.isprintable() and len(text) < MAX_TEXT + 20


def test_memory_is_bounded() -> None:
    alerts = Alerts("j", str, Clock())
    for rank in range(500):
        assert list(alerts.feed(suspect([rank], evidence={"episode": 9}))) == []
    assert len(alerts._waiting) == WAITING_MAX
    list(alerts.feed(onset(120)))
    made = [a for rank in range(500) for a in alerts.feed(suspect([rank]))]
    assert len(made) == MAX_PARTS
    for number in range(2, 50):
        list(alerts.feed(onset(120 * number, episode=number)))
    assert len(alerts._closed) == CLOSED


STEP = st.tuples(st.sampled_from("ORAICFN"), st.integers(0, 2), st.integers(0, 2))


def _records(steps: list[tuple[str, int, int]]) -> Iterable[Said]:
    """Episodes in ascending numbers, and suspects and findings of the latest or one before."""
    episode = 0
    for what, rank, back in steps:
        if what == "O":
            episode += 1
        evidence = {"episode": max(1, episode - back)}
        yield {
            "O": onset(120 * episode, episode=max(1, episode)),
            "R": relief(120 * episode + 60, episode=max(1, episode)),
            "A": suspect([rank], evidence=evidence),
            "I": suspect([rank], verdict="inconclusive", evidence=evidence),
            "C": suspect([rank], verdict="cleared", evidence={}),
            "F": finding([rank]),
            "N": finding([rank], verdict="cleared"),
        }[what]


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_no_sentence_is_said_twice_unless_it_was_taken_back(steps: list[tuple[str, int, int]]) -> None:
    made, _ = run(_records(steps))
    standing: dict[tuple[str, tuple[int, ...]], str] = {}
    for alert in made:
        if alert.state not in ("named", "cleared"):
            continue
        now = {(alert.id, tuple(part["ranks"])): str(part["by"]) for part in alert.suspects}
        before = {key: by for key, by in standing.items() if key[0] == alert.id}
        changed = {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
        assert len(changed) == 1, alert.text
        assert (len(now) < len(before)) == (alert.state == "cleared")
        standing = {key: by for key, by in standing.items() if key[0] != alert.id} | now
