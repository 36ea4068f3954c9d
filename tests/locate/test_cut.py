# SPDX-License-Identifier: Apache-2.0
"""Consistent cuts of hand-made programs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ghtools.job.native import lib
from ghtools.job.ring import Tallies
from ghtools.locate.cut import Made, by_kind, pack, unpack
from ghtools.locate.cut import consistent as consistent_
from ghtools.stream.records import OP_CODE

RED, SEND, RECV = OP_CODE["all_reduce"], OP_CODE["send"], OP_CODE["recv"]


def consistent(made: dict[int, Made], begins: dict[int, int], calls: dict[int, int]) -> dict[int, int] | None:
    """As cut.consistent, of what is known of programs; the same must come out where another host tells it."""
    known = {rank: by_kind(one) for rank, one in made.items()}
    found = consistent_(known, begins, calls)
    packed = json.loads(json.dumps(pack(known, begins)))
    if packed is None or any(begins[rank] < one.first for rank, one in made.items()):
        assert found is None
    else:
        assert consistent_(unpack(packed), begins, calls) == found
    return found


def program(iteration: list[tuple[int, int, int]], comm_rank: dict[int, int], n: int = 10) -> Made:
    """n iterations of calls (op, comm, peer)."""
    op, comm, peer = zip(*(iteration * n), strict=True)
    return Made(np.array(op, np.uint8), np.array(comm, np.uint64), np.array(peer, np.int32), comm_rank)


def pipeline() -> dict[int, Made]:
    """Two stages: forward sends, backward sends, then a reduction of all."""
    first = program([(SEND, 7, 1), (SEND, 7, 1), (RECV, 7, 1), (RECV, 7, 1), (RED, 9, -1)], {7: 0, 9: 0})
    second = program([(RECV, 7, 0), (RECV, 7, 0), (SEND, 7, 0), (SEND, 7, 0), (RED, 9, -1)], {7: 1, 9: 1})
    return {0: first, 1: second}


def test_begins_that_agree_stay() -> None:
    assert consistent(pipeline(), {0: 25, 1: 25}, {0: 5, 1: 5}) == {0: 25, 1: 25}


def test_a_rank_that_is_cut_elsewhere_is_moved_with_all_it_owes() -> None:
    # The second stage is cut before its reduction: the first one has made it already.
    assert consistent(pipeline(), {0: 25, 1: 24}, {0: 5, 1: 5}) == {0: 25, 1: 25}
    # It is cut after its first receive: then both finish what that begins.
    assert consistent(pipeline(), {0: 25, 1: 26}, {0: 5, 1: 5}) == {0: 26, 1: 26}


def test_a_cut_that_lies_further_than_an_iteration_is_none() -> None:
    assert consistent(pipeline(), {0: 25, 1: 40}, {0: 5, 1: 5}) is None


def test_what_has_not_been_seen_yet_is_none() -> None:
    made = pipeline() | {1: program([(RECV, 7, 0)] * 2 + [(SEND, 7, 0)] * 2 + [(RED, 9, -1)], {7: 1, 9: 1}, n=3)}
    assert consistent(made, {0: 25, 1: 10}, {0: 5, 1: 5}) is None


def late(made: dict[int, Made], first: dict[int, int], counted: dict[int, int]) -> dict[int, Made]:
    """The same, seen from a later call on, with what was counted when so many calls had been made."""
    found = {}
    for rank, one in made.items():
        at = first[rank]
        by_key: dict[int, int] = {}
        for op, comm, peer in zip(
            one.op[: counted[rank]].tolist(), one.comm[: counted[rank]].tolist(), one.peer.tolist(), strict=False
        ):
            key = int(lib.gh_ring_tally_key(comm, op, peer))
            by_key[key] = by_key.get(key, 0) + 1
        tallies = Tallies(counted[rank], by_key)
        found[rank] = Made(one.op[at:], one.comm[at:], one.peer[at:], one.comm_rank, at, tallies)
    return found


def test_ranks_that_are_seen_from_different_calls_on_have_the_same_cut() -> None:
    made = pipeline()
    for begins in ({0: 25, 1: 25}, {0: 25, 1: 24}, {0: 25, 1: 26}, {0: 27, 1: 25}):
        whole = consistent(made, begins, {0: 5, 1: 5})
        for first in ({0: 3, 1: 21}, {0: 17, 1: 0}, {0: 24, 1: 23}):
            for counted in ({0: 50, 1: 50}, {0: 24, 1: 31}, {0: 44, 1: 49}):
                assert consistent(late(made, first, counted), begins, {0: 5, 1: 5}) == whole


def test_begins_before_what_is_known_are_none() -> None:
    assert consistent(late(pipeline(), {0: 20, 1: 26}, {0: 50, 1: 50}), {0: 25, 1: 25}, {0: 5, 1: 5}) is None


def test_what_was_counted_wrong_is_none() -> None:
    made = late(pipeline(), {0: 20, 1: 20}, {0: 50, 1: 50})
    made[1] = Made(made[1].op, made[1].comm, made[1].peer, made[1].comm_rank, 20, Tallies(50, {}))
    assert consistent(made, {0: 25, 1: 25}, {0: 5, 1: 5}) is None


@pytest.mark.parametrize(
    "item",
    [
        [0], [0, []], ["0", [["7", 0, 1, 0, [1]]]], [-1, [["7", 0, 1, 0, [1]]]], 
        [0, [["7", 0, 1, -1, [1]]]], [0, [["7", 0, 1, 0, [-1]]]], [0, [["x", 0, 1, 0, [1]]]], [0, [["7", 0, 1, 0]]],
        [0, [["7", True, 1, 0, [1]]]], [0, [["7", 0, 1, 0, [1.5]]]], [0, "7"], {}, None,
    ],
)  # fmt: skip
def test_what_another_host_sends_is_checked(item: object) -> None:
    assert unpack({"1": item}) == {} and unpack(item) == {}
    assert unpack({"x": [0, [["7", 0, 1, 0, [1]]]]}) == {}
    assert list(unpack({"1": [0, [["7", 0, 1, 0, [1]]]]})) == [1]


def test_too_many_calls_are_not_sent() -> None:
    many = {0: by_kind(program([(RED, 9, -1)], {9: 0}, n=20_000))}
    assert pack(many, {0: 0}) is None
    assert pack(many, {0: 10_000}) is not None
