# SPDX-License-Identifier: Apache-2.0
"""The job's changes: what most live ranks say of the same time."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.detect.consensus import KEEP, Consensus
from ghtools.detect.detector import Detector
from ghtools.stream.records import Change, Job
from tests.detect.bocd_help import confirmed, cut, iters, job_changes, noisy


def ranks(n: int, *steps: tuple[int, int, float]) -> list[np.ndarray]:
    return [noisy(300, *steps, seed=rank) for rank in range(n)]


def jobs(n: int, state: str = "running") -> Job:
    return Job(ranks=[{"rank": rank, "state": state} for rank in range(n)])


@pytest.mark.parametrize("size", [1, 50, 300])
def test_all_ranks_slow_is_one_episode_of_the_job(size: int) -> None:
    # size 300: the ranks come one after another, as from files.
    detector, made = Detector(level="job"), list(Detector().job(jobs(4)))
    made += detector.job(jobs(4))
    for batch in zip(*(list(cut(iters(x, r), size)) for r, x in enumerate(ranks(4, (120, 200, 1.5)))), strict=True):
        for rec in batch:
            made += detector.feed(rec)
    onset, relief = (c for c in made if c.stage == "confirmed")
    assert (onset.type, onset.level, onset.rank, onset.onset_index, onset.episode) == ("onset", "job", -1, 120, 1)
    assert len(onset.ranks) >= 3
    assert (relief.type, relief.verdict, relief.episode) == ("relief", "recovered", 1)
    assert relief.lost_ns == pytest.approx(40e9, rel=0.05)  # a median over the ranks, not a sum
    assert relief.n_iters == 80
    if size == 1:
        assert onset.said_index <= 126


def test_it_is_suspected_by_most_before_it_is_confirmed() -> None:
    made = job_changes(ranks(5, (150, 300, 1.5)))
    assert [c.stage for c in made] == ["suspected", "confirmed"]
    assert made[0].said_index <= 152


def test_half_of_the_ranks_are_not_most() -> None:
    assert job_changes([*ranks(2, (120, 200, 1.5)), *ranks(2)]) == []


def test_one_slow_rank_of_an_unsynchronised_job_is_that_ranks() -> None:
    detector = Detector()
    made = [c for rank, x in enumerate([*ranks(3), noisy(300, (120, 200, 1.5))]) for c in detector.feed(iters(x, rank))]
    assert {(c.level, c.rank) for c in made if c.stage == "confirmed"} == {("rank", 3)}


def test_changes_at_different_times_are_not_one() -> None:
    assert confirmed(job_changes([noisy(300, (60 + 50 * r, 110 + 50 * r, 1.5), seed=r) for r in range(4)])) == []


def test_ranks_may_count_their_iterations_differently() -> None:
    detector, made = Detector(level="job"), []
    for batch in zip(
        *(list(cut(iters(x, r, first=1000 * r), 1)) for r, x in enumerate(ranks(3, (120, 200, 1.5)))), strict=True
    ):
        for rec in batch:
            made += detector.feed(rec)
    assert [c.type for c in made if c.stage == "confirmed"] == ["onset", "relief"]


def test_a_rank_that_vanishes_does_not_block_the_others() -> None:
    # Two of four stop at iteration 80; the slow-down at 200 is what both of the living say.
    detector, made = Detector(level="job"), []
    made += detector.job(jobs(4))
    series = ranks(4, (200, 300, 1.5))
    parts = [list(cut(iters(x[: 80 if rank < 2 else 300], rank), 1)) for rank, x in enumerate(series)]
    for i in range(300):
        for part in parts:
            if i < len(part):
                made += detector.feed(part[i])
    assert [(c.type, c.ranks) for c in made if c.stage == "confirmed"] == [("onset", [2, 3])]


def test_a_rank_that_ended_does_not_block_the_others() -> None:
    detector = Detector(level="job")
    job = jobs(4)
    list(detector.job(job))
    made: list[Change] = []
    for rank, x in enumerate(ranks(2, (200, 300, 1.5))):
        made += detector.feed(iters(x, rank))
    assert made == []  # two of four
    for item in job.ranks[2:]:
        item["state"] = "died"
    assert [c.type for c in detector.job(job) if c.stage == "confirmed"] == ["onset"]


def test_a_single_rank_is_the_job() -> None:
    made = job_changes(ranks(1, (120, 200, 1.5)))
    assert confirmed(made) == [("onset", "fail-slow", 120), ("relief", "recovered", 200)]


def test_a_log_without_ranks_speaks_for_the_job_only() -> None:
    said: list[str] = []
    detector = Detector(explain=said.append)
    made = [c for c in detector.feed(iters(noisy(300, (120, 200, 1.5)), rank=-1)) if c.stage == "confirmed"]
    assert said and all(line.startswith("job: ") for line in said)
    assert [(c.level, c.rank, c.type) for c in made] == [("job", -1, "onset"), ("job", -1, "relief")]
    assert all(c.ranks == [] and "ranks" not in c.why for c in made)


@pytest.mark.parametrize(("level", "levels"), [("rank", {"rank"}), ("job", {"job"}), ("both", {"rank", "job"})])
def test_levels(level: str, levels: set[str]) -> None:
    detector = Detector(level=level)  # type: ignore[arg-type]
    assert {c.level for r in range(3) for c in detector.feed(iters(ranks(3, (120, 200, 1.5))[r], r))} == levels


def test_ranks_that_were_slow_alone_still_count_when_all_get_slow() -> None:
    series = ranks(4, (200, 280, 2.0))
    for x in series[:2]:
        x[100:200] *= 1.3
    detector, made = Detector(level="job"), []
    whole = [iters(x, rank) for rank, x in enumerate(series)]
    for rec in whole:
        rec.t_ns = whole[0].t_ns  # they wait for each other
    for batch in zip(*(list(cut(rec, 1)) for rec in whole), strict=True):
        for rec in batch:
            made += detector.feed(rec)
    told = [c for c in made if c.stage == "confirmed"]
    assert [(c.type, c.verdict) for c in told] == [("onset", "fail-slow"), ("relief", "recovered")]
    assert told[0].onset_index == 200


def test_worse_and_partly_better_are_updates_of_the_jobs_episode() -> None:
    made = [c for c in job_changes(ranks(3, (100, 250, 1.5), (150, 200, 1.6))) if c.stage == "confirmed"]
    assert [(c.type, c.verdict, c.episode) for c in made] == [
        ("onset", "fail-slow", 1),
        ("onset", "fail-slow", 1),
        ("relief", "unknown", 1),
        ("relief", "recovered", 1),
    ]


def test_it_remembers_a_bounded_number_of_events() -> None:
    consensus = Consensus()
    consensus.saw(0, 0, 10**9)
    consensus.saw(1, 0, 10**9)
    for i in range(500):
        at = i * 10**12
        list(consensus.feed(Change(rank=0, episode=i + 1, stage="confirmed", verdict="fail-slow", onset_t_ns=at)))
    assert len(consensus.events) <= KEEP


def test_the_last_rank_to_leave_does_not_decide_alone() -> None:
    con, second = Consensus(), 10**9
    for rank in range(4):
        con.saw(rank, 200 * second, second)
    change = Change(stage="confirmed", rank=0, episode=1, verdict="fail-slow", before_ns=second, after_ns=2 * second)
    change.onset_t_ns = 150 * second
    con.job(Job(ranks=[{"rank": rank, "state": "ended" if rank else "running"} for rank in range(4)]))
    assert list(con.feed(change)) == []
    alone = Consensus()
    alone.saw(0, 200 * second, second)
    assert [c.level for c in alone.feed(change)] == ["job"]
