# SPDX-License-Identifier: Apache-2.0
"""Transfer and waiting, against the obvious way to compute them."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.locate.match import LEAST, Flat, reduce


def flat(rows: list[tuple[int, int, int, int, float]]) -> Flat:
    """(rank, iteration, group, key, duration), rank by rank."""
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 5
    return Flat(*(np.array(column, np.int64) for column in columns[:4]), np.array(columns[4], float))


Three = tuple[int, int, int]


def naive(
    rows: list[tuple[int, int, int, int, float]],
) -> tuple[dict[Three, list[float]], dict[Three, float]]:
    """Waiting, last and spread by (iteration, group, rank), and mean transfer by (iteration, group, key)."""
    blocks: dict[tuple[int, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank, it, group, key, dur in rows:
        blocks[it, group, key][rank].append(dur)
    members: dict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0])
    transfers = {}
    for (it, group, key), by_rank in blocks.items():
        counts = {len(durs) for durs in by_rank.values()}
        if len(counts) != 1 or len(by_rank) < 2:
            continue
        least = []
        for nth in range(counts.pop()):
            durs = {rank: by_rank[rank][nth] for rank in by_rank}
            low = min(durs.values())
            spread = max(durs.values()) - low
            least.append(low)
            for rank, dur in durs.items():
                mine = members[it, group, rank]
                mine[0] += dur - low
                mine[1] += spread if dur - low <= LEAST * spread else 0.0
                mine[2] += spread
                mine[3] += 1
        transfers[it, group, key] = sum(least) / len(least)
    return members, transfers


ROWS = st.lists(
    st.tuples(
        st.integers(0, 4), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.integers(0, 1000).map(float)
    ),
    max_size=60,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))  # fmt: skip


@given(ROWS)
def test_agrees_with_the_obvious_way(rows: list[tuple[int, int, int, int, float]]) -> None:
    made = reduce(flat(rows))
    members, transfers = naive(rows)
    m, t = made.members, made.transfers
    got = {
        (int(m.it[i]), int(m.group[i]), int(m.rank[i])): [m.wait[i], m.last[i], m.spread[i], m.n[i]]
        for i in range(len(m.it))
    }
    assert got.keys() == members.keys()
    for key, values in members.items():
        assert got[key] == pytest.approx(values)
    times = {(int(t.it[i]), int(t.group[i]), int(t.key[i])): t.time[i] for i in range(len(t.it))}
    assert times == pytest.approx(transfers)
    assert len(made.wait) == len(rows)


def test_the_last_to_come_waits_least() -> None:
    made = reduce(flat([(0, 0, 0, 0, 50.0), (1, 0, 0, 0, 5.0), (2, 0, 0, 0, 48.0)]))
    assert made.transfers.time.tolist() == [5.0]
    assert made.members.wait.tolist() == [45.0, 0.0, 43.0]
    assert made.members.last.tolist() == [0.0, 45.0, 0.0]


def test_members_that_disagree_about_how_many_are_not_matched() -> None:
    made = reduce(flat([(0, 0, 0, 0, 5.0), (0, 0, 0, 0, 5.0), (1, 0, 0, 0, 5.0)]))
    assert not len(made.members.it)
    assert made.unmatched == 3
    assert np.isnan(made.wait).all()


def test_a_lone_member_tells_nothing() -> None:
    made = reduce(flat([(0, 0, 0, 0, 5.0)]))
    assert not len(made.members.it)
    assert made.unmatched == 0


def test_arrivals_wait_for_the_last() -> None:
    # entered at 10, 40 and 12: given as minus the time of entry
    made = reduce(flat([(0, 0, 0, 0, -10.0), (1, 0, 0, 0, -40.0), (2, 0, 0, 0, -12.0)]), arrivals=True)
    assert made.members.wait.tolist() == [30.0, 0.0, 28.0]
    assert made.transfers.time.tolist() == [0.0]


def test_large_numbers_of_groups_and_keys_stay_apart() -> None:
    top_group, top_key = (1 << 18) - 1, (1 << 20) - 1
    cells = product((0, 1), (0, 63), (0, top_group), (0, top_key))
    rows = [(rank, it, group, key, 1.0) for rank, it, group, key in cells]
    made = reduce(flat(rows))
    assert sorted(set(made.transfers.group.tolist())) == [0, top_group]
    assert sorted(set(made.transfers.key.tolist())) == [0, top_key]
    assert len(made.transfers.it) == 8
    assert sorted(set(made.members.group.tolist())) == [0, top_group]
