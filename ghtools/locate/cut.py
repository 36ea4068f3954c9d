# SPDX-License-Identifier: Apache-2.0
"""A consistent cut: where all ranks can stop so that nobody waits for a stopped one. Pure.

What gh-period takes for the begin of an iteration need not be the same moment of the program on all ranks: a pipeline
stage that begins with a receive may be cut at its reduction. So the begins are moved, later only, until of every
collective all members have made it or none, and of every message both ends. The k-th call on a communicator is the same
collective on all its members; how many there were before the first call that is known, the rank's tallies tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ghtools.job.ring import Tallies
from ghtools.stream.records import OP_CODE

ROUNDS = 64
SEND, RECV = OP_CODE["send"], OP_CODE["recv"]

Key = tuple[int, int, int]  # communicator, and of a message its sender and receiver inside it (-1, -1: a collective)


@dataclass(frozen=True)
class Made:
    """Calls of a rank one after another: columns of equal length. `comm_rank`: its number by communicator.

    `first` is the number of the first of them. Unless that is 0, `tallies` must have been taken when none later than
    the last of them had been made.
    """

    op: NDArray[np.uint8]
    comm: NDArray[np.uint64]
    peer: NDArray[np.int32]
    comm_rank: Mapping[int, int]
    first: int = 0
    tallies: Tallies | None = None


@dataclass(frozen=True)
class _Calls:
    """Calls of one kind: their numbers, and how many there were before the first of these."""

    at: NDArray[np.int64]
    before: int


def consistent(made: Mapping[int, Made], begins: Mapping[int, int], calls: Mapping[int, int]) -> dict[int, int] | None:
    """Calls before which the ranks can stop, the first such cut at or after `begins`; None if there is none near.

    `begins`: number of a call by rank, some iterations ago; `calls`: calls that an iteration of it has.
    """
    places = {rank: _places(one) for rank, one in made.items()}
    if any(begins[rank] < one.first for rank, one in made.items()):
        return None
    if any(calls_.before < 0 for by_key in places.values() for calls_ in by_key.values()):
        return None  # what was read does not belong together
    keys: dict[Key, list[int]] = {}
    for rank, by_key in places.items():
        for key in by_key:
            keys.setdefault(key, []).append(rank)
    cut = dict(begins)
    for _ in range(ROUNDS):
        moved = False
        for key, ranks in keys.items():
            known = {rank: places[rank][key] for rank in ranks}
            counts = {r: one.before + int(np.searchsorted(one.at, cut[r])) for r, one in known.items()}
            most = max(counts.values())
            for rank, count in counts.items():
                if count < most:
                    one = known[rank]
                    if most > one.before + len(one.at):
                        return None
                    cut[rank] = int(one.at[most - 1 - one.before]) + 1
                    moved = True
        if not moved:
            return cut if all(cut[rank] - begins[rank] <= calls[rank] for rank in cut) else None
    return None


def _places(made: Made) -> dict[Key, _Calls]:
    """The calls that must agree with those of others, by what they are."""
    found: dict[Key, _Calls] = {}

    def add(key: Key, comm: int, op: int, peer: int, where: NDArray[np.int64]) -> None:
        at, before = where + made.first, 0
        if made.first:
            assert made.tallies is not None
            before = made.tallies.count(comm, op, peer) - int(np.searchsorted(at, made.tallies.calls))
        found[key] = _Calls(at, before)

    pair = (made.op == SEND) | (made.op == RECV)
    for comm in np.unique(made.comm).tolist():
        here = made.comm == comm
        if len(together := np.flatnonzero(here & ~pair)):
            add((comm, -1, -1), comm, int(made.op[together[0]]), -1, together)
        mine = made.comm_rank.get(comm, -1)
        if mine < 0:
            continue  # messages whose ends are not known say nothing
        for op in (SEND, RECV):
            for peer in np.unique(made.peer[here & (made.op == op)]).tolist():
                ends: Sequence[int] = (mine, peer) if op == SEND else (peer, mine)
                where = np.flatnonzero(here & (made.op == op) & (made.peer == peer))
                add((comm, ends[0], ends[1]), comm, op, peer, where)
    return found
