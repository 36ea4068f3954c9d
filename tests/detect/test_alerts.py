# SPDX-License-Identifier: Apache-2.0
"""Episodes: which changes become alerts, in which words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.detect.alert_text import cost_text, span_text
from ghtools.detect.alerts import Alerts
from ghtools.stream.records import Alert, Change

MS = 1_000_000
BASE = 1_700_000_000 * 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def onset(index: int, before: int = 312, after: int = 905, rank: int = -1, **kw: Any) -> Change:
    values: dict[str, Any] = {
        "type": "onset",
        "stage": "confirmed",
        "verdict": "fail-slow",
        "level": "job" if rank < 0 else "rank",
        "rank": rank,
        "episode": 1,
        "before_ns": before * MS,
        "after_ns": after * MS,
        "ratio": after / before,
        "onset_index": index,
        "said_index": index + 5,
        "onset_t_ns": BASE + index * 1_000_000_000,
        "said_t_ns": BASE + (index + 5) * 1_000_000_000,
    }
    return Change(**{**values, **kw})


def relief(index: int, before: int = 905, after: int = 314, rank: int = -1, **kw: Any) -> Change:
    values = {"type": "relief", "verdict": "recovered", "n_iters": 90, "lost_ns": 53_370 * MS}
    return onset(index, before, after, rank, **{**values, **kw})


def run(
    changes: Iterable[Change], clock: Clock | None = None, notes: list[str] | None = None
) -> tuple[list[Alert], Alerts]:
    alerts = Alerts(
        "j", lambda t: f"T{(t - BASE) // 1_000_000_000}", clock or Clock(), (notes if notes is not None else []).append
    )
    made = [alert for change in changes for alert in alerts.feed(change)]
    return [*made, *alerts.finish()], alerts


def test_one_episode_says_two_sentences_in_the_agreed_words() -> None:
    made, alerts = run([onset(120), relief(210)])
    assert [a.text for a in made] == [
        "T120 SLOW since iteration 120: 312 -> 905 ms (+190 %), confirmed at 125",
        "T210 RECOVERED at iteration 210: 905 -> 314 ms; the episode cost 53 s over 90 iterations",
    ]
    assert [(a.state, a.severity) for a in made] == [("slow", "warning"), ("recovered", "info")]
    assert made[0].id == made[1].id == "j/job/-/1"
    assert made[1].n_iters == 90 and made[1].lost_ns == 53_370 * MS
    assert made[1].lost_pct == pytest.approx(100 * 53.37 / (53.37 + 90 * 0.312))
    assert alerts.still_slow() == []


def test_an_open_episode_is_said_at_the_end() -> None:
    _, alerts = run([onset(120)])
    assert alerts.still_slow() == ["still SLOW at the end, since iteration 120: 312 -> 905 ms (+190 %)"]


@pytest.mark.parametrize("stage", ["suspected", "withdrawn"])
def test_only_confirmed_changes_are_alerted(stage: str) -> None:
    assert run([onset(120, stage=stage), onset(120, rank=3, stage=stage)])[0] == []


@pytest.mark.parametrize("verdict", ["warm-up", "restart", "planned", "blip"])
def test_harmless_verdicts_are_notes_only(verdict: str) -> None:
    notes: list[str] = []
    made, alerts = run([onset(120, verdict=verdict), onset(130, verdict=verdict, rank=2)], notes=notes)
    assert made == [] and alerts.still_slow() == []
    assert notes == [
        f"T120 {verdict}, no alert, at iteration 120: 312 -> 905 ms (+190 %)",
        f"T130 rank 2 {verdict}, no alert, at iteration 130: 312 -> 905 ms (+190 %)",
    ]


def test_a_drift_is_an_episode_too() -> None:
    made, _ = run([onset(120, 312, 350, type="drift"), relief(300, 350, 312)])
    assert made[0].state == "drift"
    assert made[0].text == "T120 SLOWING DOWN since iteration 120: 312 -> 350 ms (+12 %), confirmed at 125"
    assert made[1].state == "recovered" and made[1].id == made[0].id


def test_an_uncertain_loss_is_info_until_it_is_a_fail_slow() -> None:
    small = onset(120, 312, 330, type="drift", verdict="unknown")
    made, alerts = run([small])
    assert [(a.state, a.severity) for a in made] == [("drift", "info")]
    assert alerts.still_slow() == [], "and makes no run fail"
    made, alerts = run([small, onset(200, 330, 350)])
    assert [(a.state, a.severity) for a in made] == [("drift", "info"), ("update", "warning")]
    assert len(alerts.still_slow()) == 1


def test_a_repeat_says_nothing_and_a_much_worse_level_updates_once() -> None:
    made, _ = run([onset(120), onset(130, 312, 910), onset(150, 905, 1400), onset(151, 905, 1410)])
    assert [a.state for a in made] == ["slow", "update"]
    assert made[1].text == (
        "T150 STILL SLOW, worse since iteration 150: 905 -> 1400 ms (+349 % since iteration 120), confirmed at 155"
    )
    assert made[1].ratio == pytest.approx(1400 / 312) and made[1].before_ns == 312 * MS


def test_partial_relief_is_an_update_and_only_recovered_closes() -> None:
    made, alerts = run(
        [onset(120), relief(150, 905, 500, verdict="unknown"), relief(180, 500, 330, verdict="unknown"), relief(200)]
    )
    assert [a.state for a in made] == ["slow", "update", "update", "recovered"]
    assert "STILL SLOW, less since iteration 150: 905 -> 500 ms (+60 % since iteration 120)" in made[1].text
    assert not alerts.open


def test_a_planned_relief_closes_what_was_alerted() -> None:
    made, alerts = run([onset(120), relief(150, verdict="planned", episode=0)])
    assert [a.state for a in made] == ["slow", "recovered"] and not alerts.open


def test_another_episode_closes_the_one_whose_relief_was_not_seen() -> None:
    made, alerts = run([onset(120), onset(300, episode=2), relief(400, episode=2)])
    assert [(a.id[-1], a.state) for a in made] == [("1", "slow"), ("1", "recovered"), ("2", "slow"), ("2", "recovered")]
    assert made[1].text == "T300 the episode since iteration 120 is over, its relief was not seen"
    assert not alerts.open


def test_a_withdrawn_suspicion_touches_no_episode() -> None:
    made, alerts = run([onset(120), onset(150, 905, 1500, stage="suspected"), onset(150, 905, 1500, stage="withdrawn")])
    assert [a.state for a in made] == ["slow"] and len(alerts.open) == 1


def test_relief_of_an_episode_from_before_we_listened_is_said_once_for_the_job() -> None:
    made, _ = run([relief(210, rank=0), relief(210)])
    assert [(a.level, a.state) for a in made] == [("job", "recovered")]
    assert run([relief(210, n_iters=0, lost_ns=0)])[0] == []


def test_the_job_speaks_for_its_ranks_whichever_comes_first() -> None:
    ranks = [onset(119 + r, rank=r) for r in range(4)]
    for order in ([*ranks, onset(120)], [onset(120), *ranks]):
        made, alerts = run([*order, *(relief(210, rank=r) for r in range(4)), relief(210)])
        assert [a.level for a in made] == ["job", "job"], [a.text for a in made]
        assert not alerts.open


def test_rank_batches_that_run_ahead_of_the_job_are_covered() -> None:
    made, _ = run(
        [onset(120, rank=0), relief(210, rank=0), onset(120), onset(120, rank=1), relief(210), relief(210, rank=1)]
    )
    assert [a.level for a in made] == ["job", "job"]
    late = run([onset(120), relief(210), onset(121, rank=1), relief(211, rank=1)])[0]
    assert [a.level for a in late] == ["job", "job"]


def test_a_rank_that_stays_alone_is_alerted_as_a_rank_after_the_hold() -> None:
    clock = Clock()
    alerts = Alerts("j", str, clock)
    assert list(alerts.feed(onset(120, rank=3))) == []
    clock.now = 4.9
    assert list(alerts.tick()) == []
    clock.now = 7.3  # 8 iterations of 0.905 s
    (alert,) = alerts.tick()
    assert " rank 3 SLOW since iteration 120: " in alert.text and alert.id == "j/rank/3/1" and alert.rank == 3
    (over,) = alerts.feed(relief(210, rank=3))
    assert " rank 3 RECOVERED at iteration 210: " in over.text and over.id == alert.id


def test_a_rank_alerted_alone_is_closed_even_if_the_job_follows() -> None:
    clock = Clock()
    alerts = Alerts("j", str, clock)
    made = list(alerts.feed(onset(120, rank=3)))
    clock.now = 60
    made += alerts.tick()
    for change in (onset(140), relief(210, rank=3), relief(210)):
        made += alerts.feed(change)
    assert [(a.level, a.state) for a in made] == [
        ("rank", "slow"), ("job", "slow"), ("rank", "recovered"), ("job", "recovered"),
    ]  # fmt: skip


def test_a_job_change_elsewhere_releases_the_rank() -> None:
    made, _ = run([onset(20, rank=3), relief(40, rank=3), onset(120), relief(210)])
    assert [(a.level, a.state) for a in made] == [
        ("job", "slow"), ("rank", "slow"), ("rank", "recovered"), ("job", "recovered"),
    ]  # fmt: skip


def test_what_is_held_at_the_end_is_said() -> None:
    made, alerts = run([onset(120, rank=3)])
    assert [a.level for a in made] == ["rank"]
    assert alerts.still_slow()[0].startswith("still rank 3 SLOW at the end")


def test_holding_back_is_bounded() -> None:
    alerts = Alerts("j", str, Clock())
    made = []
    for turn in range(1000):
        made += alerts.feed(onset(20 * turn, rank=3))
        made += alerts.feed(relief(20 * turn + 10, rank=3))
    assert len(made) > 1900


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["onset", "relief", "drift"]),
            st.sampled_from(["suspected", "confirmed", "withdrawn"]),
            st.sampled_from(["fail-slow", "recovered", "warm-up", "planned", "unknown"]),
            st.integers(-1, 3),
            st.integers(0, 400),
            st.integers(0, 2000),
            st.integers(0, 2000),
            st.integers(0, 30),
        ),
        max_size=60,
    )
)
def test_every_id_opens_once_and_closes_once(rows: list[tuple[str, str, str, int, int, int, int, int]]) -> None:
    clock = Clock()
    alerts = Alerts("j", str, clock)
    made: list[Alert] = []
    for number, (type_, stage, verdict, rank, index, before, after, wait) in enumerate(rows):
        change = onset(
            index, max(before, 1), after, rank, type=type_, stage=stage, verdict=verdict, episode=number, n_iters=0
        )
        made += alerts.feed(change)
        clock.now += wait
        made += alerts.tick()
    made += alerts.finish()
    slow: set[str] = set()
    for alert in made:
        if alert.state in ("slow", "drift"):
            assert alert.id not in slow
            slow.add(alert.id)
        else:
            assert alert.id in slow
            if alert.state == "recovered":
                slow.discard(alert.id)
    assert slow == {e.id for e in alerts.open.values()}
    assert len(alerts.still_slow()) <= len(slow)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (312_000_000, 905_000_000, "312 -> 905 ms"),
        (31_240_000, 905_000_000, "31.2 -> 905 ms"),
        (4_560_000, 9_999_000, "4.56 -> 10.0 ms"),
        (450_000, 990_000, "450 -> 990 us"),
        (900_000_000, 12_500_000_000, "0.90 -> 12.5 s"),
        (0, 0, "0.00 -> 0.00 us"),
    ],
)
def test_durations_for_people(before: int, after: int, text: str) -> None:
    assert span_text(before, after) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0.0 s"),
        (400_000_000, "0.4 s"),
        (53_000_000_000, "53 s"),
        (720_000_000_000, "12 min"),
        (12_600_000_000_000, "3.5 h"),
    ],
)
def test_costs_for_people(ns: int, text: str) -> None:
    assert cost_text(ns) == text
