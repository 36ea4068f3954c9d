# SPDX-License-Identifier: Apache-2.0
"""Rings and trees from NCCL's log: its formats of several versions, cut rings, several communicators, hostile lines."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.locate.passes import btree, check, second_btree
from ghtools.locate.ring_plan import plan
from ghtools.source.nccl_graph import NcclGraph, read_graph
from ghtools.stream.errors import GhError, InputError


class Text:
    """Text as a byte source."""

    def __init__(self, text: str | bytes) -> None:
        self._io = io.BytesIO(text if isinstance(text, bytes) else text.encode())

    def read1(self, size: int, /) -> bytes:
        return self._io.read(min(size, 1000))


def graph(text: str | bytes, size: int = 0) -> NcclGraph:
    return read_graph(Text(text), "nccl.log", size, lambda words: None)


def pairs(links: list[tuple[int, int]]) -> set[frozenset[int]]:
    return {frozenset(link) for link in links}


def said(*lines: str, rank: int = 0) -> str:
    return "".join(f"node-{rank}:50292:50{rank:03d} [{rank}] NCCL INFO {line}\n" for line in lines)


# Two hosts with a GPU each, as NCCL 2.2x prints it (the lines and their order are from a public log).
TWO = """\
gpu-st-ml-2:49542:49542 [0] NCCL INFO comm 0x63233dc434d0 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
gpu-st-ml-1:50292:50292 [0] NCCL INFO comm 0x630259b432a0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
gpu-st-ml-2:49542:49542 [0] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] 0/-1/-1->1->-1
gpu-st-ml-1:50292:50292 [0] NCCL INFO Channel 00/02 : 0 1
gpu-st-ml-1:50292:50292 [0] NCCL INFO Channel 01/02 : 0 1
gpu-st-ml-1:50292:50292 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
"""


def test_two_hosts() -> None:
    made = graph(TWO)
    assert (made.size, made.bad) == (2, 0)
    assert pairs(made.ring_links()) == pairs(made.tree_links()) == {frozenset((0, 1))}


def test_the_tree_of_nccl_671() -> None:
    """nccl#671: 4 GPUs, rings 0 3 2 1, trees [0] 3/-1/-1->0->-1 and its like, which the maintainer explains there."""
    text = said("Channel 00/08 :    0   3   2   1", "Trees [0] 3/-1/-1->0->-1 [1] -1/-1/-1->0->3")
    text += said("Trees [0] -1/-1/-1->1->2 [1] 2/-1/-1->1->-1", rank=1)
    text += said("Trees [0] 1/-1/-1->2->3 [1] 3/-1/-1->2->1", rank=2)
    text += said("Trees [0] 2/-1/-1->3->0 [1] 0/-1/-1->3->2", rank=3)
    made = graph(text)
    assert made.ring_links() == [(0, 3), (3, 2), (2, 1), (1, 0)]
    assert pairs(made.tree_links()) == {frozenset(p) for p in ((0, 3), (2, 3), (1, 2))}
    schedule, how = plan(range(4), {}, "both", made)
    assert schedule.passes == 2  # a ring, and a chain that is part of it
    assert how == "the rings and trees that nccl.log tells"


def test_before_2_8_the_parent_came_first() -> None:
    """nccl#226, #246: 26->25->-1/-1/-1."""
    made = graph(said("Trees [0] -1->0->1/-1/-1|-1->0->1/-1/-1") + said("Trees [0] 0->1->2/-1/-1", rank=1))
    assert made.tree_links() == [(1, 0), (2, 1)]


def test_ring_lines_of_each_rank() -> None:
    """A long ring is cut on rank 0's line; GRAPH lines of all ranks have it whole."""
    n = 40
    cut = "Channel 00/02 :" + "".join(f" {rank:3d}" for rank in range(28))
    text = said(cut) + "".join(said(f"Ring 00 : {(r - 1) % n} -> {r} -> {(r + 1) % n}", rank=r) for r in range(n))
    made = graph(text)
    assert made.size == n
    assert set(made.ring_links()) == {(r, (r + 1) % n) for r in range(n)}
    some = said(cut) + "".join(said(f"Ring 00 : {(r - 1) % n} -> {r} -> {(r + 1) % n}", rank=r) for r in range(0, n, 8))
    with pytest.raises(InputError, match=r"of 25 of 40 ranks are not there"):
        graph(some, n).ring_links()


def test_graph_lines_of_a_double_tree() -> None:
    n = 21
    trees = [btree(n), second_btree(n)]
    text = "".join(
        said(
            *[
                f"Tree {c} : {parent[r]} -> {r} -> "
                + "/".join(str(x) for x in [*[k for k in range(n) if parent[k] == r], -1, -1, -1][:3])
                for c, parent in enumerate(trees)
            ],
            rank=r,
        )
        for r in range(n)
    )
    made = graph(text)
    assert pairs(made.tree_links()) == {frozenset((r, int(t[r]))) for t in trees for r in range(n) if t[r] >= 0}
    schedule, _ = plan(range(n), {}, "tree", made)
    assert schedule.passes == 4
    with pytest.raises(InputError, match="rings"):
        made.ring_links()


def test_a_connection_is_no_ring() -> None:
    """Older NCCL prints connections in nearly the same words (nccl#300)."""
    text = said(
        "Ring 00 : 3[c0] -> 0[80] via P2P/IPC",
        "Ring 00 : 34 -> 33 [send] via NET/Socket/0",
        "Channel 00/0 : 0[0] -> 1[1] via P2P",
    )
    with pytest.raises(InputError, match="no rings or trees"):
        graph(text)


def test_communicators_are_told_by_their_size() -> None:
    text = said("Channel 00/02 : 0 1 2 3", "Channel 00/02 : 0 1", "Channel 01/02 : 0 3 2 1 4")
    assert graph(text, 4).ring_links() == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert graph(text, 2).ring_links() == [(0, 1)]
    with pytest.raises(InputError, match="of 7 ranks"):
        graph(text, 7)


def test_glued_lines_and_colours() -> None:
    text = "\x1b[32mnode:1:2 [0] NCCL INFO Channel 00/01 : 0 1 2\x1b[0mnode:1:3 [1] NCCL INFO Trees [0] 1/-1/-1->0->-1"
    made = graph(text + said("Trees [0] 2/-1/-1->1->0", "Trees [0] -1/-1/-1->2->1"))
    assert made.ring_links() == [(0, 1), (1, 2), (2, 0)]
    assert pairs(made.tree_links()) == {frozenset((0, 1)), frozenset((1, 2))}


def test_a_ring_of_other_ranks_than_those_tested() -> None:
    made = graph(said("Channel 00/02 : 0 1 2 3"))
    with pytest.raises(GhError, match="no links of ranks 8-11"):
        plan([8, 9, 10, 11], {}, "ring", made)


@pytest.mark.parametrize(
    "line",
    ["Channel 00/02 : 0 1 1 2", "Channel 00/02 : 0 9999999", "Trees [0] 1->0->-1", "Ring 00 : 9999999 -> 0 -> 1",
     "Tree 0 : 9999999 -> 0 -> 1/-1/-1", "Trees [0] 1/-1/-1->0->1/-1/-1"],
)  # fmt: skip
def test_nonsense_is_counted_and_left_out(line: str) -> None:
    made = graph(said("Channel 00/02 : 0 1 2", line), 3)
    assert made.bad == 1
    assert made.ring_links() == [(0, 1), (1, 2), (2, 0)]


WORDS = [
    "0", "1", "2", " ", "/", "-1", "->", " -> ", "[0] ", "Trees ", "Ring 00 : ", "Tree 0 : ", "Channel 00/02 :",
    "x:1:2 [0] NCCL INFO ", "\n", "nranks 3 ", "99999999",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=80), st.binary(max_size=30))
@settings(max_examples=300, deadline=None)
def test_anything_is_read_or_refused_in_words(words: list[str], junk: bytes) -> None:
    try:
        made = graph(("x:1:2 [0] NCCL INFO " + "".join(words)).encode() + junk)
    except InputError:
        return
    for links in (made.rings, made.trees):
        assert all(0 <= a < made.size and 0 <= b < made.size and a != b for a, b in links)


def test_a_schedule_of_told_rings_covers_them() -> None:
    """Sixteen GPUs on two hosts with three different rings, as in nccl#1538."""
    rings = [
        [0, 8, 15, 14, 13, 12, 11, 10, 9, 1, 2, 3, 4, 5, 6, 7],
        [0, 7, 6, 5, 4, 3, 11, 12, 13, 14, 15, 8, 9, 10, 2, 1],
        [0, 1, 2, 10, 9, 8, 15, 14, 13, 12, 11, 3, 4, 5, 6, 7],
    ]
    made = graph(said(*[f"Channel {c:02d}/03 :" + "".join(f" {r:3d}" for r in ring) for c, ring in enumerate(rings)]))
    schedule, _ = plan(range(16), {}, "ring", made)
    import numpy as np

    check(schedule, np.array(made.ring_links()))
    assert schedule.passes <= 5
