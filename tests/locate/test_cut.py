# SPDX-License-Identifier: Apache-2.0
"""Consistent cuts of hand-made programs."""

from __future__ import annotations

import numpy as np

from ghtools.locate.cut import Made, consistent
from ghtools.stream.records import OP_CODE

RED, SEND, RECV = OP_CODE["all_reduce"], OP_CODE["send"], OP_CODE["recv"]


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
