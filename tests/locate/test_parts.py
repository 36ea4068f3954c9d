# SPDX-License-Identifier: Apache-2.0
"""The small parts of gh-profile: lower medians, alignment, buffers, groups, comparison of transfers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.locate.align import offset
from ghtools.locate.case import plain
from ghtools.locate.collect import Bounds, Dropped, RankBuffer
from ghtools.locate.compare import Slow, common_part, slow_groups
from ghtools.locate.groups import Groups, Key
from ghtools.locate.history import RankIters, Window
from ghtools.locate.lateness import others_low_median
from ghtools.locate.match import Members, Transfers
from ghtools.stream.records import FLAG_CAPTURE, FLAG_EXEC, Calls, Comm, Iters, Job


@given(st.lists(st.lists(st.floats(0, 100) | st.just(float("nan")), min_size=1, max_size=7), min_size=1, max_size=4))
def test_lower_median_of_the_others(rows: list[list[float]]) -> None:
    width = max(map(len, rows))
    values = np.array([row + [float("nan")] * (width - len(row)) for row in rows])
    made = others_low_median(values)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            others = sorted(v for k, v in enumerate(row) if k != j and np.isfinite(v))
            if np.isfinite(value) and others:
                assert made[i, j] == others[(len(others) - 1) // 2]
            else:
                assert np.isnan(made[i, j])


# -- alignment -----------------------------------------------------------------------------------------


def bounds(dur_ns: np.ndarray, first_index: int = 0, begin_ns: int = 0) -> Bounds:
    t = begin_ns + np.concatenate(([0], np.cumsum(dur_ns)))[:-1]
    n = len(dur_ns)
    return Bounds(np.arange(first_index, first_index + n), t, dur_ns, np.zeros(n, np.uint8), np.full(n, -1))


def jitter(n: int = 40) -> np.ndarray:
    return np.rint(1e8 * np.exp(0.05 * np.random.default_rng(4).standard_normal(n))).astype(np.int64)


def test_ranks_of_one_host_that_began_to_count_at_different_times() -> None:
    dur = jitter()
    late = bounds(dur[7:], begin_ns=int(dur[:7].sum()) + 30_000)
    assert offset(late, bounds(dur), one_clock=True) == 7


def test_clocks_of_two_hosts_that_differ_by_more_than_an_iteration() -> None:
    dur = jitter()
    noise = np.random.default_rng(5).integers(-100_000, 100_000, len(dur))
    other = bounds(dur + noise, begin_ns=260_000_000)
    assert offset(other, bounds(dur), one_clock=False) == 0
    assert offset(bounds(dur[3:] + noise[3:], begin_ns=9 * 10**9), bounds(dur), one_clock=False) == 3


def test_without_jitter_the_clocks_decide() -> None:
    dur = np.full(30, 10**8)
    assert offset(bounds(dur, begin_ns=2 * 10**8), bounds(dur), one_clock=False) == 2


def test_nothing_in_common_keeps_the_numbers() -> None:
    dur = np.full(3, 10**8)
    assert offset(bounds(dur, begin_ns=10**12), bounds(dur), one_clock=True) == 0
    assert offset(bounds(dur[:0]), bounds(dur), one_clock=True) == 0


# -- buffers -------------------------------------------------------------------------------------------


def calls(t: list[int], flags: int = 0, dur: int = -1, incarnation: int = 0) -> Calls:
    n = len(t)
    return Calls(
        rank=0, incarnation=incarnation, t_ns=np.array(t, "<i8"), op=np.ones(n, "u1"), dtype=np.zeros(n, "u1"),
        flags=np.full(n, flags, "<u2"), peer=np.full(n, -1, "<i4"), comm=np.ones(n, "<u8"),
        bytes=np.full(n, 8, "<i8"), seq=np.array(t, "<i8"), dur_ns=np.full(n, dur, "<i8"),
    )  # fmt: skip


def test_executions_get_the_entry_of_their_call() -> None:
    buffer, dropped = RankBuffer(0), Dropped()
    buffer.add(calls([10, 20, 30]), dropped)
    executed = calls([10, 20, 30], FLAG_EXEC, dur=5)
    executed.t_ns = executed.t_ns + 4
    buffer.add(executed, dropped)
    rows = buffer.executions()
    assert rows.entry.tolist() == [10, 20, 30]
    assert rows.start.tolist() == [14, 24, 34]
    assert buffer.executions(on_device=True).entry.tolist() == [14, 24, 34]


def test_an_imported_trace_has_durations_and_no_executions() -> None:
    buffer = RankBuffer(0)
    buffer.add(calls([10, 20], dur=3), Dropped())
    assert buffer.seen_exec
    assert buffer.executions().dur.tolist() == [3, 3]


def test_captured_calls_do_not_count() -> None:
    buffer, dropped = RankBuffer(0), Dropped()
    buffer.add(calls([10, 20], FLAG_CAPTURE), dropped)
    assert dropped.captured == 2
    assert not buffer.rows


def test_a_restart_begins_anew() -> None:
    buffer = RankBuffer(0)
    buffer.add(calls([10, 20]), Dropped())
    buffer.add(calls([1], incarnation=1), Dropped())
    assert buffer.executions().seq.tolist() == [1]


def test_what_is_used_up_is_let_go_but_for_one_row() -> None:
    buffer = RankBuffer(0)
    buffer.add(calls([10, 20, 30, 40], FLAG_EXEC, dur=1), Dropped())
    n = np.zeros(2, "<i4")
    buffer.bound(Iters(index=np.array([0, 1]), t_ns=np.array([0, 30]), dur_ns=np.array([30, 20]), phase=n.astype("u1"), calls=n, seq=np.array([10, 30])))  # fmt: skip  # noqa: E501
    buffer.used(1, 30, 30)
    assert buffer.executions().seq.tolist() == [30, 40]
    assert buffer.bounds().index.tolist() == [1]


# -- groups --------------------------------------------------------------------------------------------


def test_members_are_learnt_bit_by_bit() -> None:
    groups = Groups()
    groups.comm(Comm(comm=7, rank=4, comm_rank=1, size=2))
    assert groups.group(groups.number(7)).members == (4,)
    assert groups.of_peer(7, 0) == -1
    groups.comm(Comm(comm=7, rank=2, comm_rank=0, size=2, name="dp"))
    group = groups.group(groups.number(7))
    assert (group.members, group.size, group.name) == ((2, 4), 2, "dp")
    assert groups.of_peer(7, 1) == 4


def test_kind_of_link_needs_all_hosts() -> None:
    groups = Groups()
    groups.job(Job(ranks=[{"rank": 0, "host": "a"}, {"rank": 1, "host": "a"}, {"rank": 2, "host": "b"}]))
    assert groups.link((0, 1)) == "local"
    assert groups.link((0, 2)) == "network"
    assert groups.link((0, 3)) == "unknown"


# -- transfers -----------------------------------------------------------------------------------------


def window(groups: Groups, times: dict[tuple[int, ...], float], noise: float = 0.01, iters: int = 10) -> Window:
    """Groups by members with the time of one transfer an iteration, ns."""
    rng = np.random.default_rng(0)
    it, number, time = [], [], []
    for members, value in times.items():
        comm = hash(members) & 0xFFFF
        groups.comm(Comm(comm=comm, rank=members[0], comm_rank=0, size=len(members), ranks=list(members)))
        for i in range(iters):
            it.append(i)
            number.append(groups.number(comm))
            time.append(value * np.exp(noise * rng.standard_normal()))
    n = len(it)
    i8, f8 = np.empty(0, np.int64), np.empty(0)
    whole = np.array([groups.group(g).size for g in number])
    transfers = Transfers(
        np.array(it), np.array(number), np.zeros(n, np.int64), np.array(time), np.ones(n, np.int64), whole
    )
    return Window(RankIters(i8, i8, i8, f8, f8, f8, i8), Members(i8, i8, i8, f8, f8, f8, i8), transfers)


KEYS = [Key(1, 1024)]


def slow_ones(
    times: dict[tuple[int, ...], float], before: dict[tuple[int, ...], float] | None = None
) -> list[tuple[int, ...]]:
    groups = Groups()
    past = window(groups, before) if before else None
    now = window(groups, times)
    return [groups.group(s.group).members for s in slow_groups(now, past, groups, KEYS, iter_ns=1000.0)]


def test_two_groups_of_which_one_is_slow() -> None:
    """The paper's rule needs 1.22 here, since the median of two is their mean."""
    assert slow_ones({(0, 1): 100.0, (2, 3): 125.0}) == [(2, 3)]


def test_two_slow_groups_of_four() -> None:
    assert sorted(slow_ones({(0, 1): 100.0, (2, 3): 101.0, (4, 5): 160.0, (6, 7): 170.0})) == [(4, 5), (6, 7)]


def test_under_ten_per_cent_is_healthy() -> None:
    assert slow_ones({(0, 1): 300.0, (2, 3): 325.0}) == []


def test_a_loss_that_is_no_part_of_the_iteration_is_not_worth_a_name() -> None:
    assert slow_ones({(0, 1): 1.0, (2, 3): 3.0}) == []


def test_groups_of_another_size_are_not_compared() -> None:
    assert slow_ones({(0, 1): 100.0, (2, 3, 4): 300.0}) == []


def test_one_group_against_its_past() -> None:
    assert slow_ones({(0, 1, 2): 300.0}, {(0, 1, 2): 100.0}) == [(0, 1, 2)]
    assert slow_ones({(0, 1, 2): 300.0}, {(0, 1, 2): 299.0}) == []


def test_a_group_with_a_member_that_gave_no_data_is_left_out() -> None:
    groups = Groups()
    now = window(groups, {(0, 1): 100.0, (2, 3): 300.0})
    now.transfers.members[now.transfers.group == now.transfers.group.max()] = 1
    assert slow_groups(now, None, groups, KEYS, iter_ns=1000.0) == []


def _slow(groups: Groups, *members: tuple[int, ...]) -> list[Slow]:
    made = []
    for ranks in members:
        comm = hash(ranks) & 0xFFFF
        groups.comm(Comm(comm=comm, rank=ranks[0], comm_rank=0, size=len(ranks), ranks=list(ranks)))
        made.append(Slow(groups.number(comm), 0, 2.0, 0.1, 2.0, 1.0, "peers", 3))
    return made


@pytest.mark.parametrize(
    ("slow", "sound", "what", "ranks"),
    [
        ([(0, 1)], [(2, 3)], "link", [0, 1]),
        ([(0, 1, 2)], [], "group", [0, 1, 2]),
        ([(0, 1), (0, 2)], [(1, 2)], "rank", [0]),
        ([(0, 1), (2, 3)], [], "group", [0, 1, 2, 3]),
        ([(0, 1), (0, 1, 2)], [], "group", [0, 1, 2]),
    ],
)
def test_what_slow_groups_have_in_common(
    slow: list[tuple[int, ...]], sound: list[tuple[int, ...]], what: str, ranks: list[int]
) -> None:
    groups = Groups()
    found = _slow(groups, *slow)
    healthy = [s.group for s in _slow(groups, *sound)]
    assert common_part(found, groups, healthy)[:2] == (what, ranks)


def test_the_host_whose_every_link_is_slow() -> None:
    groups = Groups()
    groups.job(Job(ranks=[{"rank": r, "host": f"h{r // 2}"} for r in range(8)]))
    # two ranks a host; h1 holds 2 and 3
    found = _slow(groups, (0, 2), (3, 5), (2, 6))
    healthy = [s.group for s in _slow(groups, (0, 4), (1, 7))]
    assert common_part(found, groups, healthy) == ("host", [2, 3], ["h1"])
    alone = Groups()
    alone.job(Job(ranks=[{"rank": r, "host": f"h{r}"} for r in range(4)]))
    found = _slow(alone, (0, 1), (1, 3))
    healthy = [s.group for s in _slow(alone, (0, 2), (2, 3))]
    assert common_part(found, alone, healthy) == ("host", [1], ["h1"])


def test_evidence_is_plain() -> None:
    made = plain({"a": np.float64(1 / 3), "b": [np.int64(3), float("nan")], 4: np.bool_(True), "c": "x"})
    assert made == {"a": 0.333333, "b": [3, None], "4": True, "c": "x"}
    assert type(made["b"][0]) is int
