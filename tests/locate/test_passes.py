# SPDX-License-Identifier: Apache-2.0
"""Pass schedules: disjoint pairs, every link exactly once, and no more passes as ranks grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.locate.passes import (
    PATTERNS,
    Schedule,
    btree,
    chain,
    check,
    distinct,
    double_tree,
    one_after_the_other,
    renamed,
    ring,
    second_btree,
    tree,
    tree_links,
    tree_over_hosts,
    union,
)


def links(*pairs: tuple[int, int]) -> Any:
    return np.array(pairs, np.int64).reshape(-1, 2)


def ring_links(n: int) -> Any:
    at = np.arange(n)
    return np.stack([at, (at + 1) % n], axis=1)


def both_trees(n: int) -> Any:
    return np.concatenate([tree_links(btree(n)), tree_links(second_btree(n))])


def naive_check(schedule: Schedule, wanted: Any) -> bool:
    """The obvious version of `check`."""
    seen: dict[frozenset[int], int] = {}
    for number in range(schedule.passes):
        ranks: set[int] = set()
        for a, b in schedule.in_pass(number):
            if a == b or a in ranks or b in ranks:
                return False
            ranks |= {a, b}
            seen[frozenset((a, b))] = seen.get(frozenset((a, b)), 0) + 1
    return seen == {frozenset(map(int, pair)): 1 for pair in wanted}


def prove(ranks: range) -> None:
    """Ring 2 passes (odd 3), one tree 3, both trees 4 at most, each a set of disjoint pairs that cover every link."""
    for n in ranks:
        made = ring(n)
        check(made, ring_links(n))
        assert made.passes == (1 if n == 2 else 2 + n % 2)
        for parent in (btree(n), second_btree(n)):
            made = tree(parent)
            check(made, tree_links(parent))
            assert made.passes <= 3
        made = double_tree(n)
        check(made, both_trees(n))
        assert made.passes <= 4


def test_every_number_of_ranks_to_600() -> None:
    prove(range(2, 601))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(601, 4097, 500))
def test_every_number_of_ranks_to_4096(first: int) -> None:
    prove(range(first, min(first + 500, 4097)))


@pytest.mark.parametrize("n", [4096, 10_007, 16_384, 65_535, 100_000, 100_001, 100_002, 131_071])
def test_large(n: int) -> None:
    made = double_tree(n)
    check(made, both_trees(n))
    assert (made.passes, ring(n).passes, tree(btree(n)).passes) == (4, 2 + n % 2, 3)
    check(ring(n), ring_links(n))


def test_check_agrees_with_the_obvious_version() -> None:
    for n in range(2, 40):
        for made, wanted in (
            (ring(n), ring_links(n)),
            (double_tree(n), both_trees(n)),
            (tree(btree(n)), tree_links(btree(n))),
        ):
            assert naive_check(made, wanted)
            check(made, wanted)


@pytest.mark.parametrize(
    ("pairs", "step", "wanted", "why"),
    [
        ([(0, 1), (1, 2)], [0, 0], [(0, 1), (1, 2)], "in two pairs"),
        ([(0, 1)], [0], [(0, 1), (1, 2)], "left out"),
        ([(0, 1), (1, 0)], [0, 1], [(0, 1)], "tested twice"),
        ([(0, 1), (2, 3)], [0, 0], [(0, 1), (1, 3)], "left out"),
        ([(0, 0)], [0], [(0, 1)], "linked to itself"),
        ([(0, 1)], [-1], [(0, 1)], "without a pass"),
    ],
)
def test_check_finds_what_is_wrong(pairs: list[Any], step: list[int], wanted: list[Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check(Schedule(links(*pairs), np.array(step, np.int64)), links(*wanted))


def test_nobody_and_one() -> None:
    for n in (0, 1):
        for made in (ring(n), chain(n), double_tree(n), tree(btree(n))):
            assert made.passes == len(made.links) == 0
            check(made, links())


def get_btree(n: int, rank: int) -> tuple[int, int, int]:
    """Up, first and second child: NCCL's trees.cc told in other words (its comment's picture, and its loops)."""
    bit = 1
    while bit < n and not rank & bit:
        bit *= 2
    if rank == 0:
        return -1, -1, bit // 2 if n > 1 else -1
    up = (rank ^ bit) | (bit * 2)
    step = bit // 2
    first = rank - step if step else -1
    second = rank + step if step else -1
    while second >= n:
        second = rank + step if step else -1
        step //= 2
    return up if up < n else rank ^ bit, first, second


@pytest.mark.parametrize("n", [*range(2, 140), 512, 1000, 1023])
def test_the_tree_is_nccls(n: int) -> None:
    parent = btree(n)
    for rank in range(n):
        up, first, second = get_btree(n, rank)
        assert parent[rank] == up
        assert set(np.flatnonzero(parent == rank)) == {first, second} - {-1}


def test_the_pictures_of_trees_cc() -> None:
    assert btree(14).tolist() == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    assert second_btree(12).tolist() == [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, -1]

    shifted = [(-1 if up < 0 else (up + 1) % 13) for up in btree(13)]
    assert second_btree(13).tolist() == [shifted[(rank - 1) % 13] for rank in range(13)]


def test_double_tree_shares_links() -> None:
    """floor(N/4) pairs are in both trees (ALGORITHMS.md section 6) and are tested once."""
    for n in range(4, 400):
        assert 2 * (n - 1) - len(double_tree(n).links) == n // 4


@given(st.integers(0, 200).flatmap(lambda n: st.tuples(*[st.integers(-1, max(i - 1, -1)) for i in range(n)])))
@settings(max_examples=150, deadline=None)
def test_any_tree_takes_as_many_passes_as_its_busiest_rank(parents: tuple[int, ...]) -> None:
    parent = np.array(parents, np.int64)
    made = tree(parent)
    wanted = tree_links(parent)
    check(made, wanted)
    assert made.passes == (np.bincount(wanted.ravel()).max() if len(wanted) else 0)


def test_what_is_no_tree_is_refused() -> None:
    for bad in ([1, 2, 0], [0], [-2], [3], [-1, 2, 1]):
        with pytest.raises(ValueError):
            tree(np.array(bad, np.int64))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("per_host", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 33, 128])
def test_trees_over_hosts(pattern: str, per_host: int, count: int) -> None:
    """The passes of ALGORITHMS.md's table: 3 for NCCL's default, 4 at most for the other patterns."""
    hosts = [list(range(i * per_host, (i + 1) * per_host)) for i in range(count)]
    ranks = count * per_host
    parent = tree_over_hosts(hosts, btree(count), ranks, pattern)
    assert (parent < 0).sum() == 1
    made = tree(parent)
    check(made, tree_links(parent))
    assert made.passes <= (3 if pattern == "balanced" or per_host == 1 else 4)
    other = tree_over_hosts(hosts, second_btree(count), ranks, pattern)
    wanted = np.concatenate([tree_links(parent), tree_links(other)])
    both = union(wanted, ranks)
    check(both, wanted)
    assert both.passes <= int(np.bincount(distinct(wanted).ravel(), minlength=ranks).max(initial=0)) + 1


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(ValueError):
        tree_over_hosts([[0]], btree(1), 1, "star")


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda pair: pair[0] != pair[1]), max_size=200)
)
@settings(max_examples=100, deadline=None)
def test_any_links(pairs: list[tuple[int, int]]) -> None:
    wanted = links(*pairs)
    made = union(wanted, 31, budget_s=0.2)
    check(made, wanted)
    assert made.passes <= 2 * (int(np.bincount(wanted.ravel()).max()) if pairs else 0)


def test_without_time_the_passes_are_still_sound() -> None:
    wanted = both_trees(1000)
    made = union(wanted, 1000, budget_s=0.0)
    check(made, wanted)
    assert made.passes <= 7


def test_complete_graphs_take_what_a_tournament_takes() -> None:
    for n in (4, 6, 8):
        wanted = links(*[(a, b) for a in range(n) for b in range(a)])
        assert union(wanted, n).passes in (n - 1, n)


def test_ring_and_tree_one_after_the_other() -> None:
    for n in (2, 3, 5, 15, 16, 100):
        made = one_after_the_other([ring(n), double_tree(n)])
        check(made, np.concatenate([ring_links(n), both_trees(n)]))
        assert made.passes <= 2 + n % 2 + 4


def test_renamed() -> None:
    made = renamed(ring(4), [3, 9, 20, 7])
    check(made, links((3, 9), (9, 20), (20, 7), (7, 3)))
