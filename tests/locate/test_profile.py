# SPDX-License-Identifier: Apache-2.0
"""gh-profile over whole jobs: known faults first, then what must name nobody."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.locate.layout import parse
from ghtools.source.synth_profile import ProfileSpec
from ghtools.stream.records import FLAG_DUR_INVALID, FLAG_EXEC, Calls, Change, Comm, Head, Iters, Job, Record
from tests.locate.simulate import feed, job, run

LAYOUTS = [
    {"dp": 2},
    {"dp": 4},
    {"tp": 2, "dp": 2},
    {"tp": 4, "dp": 1},
    {"tp": 2, "dp": 2, "pp": 2},
    {"dp": 2, "pp": 4},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_slow_rank_is_named_within_ten_iterations_of_the_onset(layout: dict[str, int]) -> None:
    ranks = layout.get("tp", 1) * layout.get("dp", 1) * layout.get("pp", 1)
    made = run(**layout, fault="compute", rank=ranks - 1, ratio=2.0, at=20, change=True, iters=45)
    assert made.attributed == [("rank", [ranks - 1], "compute")]
    assert made.at[0] < 20 + 10
    assert made.said[0].ratio == pytest.approx(2.0, rel=0.12)
    assert made.said[0].hosts == ["host0"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_healthy_job_names_nobody(layout: dict[str, int]) -> None:
    for seed in range(3):
        made = run(**layout, seed=seed)
        assert [(s.what, s.verdict) for s in made.said] == [("none", "cleared")]


def test_a_slow_rank_without_any_onset() -> None:
    made = run(tp=2, dp=4, fault="compute", rank=5, ratio=1.4)
    assert made.attributed == [("rank", [5], "compute")]
    assert 0 <= made.at[0] <= 22
    assert made.said[0].evidence["last_share"] > 0.9


def test_a_small_persistent_loss_needs_more_evidence() -> None:
    short = run(dp=8, fault="compute", rank=3, ratio=1.07, iters=8, noise=0.01)
    long = run(dp=8, fault="compute", rank=3, ratio=1.07, iters=60, noise=0.01)
    assert not short.attributed
    assert long.attributed == [("rank", [3], "compute")]


def test_two_slow_ranks() -> None:
    made = feed(_slowed(ProfileSpec(tp=1, dp=6, fault="compute", rank=1, ratio=2.0, iters=30), also=4))
    assert sorted(made.attributed) == [("rank", [1], "compute"), ("rank", [4], "compute")]


def _slowed(spec: ProfileSpec, also: int) -> list[Record]:
    """A job in which a second rank does as the first: their records trade nothing but the number."""
    records = [r for r in job(spec) if getattr(r, "rank", -1) != also]
    return records + [_as(r, also) for r in job(spec) if getattr(r, "rank", -1) == spec.rank]


def _as(record: Record, rank: int) -> Record:
    record.rank = rank  # type: ignore[attr-defined]
    if isinstance(record, Comm):
        record.comm_rank = rank
    return record


def test_late_input_is_told_from_compute() -> None:
    made = run(tp=2, dp=2, pp=2, fault="input", rank=3)
    assert made.attributed == [("rank", [3], "input")]


def test_a_slow_link_in_one_group_of_many() -> None:
    made = run(tp=2, dp=4, pp=2, fault="link", ratio=3.0, rank=9)
    assert made.attributed == [("group", [9, 11, 13, 15], "communication")]
    assert made.said[0].ratio == pytest.approx(3.0, rel=0.15)
    assert made.said[0].comm


def test_a_slow_link_in_the_only_group_needs_a_past() -> None:
    common = {"dp": 8, "fault": "link", "ratio": 6.0, "dp_ms": 20.0}
    known = run(**common, at=20, change=True, iters=40)
    assert known.attributed == [("group", list(range(8)), "communication")]
    assert run(**common).attributed == []


def test_a_slow_link_between_two_ranks_is_a_link() -> None:
    made = run(dp=2, fault="link", ratio=6.0, dp_ms=20.0, at=20, change=True, iters=40)
    assert made.attributed == [("link", [0, 1], "communication")]


def test_a_slow_edge_of_the_pipeline() -> None:
    made = run(tp=2, dp=2, pp=4, fault="edge", ratio=80.0, rank=4)
    assert made.attributed == [("link", [4, 8], "communication")]


def test_a_slow_rank_and_a_slow_link_at_once() -> None:
    made = run(tp=2, dp=4, pp=2, fault="both", ratio=2.0, rank=1, dp_ms=12.0)
    assert sorted(made.attributed) == [("group", [9, 11, 13, 15], "communication"), ("rank", [1], "compute")]


@pytest.mark.parametrize(
    ("fault", "layout", "cause", "more"),
    [
        ("imbalance", {"tp": 2, "dp": 2, "pp": 2}, "imbalance", {"ratio": 1.5}),
        ("uneven", {"dp": 8}, "imbalance", {}),
        ("uneven", {"tp": 2, "dp": 2, "pp": 2}, "imbalance", {}),
        ("pauses", {"dp": 8}, "host pause", {"iters": 60}),
        ("common", {"dp": 8}, "common", {"at": 20, "change": True, "iters": 40}),
    ],
)
def test_hidden_structure_is_named_and_nobody_is_blamed(
    fault: str, layout: dict[str, int], cause: str, more: dict[str, float]
) -> None:
    made = run(**layout, fault=fault, **more)
    assert not made.attributed
    assert cause in [s.cause for s in made.said if s.verdict == "cleared"]
    assert all(s.what == "none" and not s.ranks for s in made.said)


def test_a_stage_of_one_rank_cannot_be_told_from_a_heavier_stage() -> None:
    alone = run(pp=4, dp=1, fault="imbalance", ratio=1.6)
    assert [(s.what, s.verdict) for s in alone.said] == [("none", "inconclusive")]
    assert "look the same" in alone.said[0].text
    before = run(pp=4, dp=1, fault="compute", rank=2, ratio=1.8, at=20, change=True, iters=40)
    assert before.attributed == [("rank", [2], "compute")]


def test_hosts_with_clocks_of_their_own() -> None:
    made = run(tp=2, dp=4, pp=2, ranks_per_host=4, clock_ms=5_000.0, fault="compute", rank=6, ratio=1.6)
    assert made.attributed == [("rank", [6], "compute")]


def test_a_stated_layout() -> None:
    records = job(ProfileSpec(tp=2, dp=2, pp=2, fault="compute", rank=1, ratio=2.0))
    assert feed(records, parse("tp=2,dp=2,pp=2")).attributed == [("rank", [1], "compute")]


@pytest.mark.parametrize("layout", [{"dp": 4}, {"tp": 2, "dp": 4}], ids=str)
def test_iterations_are_found_on_the_way(layout: dict[str, int]) -> None:
    """The iterations then begin with a call, and not all ranks need to cut at the same one."""

    def untold(record: Record) -> Record | None:
        return None if isinstance(record, Iters) else record

    def executions(record: Record) -> Record | None:
        called = isinstance(record, Calls) and not record.flags[0] & FLAG_EXEC
        return None if called else untold(record)

    for alter in (untold, executions):
        made = run(alter, **layout, fault="compute", rank=3, ratio=2.0, iters=60)
        assert made.attributed == [("rank", [3], "compute")]
        assert made.said[0].ratio == pytest.approx(2.0, rel=0.15)
    assert not run(untold, **layout, iters=60).attributed


def test_sends_and_receives_without_durations() -> None:
    """Gloo's are not timed: the times of entry tell who waited, on hosts whose clocks are seconds apart."""

    def untimed(record: Record) -> Record:
        if isinstance(record, Calls) and len(record.flags) and record.flags[0] & FLAG_EXEC:
            keep = ~np.isin(record.op, (9, 10))
            for name in ("t_ns", "op", "dtype", "flags", "peer", "comm", "bytes", "seq", "dur_ns"):
                setattr(record, name, getattr(record, name)[keep])
        return record

    layout = {"tp": 2, "dp": 2, "pp": 4, "clock_ms": 3_000.0}
    made = run(untimed, **layout, ranks_per_host=16, fault="compute", rank=9, ratio=1.8)
    assert made.attributed == [("rank", [9], "compute")]
    assert made.said[0].ratio == pytest.approx(1.8, rel=0.1)
    assert not run(untimed, **layout, ranks_per_host=4).attributed
    # Between hosts what a rank receives takes time, which cannot be told from its work.
    made = run(untimed, **layout, ranks_per_host=4, fault="compute", rank=9, ratio=1.8)
    [suspect] = [s for s in made.said if s.what == "rank"]
    assert (suspect.ranks, suspect.verdict) == ([9], "inconclusive")
    assert "is not timed" in suspect.text


class Stretches:
    """Executions are timed from the middle of iteration 8 to the middle of 14, and again from the middle of 24 on."""

    def __init__(self) -> None:
        self.iteration = 0

    def __call__(self, record: Record) -> Record | None:
        if isinstance(record, Iters):
            self.iteration = int(record.index[-1]) + (record.rank == self.last)
        if isinstance(record, Job):
            self.last = max(item["rank"] for item in record.ranks)
        if not isinstance(record, Calls) or not record.flags[0] & FLAG_EXEC:
            return record
        half = len(record.t_ns) // 2
        if self.iteration in (8, 24, 14):
            some = slice(0, half) if self.iteration == 14 else slice(half, None)
            for name in ("t_ns", "op", "dtype", "flags", "peer", "comm", "bytes", "seq", "dur_ns"):
                setattr(record, name, getattr(record, name)[some])
            return record
        return record if 8 < self.iteration < 14 or self.iteration > 24 else None


@pytest.mark.parametrize("layout", [{"dp": 4}, {"dp": 2, "tp": 2}, {"pp": 4, "dp": 1}], ids=str)
def test_executions_that_are_timed_in_stretches(layout: dict[str, int]) -> None:
    made = run(Stretches(), **layout, fault="compute", rank=2, ratio=1.8, at=20, change=True, iters=45)
    assert made.attributed == [("rank", [2], "compute")]
    assert made.at[0] <= 30
    assert made.stage is not None
    profiler = made.stage.profiler
    assert profiler.durations.numbers().tolist() == [*range(9, 14), *range(25, 45)]
    assert profiler.arrivals.numbers().tolist() == [*range(9), *range(14, 25)]
    assert not run(Stretches(), **layout, iters=45).attributed


def test_a_stretch_with_durations_is_compared_with_healthy_ones_only() -> None:
    """The past of the second slow time is not the first one."""
    slow = {"pp": 4, "dp": 1, "fault": "compute", "rank": 2, "ratio": 1.8, "at": 20, "change": True}
    records = list(job(ProfileSpec(**slow, iters=90)))
    relief = Change(type="relief", stage="confirmed", level="job", episode=1, verdict="recovered")
    begins = {int(r.index[0]): int(r.t_ns[0]) for r in records if isinstance(r, Iters) and r.rank == 0}
    relief.onset_t_ns = begins[60]
    again = Change(type="onset", stage="confirmed", level="job", episode=2, before_ns=1, after_ns=2)
    again.onset_t_ns = begins[70]
    at = {
        number: next(n for n, r in enumerate(records) if isinstance(r, Iters) and r.index[0] == number)
        for number in (65, 74)
    }
    made = feed([*records[: at[65]], relief, *records[at[65] : at[74]], again, *records[at[74] :]])
    assert [s.evidence["episode"] for s in made.said if s.verdict == "attributed"] == [1, 2]


# -- what is missing -----------------------------------------------------------------------------------


def test_a_missing_rank_is_missing_and_not_fast() -> None:
    made = run(
        lambda r: None if getattr(r, "rank", -1) == 2 and not isinstance(r, Comm) else r, dp=4, fault="compute", rank=2
    )
    assert not made.attributed
    assert made.said[-1].verdict == "inconclusive"
    assert "no data of rank 2" in made.said[-1].text
    assert made.said[-1].evidence["missing_ranks"] == [2]


def test_a_rank_that_stops_reporting() -> None:
    def stop(record: Record) -> Record | None:
        if isinstance(record, Iters | Calls) and record.rank == 3:
            seen[0] += 1
            return record if seen[0] < 60 else None
        return record

    seen = [0]
    made = run(stop, dp=8, fault="compute", rank=1, ratio=2.0, iters=80)
    assert made.attributed == [("rank", [1], "compute")]
    assert made.at[0] <= 45


def test_lost_calls_cost_their_iteration_only() -> None:
    rng = np.random.default_rng(3)

    def lose(record: Record) -> Record:
        if isinstance(record, Calls) and len(record.t_ns) and rng.random() < 0.1:
            keep = rng.random(len(record.t_ns)) < 0.8
            for name in ("t_ns", "op", "dtype", "flags", "peer", "comm", "bytes", "seq", "dur_ns"):
                setattr(record, name, getattr(record, name)[keep])
        return record

    made = run(lose, tp=2, dp=2, fault="compute", rank=1, ratio=1.8, iters=60)
    assert made.attributed == [("rank", [1], "compute")]
    assert made.stage is not None and made.stage.profiler.dropped.unmatched > 0


def test_durations_that_cannot_be_trusted_are_not_used() -> None:
    def spoil(record: Record) -> Record:
        if isinstance(record, Calls) and len(record.flags) and record.flags[0] & FLAG_EXEC:
            how = int(record.seq[0]) % 3
            record.dur_ns, record.flags = record.dur_ns.copy(), record.flags.copy()
            if how == 0:
                record.flags |= FLAG_DUR_INVALID
            elif how == 1:
                record.dur_ns[:] = -5
            else:
                record.dur_ns[:] = 1 << 62
        return record

    made = run(spoil, dp=4, fault="compute", rank=2)
    assert "no durations" in made.said[0].evidence["confidence"]  # what is left are the times of entry
    assert made.stage is not None and made.stage.profiler.dropped.invalid > 0


def test_too_few_iterations() -> None:
    made = run(dp=4, fault="compute", rank=2, iters=2)
    assert [(s.what, s.verdict) for s in made.said] == [("none", "inconclusive")]


def test_an_empty_job() -> None:
    made = feed([Head(), Job(job="x")])
    assert [(s.verdict, s.what) for s in made.said] == [("inconclusive", "none")]
    assert "no calls" in made.said[0].text


def test_hostile_numbers() -> None:
    n = 4
    i8 = np.array([-1, 1 << 62, -(1 << 63), 0], "<i8")
    calls = {
        "op": np.array([1, 9, 255, 10], "u1"), "dtype": np.zeros(n, "u1"), "flags": np.full(n, FLAG_EXEC, "<u2"),
        "peer": np.array([-1, 1 << 30, -5, 7], "<i4"), "comm": np.array([0, (1 << 64) - 1, 1, 2], "<u8"),
        "bytes": i8, "seq": i8, "dur_ns": np.array([5, 5, 5, 5], "<i8"),
    }  # fmt: skip
    records: list[Record] = [Head(), Comm(comm=(1 << 64) - 1, rank=-7, comm_rank=1 << 40, size=-3, ranks=[-1, 5, 5])]
    records += [Job(world_size=1 << 60, ranks=[{"rank": 1 << 50}, {"rank": "x"}, {}, {"rank": 1, "host": 7}])]
    for rank in (-1, 0, 1, 1 << 40):
        records.append(Calls(rank=rank, t_ns=i8, **calls))
        index = np.array([0, 1 << 62, -(1 << 62), 7], "<i8")
        records.append(
            Iters(rank=rank, index=index, t_ns=i8, dur_ns=i8, phase=np.zeros(n, "u1"), calls=np.zeros(n, "<i4"), seq=i8)
        )
    made = feed(records)
    assert not made.attributed
    assert len(made.said) == 1


# -- onsets --------------------------------------------------------------------------------------------


def test_a_withdrawn_suspicion_clears_whom_it_named() -> None:
    records = list(job(ProfileSpec(dp=4, fault="compute", rank=2, ratio=2.0, at=20, change=True, iters=40)))
    confirmed = next(r for r in records if isinstance(r, Change))
    withdrawn = Change(type="onset", stage="withdrawn", level="job", said_t_ns=confirmed.said_t_ns)
    made = feed([*records, withdrawn])
    assert [(s.verdict, s.ranks) for s in made.said[:2]] == [("attributed", [2]), ("cleared", [2])]


def test_an_episode_that_is_over_is_not_judged_again() -> None:
    slow = list(job(ProfileSpec(dp=4, fault="compute", rank=2, ratio=2.0, at=20, change=True, iters=50)))
    relief = Change(type="relief", stage="confirmed", level="job", episode=1, verdict="recovered", onset_t_ns=1 << 62)
    made = feed([*slow, relief])
    assert made.attributed == [("rank", [2], "compute")]
    assert len(made.said) == 1


def test_planned_changes_start_nothing() -> None:
    records = list(job(ProfileSpec(dp=4, iters=15)))
    planned = Change(
        type="onset", stage="confirmed", level="job", verdict="planned", onset_t_ns=1, after_ns=2, before_ns=1
    )
    made = feed([*records, planned])
    assert [(s.verdict, "episode" in s.evidence) for s in made.said] == [("cleared", False)]


# -- arrivals only ---------------------------------------------------------------------------------------


def test_a_late_rank_from_arrivals_alone() -> None:
    made = run(dp=4, durations=False, fault="compute", rank=2, ratio=2.0)
    assert made.attributed == [("rank", [2], "compute")]
    assert "no durations" in made.said[0].evidence["confidence"]


def test_two_ranks_cannot_be_told_from_arrivals_alone() -> None:
    made = run(dp=2, durations=False, fault="compute", rank=1, ratio=2.0)
    assert not made.attributed
    assert "arrivals alone" in made.said[-1].text


def test_spread_arrivals_name_nobody() -> None:
    """Measured on four gloo ranks under a slow link 1->0: they enter 10.8, 5.2, 0 and 0.1 ms after the first."""
    made = feed(_arrivals([10.8, 5.2, 0.0, 0.1], iters=30))
    assert not made.attributed
    clustered = feed(_arrivals([0.0, 0.27, 40.3, 0.27], iters=30))  # the same ranks, rank 2 slow
    assert clustered.attributed == [("rank", [2], "compute")]


def _arrivals(late_ms: list[float], iters: int) -> list[Record]:
    rng = np.random.default_rng(0)
    records: list[Record] = [Head()]
    records += [Comm(comm=5, rank=r, comm_rank=r, size=4, ranks=[0, 1, 2, 3]) for r in range(4)]
    records += [Job(ranks=[{"rank": r, "host": "a"} for r in range(4)])]
    for i in range(iters):
        for rank, late in enumerate(late_ms):
            t = np.array([round(1e6 * (100 * i + 20 + late + 0.05 * rng.standard_normal()))], "<i8")
            zeros = np.zeros(1, "u1")
            records.append(
                Calls(
                    rank=rank, t_ns=t, op=np.ones(1, "u1"), dtype=zeros, flags=np.zeros(1, "<u2"),
                    peer=np.full(1, -1, "<i4"), comm=np.full(1, 5, "<u8"), bytes=np.full(1, 1 << 20, "<i8"),
                    seq=np.array([i]), dur_ns=np.full(1, -1),
                )
            )  # fmt: skip
            records.append(
                Iters(
                    rank=rank, index=np.array([i]), t_ns=np.array([100_000_000 * i]), dur_ns=np.array([100_000_000]),
                    phase=zeros, calls=np.ones(1, "<i4"), seq=np.array([i]),
                )
            )  # fmt: skip
    return records
