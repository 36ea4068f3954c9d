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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.job.ring import Tallies
from ghtools.stream.records import OP_CODE

ROUNDS = 64
MOST_SENT = 16_384  # calls of one host's ranks together, in a message of at most 256 KiB
_NUMBER = range(1 << 63)
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
class OfKind:
    """Calls of one kind: their numbers, growing, and how many there were before the first of these."""

    at: NDArray[np.int64]
    before: int


@dataclass(frozen=True)
class Known:
    """What is known of a rank's calls from the one with number `first` on, by kind."""

    first: int
    kinds: Mapping[Key, OfKind]

    def since(self, first: int) -> Known:
        """The same from a later call on."""
        kinds = {}
        for key, one in self.kinds.items():
            gone = int(np.searchsorted(one.at, first))
            kinds[key] = OfKind(one.at[gone:], one.before + gone)  # also if none are left: they count
        return Known(max(first, self.first), kinds)


def consistent(
    known: Mapping[int, Known], begins: Mapping[int, int], calls: Mapping[int, int]
) -> dict[int, int] | None:
    """Calls before which the ranks can stop, the first such cut at or after `begins`; None if there is none near.

    `begins`: number of a call by rank, some iterations ago; `calls`: calls that an iteration of it has.
    """
    ranks_of: dict[Key, list[int]] = {}
    for rank, one in known.items():
        if begins[rank] < one.first or any(kind.before < 0 for kind in one.kinds.values()):
            return None  # not known, or what was read does not belong together
        for key in one.kinds:
            ranks_of.setdefault(key, []).append(rank)
    cut = dict(begins)
    for _ in range(ROUNDS):
        moved = False
        for key, ranks in ranks_of.items():
            kinds = {rank: known[rank].kinds[key] for rank in ranks}
            counts = {r: kind.before + int(np.searchsorted(kind.at, cut[r])) for r, kind in kinds.items()}
            most = max(counts.values())
            for rank, count in counts.items():
                if count < most:
                    kind = kinds[rank]
                    if most > kind.before + len(kind.at):
                        return None
                    cut[rank] = int(kind.at[most - 1 - kind.before]) + 1
                    moved = True
        if not moved:
            return cut if all(cut[rank] - begins[rank] <= calls[rank] for rank in cut) else None
    return None


def by_kind(made: Made) -> Known:
    """The calls that must agree with those of other ranks, by what they are."""
    found: dict[Key, OfKind] = {}

    def add(key: Key, comm: int, op: int, peer: int, where: NDArray[np.int64]) -> None:
        at, before = where + made.first, 0
        if made.first:
            assert made.tallies is not None
            before = made.tallies.count(comm, op, peer) - int(np.searchsorted(at, made.tallies.calls))
        found[key] = OfKind(at, before)

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
    return Known(made.first, found)


def pack(known: Mapping[int, Known], since: Mapping[int, int]) -> dict[str, Any] | None:
    """Plain values for another host, from call `since` of each rank on; None if they are too many, or damaged."""
    if any(kind.before < 0 for one in known.values() for kind in one.kinds.values()):
        return None
    late = {rank: one.since(since[rank]) for rank, one in known.items()}
    if sum(len(kind.at) for one in late.values() for kind in one.kinds.values()) > MOST_SENT:
        return None
    return {
        str(rank): [
            one.first,
            # Numbers of calls as steps, which are short; communicators as text, as they may have 64 bits.
            [[str(c), a, b, k.before, np.diff(k.at, prepend=one.first).tolist()] for (c, a, b), k in one.kinds.items()],
        ]
        for rank, one in late.items()
    }


def unpack(given: object) -> dict[int, Known]:
    """What another host has packed, checked; a rank that makes no sense is left out."""
    found = {}
    for rank, item in given.items() if isinstance(given, dict) else ():
        if str(rank).isdigit() and len(str(rank)) < 7 and isinstance(item, list) and len(item) == 2:
            first, rows = item
            kinds = [_kind(first, row) for row in rows[:MOST_SENT]] if isinstance(rows, list) else []
            if type(first) is int and first in _NUMBER and kinds and all(kinds):
                found[int(rank)] = Known(first, dict(one for one in kinds if one))
    return found


def _kind(first: object, row: object) -> tuple[Key, OfKind] | None:
    if not isinstance(row, list) or len(row) != 5 or type(first) is not int:
        return None
    comm, a, b, before, steps = row
    sound = (
        isinstance(comm, str) and comm.isdigit() and len(comm) < 21 and isinstance(steps, list)
        and all(type(n) is int and -1 <= n < 1 << 31 for n in (a, b)) and type(before) is int and before in _NUMBER
        and all(type(n) is int and 0 <= n < 1 << 40 for n in steps)
    )  # fmt: skip
    if not sound:
        return None
    return (int(comm), a, b), OfKind(first + np.cumsum(np.array(steps, np.int64)), before)
