# SPDX-License-Identifier: Apache-2.0
"""The same collective on all its members: transfer time and waiting apart (DESIGN section 6, lateness).

Members are matched by communicator, iteration, operation and size, and the how-manieth of those it is; every
iteration is a fresh start, so a lost call costs one iteration and not the rest of the stream. Durations need no
common clock: all leave together, so the least duration over the members is the transfer and the rest is waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.records import OP_CODE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Everyone leaves these together. The root of a broadcast, a gather or a reduce may leave early, so those tell nothing.
TOGETHER = tuple(OP_CODE[name] for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
UNEVEN = OP_CODE["all_to_all"]  # members may pass different sizes
LEAST = 0.1  # a member that waits less than this share of what the longest waiting one does came last


@dataclass
class Flat:
    """Executions of many ranks: rank after rank, in order of issue inside each."""

    rank: Ints
    it: Ints  # iteration, the same for all ranks, counted from 0
    group: Ints
    key: Ints
    dur: Floats  # ns; of host entries alone: minus the time of entry


@dataclass
class Members:
    """One row for a member of a group in an iteration; times in ns, summed over the group's collectives."""

    it: Ints
    group: Ints
    rank: Ints
    wait: Floats
    last: Floats  # waiting of the others in those collectives to which this member came last
    spread: Floats  # waiting of the longest waiting member, over all collectives
    n: Ints


@dataclass
class Transfers:
    """One row for a group, a key and an iteration: least duration over the members, ns, mean over the collectives."""

    it: Ints
    group: Ints
    key: Ints
    time: Floats
    n: Ints
    members: Ints  # members that took part in the data


@dataclass
class Matched:
    """What the rows of some iterations come to."""

    members: Members
    transfers: Transfers
    wait: Floats  # of each row, ns; NaN where it found no match
    unmatched: int  # rows whose group's members disagree about how many there were


def reduce(flat: Flat, arrivals: bool = False) -> Matched:
    """Match the rows of some iterations and reduce them.

    `arrivals`: `dur` holds negated times of entry, so that the last to come has the least and the transfer is not
    known (it is given as 0). A group with one member in the data tells nothing and is left out.
    """
    if not len(flat.rank):
        return Matched(*_nothing(), np.empty(0), 0)
    block = _pack(flat)
    order = np.argsort(block, kind="stable")
    block, rank = block[order], flat.rank[order]
    new_block = np.concatenate(([True], block[1:] != block[:-1]))
    new_run = new_block | np.concatenate(([True], rank[1:] != rank[:-1]))
    runs = np.flatnonzero(new_run)  # a run: one rank's rows of a block
    count = np.diff(np.append(runs, len(block)))
    run_block = np.cumsum(new_block)[runs] - 1
    n_blocks = int(run_block[-1]) + 1
    ranks = np.bincount(run_block, minlength=n_blocks)
    starts = np.flatnonzero(new_block)
    first_run = np.flatnonzero(new_block[runs])
    most = np.maximum.reduceat(count, first_run)
    least = np.minimum.reduceat(count, first_run)
    good = (most == least) & (ranks >= 2)
    in_good = np.repeat(good[run_block], count)
    lost = int(count[(most != least)[run_block]].sum())
    per_row = np.full(len(flat.rank), np.nan)
    if not in_good.any():
        return Matched(*_nothing(), per_row, lost)
    # A block of m ranks with c rows each becomes c collectives of m rows: transpose each block in place.
    m, c = ranks[good], most[good]
    size = m * c
    begin = np.concatenate(([0], np.cumsum(size)))[:-1]
    within = np.arange(int(size.sum())) - np.repeat(begin, size)
    member, nth = within // np.repeat(c, size), within % np.repeat(c, size)
    to = np.repeat(begin, size) + nth * np.repeat(m, size) + member
    dur = np.empty(len(to))
    who = np.empty(len(to), np.int64)
    source = order[in_good]
    dur[to] = flat.dur[source]
    who[to] = flat.rank[source]
    width = np.repeat(m, c)  # members of each collective
    head = np.concatenate(([0], np.cumsum(width)))[:-1]
    time = np.minimum.reduceat(dur, head)
    wait = dur - np.repeat(time, width)
    spread = np.maximum.reduceat(wait, head)
    wide = np.repeat(spread, width)
    last = np.where(wait <= LEAST * wide, wide, 0.0)
    per_row[source] = wait[to]
    if arrivals:
        time = np.zeros_like(time)
    group, key, it = flat.group[order[starts]][good], flat.key[order[starts]][good], flat.it[order[starts]][good]
    per_block = np.repeat(np.arange(len(m)), c)
    transfers = Transfers(
        it, group, key, np.bincount(per_block, time, len(m)) / c, c.astype(np.int64), m.astype(np.int64)
    )
    row_block = np.repeat(per_block, width)
    members = _members(group[row_block], it[row_block], who, wait, last, wide)
    return Matched(members, transfers, per_row, lost)


def _members(group: Ints, it: Ints, who: Ints, wait: Floats, last: Floats, wide: Floats) -> Members:
    """Sums by iteration, group and member."""
    ids, where = np.unique((it << 40) | (group << 21) | who, return_inverse=True)
    n = len(ids)
    return Members(
        ids >> 40, (ids >> 21) & ((1 << 19) - 1), ids & ((1 << 21) - 1), _sums(where, wait, n),
        _sums(where, last, n), _sums(where, wide, n), np.bincount(where, minlength=n),
    )  # fmt: skip


def _sums(where: Ints, values: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(where, values, n), float)


def _pack(flat: Flat) -> Ints:
    """Block number of each row: group, key and iteration in one integer. Bounds: 2**18, 2**20 and 2**24."""
    return (flat.group << 44) | (flat.key << 24) | flat.it


def _nothing() -> tuple[Members, Transfers]:
    i8, f8 = np.empty(0, np.int64), np.empty(0)
    return Members(i8, i8, i8, f8, f8, f8, i8), Transfers(i8, i8, i8, f8, i8, i8)
