# SPDX-License-Identifier: Apache-2.0
"""What real jobs on a busy host taught the judge: quotas that strike unevenly, contention that passes, gloo's CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ghtools.locate.case import Case, Onset
from ghtools.locate.collect import Dropped, RankBuffer
from ghtools.locate.groups import Groups, Key
from ghtools.locate.history import RankIters, Window
from ghtools.locate.judge import judge
from ghtools.locate.lateness import always, lasting
from ghtools.locate.match import Members, Transfers
from ghtools.stream.records import FLAG_EXEC, OP_CODE, Calls, Comm, Job, Suspect
from tests.locate.simulate import run

MS = 1e6
DP, TP0, TP1 = 0, 1, 2  # groups of the job below
ITER = 400 * MS


def job(own: np.ndarray, longest: np.ndarray | None = None, slow_tp: int = -1, onset: Onset | None = None) -> Case:
    """A gloo job of tp 2 x dp 2 with these own times (iterations x 4 ranks, ms).

    Ranks 0, 1 and 2, 3 are tensor parallel; all four meet in one more group, where everybody waits for the last.
    `slow_tp` has transfers of 40 ms, not 8.
    """
    groups = Groups()
    groups.job(Job(world_size=4, backend="gloo", ranks=[{"rank": r, "host": "a"} for r in range(4)]))
    groups.comm(Comm(comm=9, rank=0, comm_rank=0, size=4, ranks=[0, 1, 2, 3], name="world"))
    groups.comm(Comm(comm=1, rank=0, comm_rank=0, size=2, ranks=[0, 1], name="tp"))
    groups.comm(Comm(comm=2, rank=2, comm_rank=0, size=2, ranks=[2, 3], name="tp"))
    assert [groups.number(9), groups.number(1), groups.number(2)] == [DP, TP0, TP1]
    n = len(own)
    it, rank = np.repeat(np.arange(n), 4), np.tile(np.arange(4), n)
    flat = own.ravel() * MS
    gap = 0.5 * flat if longest is None else longest.ravel() * MS
    ranks = RankIters(it, rank, it * int(ITER), np.full(4 * n, ITER), flat, gap, np.zeros(4 * n, np.int64))
    wait = (own.max(axis=1)[:, None] - own).ravel() * MS
    last = np.where(wait == 0, np.repeat(wait.reshape(n, 4).max(axis=1), 4), 0.0)
    spread = np.repeat(wait.reshape(n, 4).max(axis=1), 4)
    members = Members(it, np.full(4 * n, DP), rank, wait, last, spread, np.ones(4 * n, np.int64))
    which = np.tile([TP0, TP1], n)
    time = np.where(which == slow_tp, 40.0, 8.0) * MS
    ones = np.ones(2 * n, np.int64)
    transfers = Transfers(np.repeat(np.arange(n), 2), which, 0 * which, time, ones, 2 * ones)
    return Case(Window(ranks, members, transfers), None, groups, [Key(OP_CODE["all_reduce"], 4096)], onset=onset)


def named(case: Case) -> list[tuple[str, list[int], str]]:
    return [(s.what, s.ranks, s.cause) for s in judge(case).suspects if s.verdict == "attributed"]


def even(n: int, value: float = 100.0) -> np.ndarray:
    return value + np.random.default_rng(n).normal(0, 2, (n, 4))


NOTICED = Onset(250 * MS, ITER)


def test_a_quota_that_strikes_unevenly_is_named_after_a_few_iterations() -> None:
    own = even(4)
    own[:, 2] = [129, 299, 154, 360]  # as a quota of 15 % made it on the bed
    assert named(job(own, onset=NOTICED)) == [("rank", [2], "compute")]
    assert not named(job(own)), "without an onset so few iterations are no evidence"


def test_always_needs_every_iteration_and_a_large_excess() -> None:
    assert always(np.array([0.3, 0.1, 0.6, 0.2]))
    assert not always(np.array([0.3, 0.6, 0.2]))
    assert not always(np.array([0.3, 0.01, 0.6, 0.2, 0.4]))
    assert not always(np.full(10, 0.15))


def test_contention_that_passes_is_nobodys_name() -> None:
    own = even(30)
    own[:20, 3] += 60  # twenty iterations, eight seconds: another process beside rank 3
    [suspect] = [s for s in judge(job(own)).suspects if s.what == "rank"]
    assert (suspect.verdict, suspect.ranks) == ("inconclusive", [3])
    assert "comes and goes" in suspect.text
    own[:, 3] = even(30)[:, 3] + 60
    assert named(job(own)) == [("rank", [3], "compute")]
    assert not named(job(own[:20])), "eight seconds of it are not enough where the CPU computes"


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0] * 9, 1.0), ([2.0] * 6 + [0.0] * 3, 0.0), ([1.0] * 4, 1.0), ([float("nan")] * 12, 1.0), ([-1.0] * 9, 1.0)],
)
def test_lasting(values: list[float], expected: float) -> None:
    assert lasting(np.array(values)) == expected


def test_slow_transfers_beside_a_member_that_works_longer_are_no_slow_link_on_gloo() -> None:
    own = even(7)
    own[:, 2] = [60, 260, 90, 300, 60, 280, 250]  # so uneven that it is not certain yet
    made = judge(job(own, slow_tp=TP1, onset=NOTICED)).suspects
    [link] = [s for s in made if s.cause == "communication"]
    assert link.verdict == "inconclusive"
    assert "rank 2, whose CPU moves the data" in link.text


def test_slow_transfers_alone_are_a_slow_link() -> None:
    assert named(job(even(7), slow_tp=TP1, onset=Onset(360 * MS, ITER))) == [("link", [2, 3], "communication")]


@pytest.mark.parametrize(("timed", "verdict"), [(True, "cleared"), (False, "inconclusive")])
def test_arrivals_alone_cannot_tell_slower_work_from_slower_transfers(timed: bool, verdict: str) -> None:
    now, before = job(even(12, 250.0), onset=NOTICED), job(even(12))
    case = Case(now.window, before.window, now.groups, now.keys, timed, NOTICED)
    [suspect] = judge(case).suspects
    assert (suspect.what, suspect.verdict) == ("none", verdict)


def pipeline(own: np.ndarray, across: bool, edge_ms: float = 0.0, timed: bool = True) -> Case:
    """Two stages of one rank each on gloo: rank 0 sends to rank 1, which waits; both meet nowhere else."""
    groups = Groups()
    hosts = ["a", "b" if across else "a"]
    groups.job(Job(world_size=2, backend="gloo", ranks=[{"rank": r, "host": hosts[r]} for r in range(2)]))
    groups.comm(Comm(comm=9, rank=0, comm_rank=0, size=2, ranks=[0, 1], name="pp"))
    edge, n = groups.number(9, 0, 1), len(own)
    it, rank = np.repeat(np.arange(n), 2), np.tile(np.arange(2), n)
    flat, one = own.ravel() * MS, np.ones(2 * n, np.int64)
    ranks = RankIters(it, rank, it * int(ITER), np.full(2 * n, ITER), flat, 0.5 * flat, 0 * one)
    wait = np.where(rank == 0, 200 * MS, 0.0)  # rank 0 waits for rank 1
    members = Members(it, edge * one, rank, wait, 200 * MS - wait, np.full(2 * n, 200 * MS), one)
    its = np.arange(n)
    transfers = Transfers(its, edge + 0 * its, 0 * its, np.full(n, edge_ms * MS), one[:n], 2 * one[:n])
    return Case(Window(ranks, members, transfers), None, groups, [Key(OP_CODE["send"], 4096)], timed, NOTICED)


@pytest.mark.parametrize(
    ("across", "edge_ms", "timed", "verdict"),
    [
        (False, 0.0, True, "attributed"),
        (True, 0.0, True, "inconclusive"),  # what it receives over the network is not timed
        (True, 5.0, True, "attributed"),
        (False, 0.0, False, "inconclusive"),  # arrivals alone
    ],
)
def test_a_rank_alone_in_its_stage_is_named_only_if_its_own_time_has_no_transfers_in_it(
    across: bool, edge_ms: float, timed: bool, verdict: str
) -> None:
    own, old = np.full((12, 2), 100.0), np.full((12, 2), 100.0)
    own[:, 1] = 300.0
    now = pipeline(own, across, edge_ms, timed)
    before = pipeline(old, across, edge_ms, timed).window
    made = judge(Case(now.window, before, now.groups, now.keys, timed, NOTICED)).suspects
    assert [(s.ranks, s.verdict) for s in made if s.what == "rank"] == [([1], verdict)]


def _cause(longest: float, rest: float) -> Suspect:
    own, gap = even(12), even(12, 50.0)
    gap[:, 1] = longest
    own[:, 1] = longest + rest
    return next(s for s in judge(job(own, gap, onset=NOTICED)).suspects if s.verdict == "attributed")


def test_a_device_that_is_slow_stretches_all_gaps_and_late_input_only_one() -> None:
    assert _cause(150, 100).cause == "compute"  # 3 times, 2 times
    assert _cause(200, 52).cause == "input"
    assert _cause(200, 95).cause == "compute", "4 times, 1.9 times: a quota stops it once in each gap"


def columns(**values: Any) -> dict[str, Any]:
    n = len(values["seq"])
    usual = {"dtype": np.zeros(n, "u1"), "peer": np.full(n, 1), "comm": np.ones(n, "<u8"), "bytes": np.full(n, 8)}
    return usual | {name: np.asarray(value) for name, value in values.items()}


def test_pairs_before_the_first_execution_are_kept_where_pairs_are_never_timed() -> None:
    send, reduce = OP_CODE["send"], OP_CODE["all_reduce"]
    seq, op = np.arange(4), np.array([send, send, reduce, send])
    calls = Calls(rank=0, t_ns=10 * seq, flags=0 * seq, dur_ns=0 * seq - 1, **columns(seq=seq, op=op))
    timed = replace(
        calls, t_ns=calls.t_ns[2:3], flags=np.array([FLAG_EXEC]), dur_ns=np.array([5]),
        **columns(seq=[2], op=[reduce]),
    )  # fmt: skip
    buffer, dropped = RankBuffer(0), Dropped()
    buffer.add(calls, dropped)
    buffer.add(timed, dropped)
    assert buffer.executions().seq.tolist() == [0, 1, 2, 3]


def test_iterations_that_the_stream_tells_replace_those_guessed_from_its_first_calls() -> None:
    # Eight micro-batches a step: the first batch of calls alone looks like eight iterations.
    made = run(tp=2, dp=4, micro=8, iters=30, fault="compute", rank=0, ratio=2.1, seed=10124, clock_ms=2000.0)
    assert made.attributed == [("rank", [0], "compute")]
