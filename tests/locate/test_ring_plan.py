# SPDX-License-Identifier: Apache-2.0
"""Which links are tested, by topology and hosts; sizes, interfaces, and where launched ranks meet."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.locate.passes import btree, check, second_btree, tree_links, tree_over_hosts
from ghtools.locate.ring_plan import parse_sizes, parse_where, plan
from ghtools.locate.torch_group import _meeting_place
from ghtools.stream.errors import GhError

RANKS = [3, 4, 7, 8, 20, 21]


def test_a_ring_goes_through_the_ranks_that_are_named() -> None:
    schedule, how = plan(RANKS, {}, "ring")
    check(schedule, np.array(list(zip(RANKS, [*RANKS[1:], RANKS[0]], strict=True))))
    assert schedule.passes == 2
    assert how == "a ring in the order of ranks, computed"


def test_on_one_host_each_rank_is_a_node_of_the_tree() -> None:
    schedule, how = plan(range(6), dict.fromkeys(range(6), "a"), "tree")
    check(schedule, np.concatenate([tree_links(btree(6)), tree_links(second_btree(6))]))
    assert "each rank as a node" in how


@pytest.mark.parametrize("count", [2, 3, 4, 9, 64])
@pytest.mark.parametrize("per_host", [1, 2, 8])
def test_over_hosts_the_tree_is_of_hosts_with_a_chain_in_each(count: int, per_host: int) -> None:
    n = count * per_host
    chains = [list(range(h * per_host, (h + 1) * per_host)) for h in range(count)]
    schedule, how = plan(range(n), {r: f"h{r // per_host}" for r in range(n)}, "tree")
    trees = [tree_links(tree_over_hosts(chains, parent(count), n)) for parent in (btree, second_btree)]
    check(schedule, np.concatenate(trees))
    assert schedule.passes <= 5
    assert f"over {count} hosts" in how


def test_both_tests_no_link_twice() -> None:
    schedule, how = plan(range(16), {}, "both")
    pairs = [frozenset(link) for link in schedule.links.tolist()]
    assert len(pairs) == len(set(pairs))
    assert schedule.passes <= 6
    assert " and " in how


@pytest.mark.parametrize(("ranks", "topology"), [([], "ring"), ([5], "tree"), ([0, 1], "star"), ([0, 1], "")])
def test_what_cannot_be_planned(ranks: list[int], topology: str) -> None:
    with pytest.raises(GhError):
        plan(ranks, {}, topology)


def test_sizes() -> None:
    assert parse_sizes("16M,32m, 64MB", 9) == (16 << 20, 32 << 20, 64 << 20)
    assert parse_sizes("1G,8,8,2K", 9) == (8, 2048, 1 << 30)
    for bad in ("", "M", "-1", "1.5M", "1T", "0", "1,,2", "9" * 30, "9999G"):
        with pytest.raises(GhError, match="cannot read the size"):
            parse_sizes(bad, 9)
    with pytest.raises(GhError, match="at most 2"):
        parse_sizes("1,2,3", 2)


def test_interfaces() -> None:
    assert parse_where("") == ""
    assert parse_where("eth0") == "eth0"
    assert parse_where("a=eth0,b=10.0.0.1") == {"a": "eth0", "b": "10.0.0.1"}
    for bad in ("a=", "=x", "a=b,c"):
        with pytest.raises(GhError, match="cannot read the interface"):
            parse_where(bad)


def test_where_launched_ranks_meet() -> None:
    assert _meeting_place({"MASTER_ADDR": "n1", "MASTER_PORT": "1234"}) == ("n1", 1234)
    for text, first in (
        ("n1", "n1"),
        ("node[03-07,9]", "node03"),
        ("a-b.c[1,5],x9", "a-b.c1"),
        ("gpu-1,gpu-2", "gpu-1"),
    ):
        address, port = _meeting_place({"SLURM_STEP_NODELIST": text, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})
        assert address == first
        assert 20000 <= port < 40000
    steps = [_meeting_place({"MASTER_ADDR": "n", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": step})[1] for step in "012"]
    assert len(set(steps)) == 3
    with pytest.raises(GhError, match="MASTER_ADDR"):
        _meeting_place({})
    for port in ("0", "70000", "x", "9" * 30):
        assert 20000 <= _meeting_place({"MASTER_ADDR": "n", "MASTER_PORT": port})[1] < 40000
