# SPDX-License-Identifier: Apache-2.0
"""A consistent cut: where all ranks can stop so that nobody waits for a stopped one. Pure.

What gh-period takes for the begin of an iteration need not be the same moment of the program on all ranks: a pipeline
stage that begins with a receive may be cut at its reduction. So the begins are moved, later only, until of every
collective all members have made it or none, and of every message both ends. The k-th call on a communicator is the same
collective on all its members, so this needs every call from the process's first on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.records import OP_CODE

ROUNDS = 64
SEND, RECV = OP_CODE["send"], OP_CODE["recv"]

Key = tuple[int, int, int]  # communicator, and of a message its sender and receiver inside it (-1, -1: a collective)


@dataclass(frozen=True)
class Made:
    """All calls of a rank from its first on: columns of equal length. `comm_rank`: its number by communicator."""

    op: NDArray[np.uint8]
    comm: NDArray[np.uint64]
    peer: NDArray[np.int32]
    comm_rank: Mapping[int, int]


def consistent(made: Mapping[int, Made], begins: Mapping[int, int], calls: Mapping[int, int]) -> dict[int, int] | None:
    """Calls before which the ranks can stop, the first such cut at or after `begins`; None if there is none near.

    `begins`: number of a call by rank, some iterations ago; `calls`: calls that an iteration of it has.
    """
    places = {rank: _places(one) for rank, one in made.items()}
    keys: dict[Key, list[int]] = {}
    for rank, by_key in places.items():
        for key in by_key:
            keys.setdefault(key, []).append(rank)
    cut = dict(begins)
    for _ in range(ROUNDS):
        moved = False
        for key, ranks in keys.items():
            counts = {rank: int(np.searchsorted(places[rank][key], cut[rank])) for rank in ranks}
            most = max(counts.values())
            for rank, count in counts.items():
                if count < most:
                    if most > len(places[rank][key]):
                        return None
                    cut[rank] = int(places[rank][key][most - 1]) + 1
                    moved = True
        if not moved:
            return cut if all(cut[rank] - begins[rank] <= calls[rank] for rank in cut) else None
    return None


def _places(made: Made) -> dict[Key, NDArray[np.int64]]:
    """Numbers of the calls that must agree with those of others, by what they are."""
    found: dict[Key, NDArray[np.int64]] = {}
    pair = (made.op == SEND) | (made.op == RECV)
    for comm in np.unique(made.comm):
        here = made.comm == comm
        if len(together := np.flatnonzero(here & ~pair)):
            found[int(comm), -1, -1] = together
        mine = made.comm_rank.get(int(comm), -1)
        if mine < 0:
            continue  # messages whose ends are not known say nothing
        for op in (SEND, RECV):
            for peer in np.unique(made.peer[here & (made.op == op)]).tolist():
                ends: Sequence[int] = (mine, peer) if op == SEND else (peer, mine)
                found[int(comm), ends[0], ends[1]] = np.flatnonzero(here & (made.op == op) & (made.peer == peer))
    return found
