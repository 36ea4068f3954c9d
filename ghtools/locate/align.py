# SPDX-License-Identifier: Apache-2.0
"""One numbering of the iterations for all ranks.

Each rank counts its iterations from where its own data begin. On one host their begins are compared; between hosts
clocks may be off by more than an iteration, so there the jitter decides: ranks that go in step share it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .collect import Bounds

SHIFTS = 8  # iterations by which two ranks may be apart, over what their clocks say
ENOUGH = 8  # iterations of overlap before jitter is believed
CLEAR = 0.5  # the best shift must leave under this share of what the next best leaves

Ints = NDArray[np.int64]


def offset(mine: Bounds, ref: Bounds, one_clock: bool) -> int:
    """What to add to a rank's index to get the reference's number of the same iteration."""
    if not len(mine.index) or not len(ref.index):
        return 0
    by_time = _by_time(mine, ref)
    if one_clock:
        return by_time
    return _by_jitter(mine, ref, by_time)


def begins_apart(mine: Bounds, ref: Bounds, shift: int) -> float | None:
    """Median difference of the middles of common iterations, ns; None if there are none."""
    _, a, b = np.intersect1d(mine.index + shift, ref.index, assume_unique=True, return_indices=True)
    if not len(a):
        return None
    middle = mine.t_ns[a] - ref.t_ns[b] + (mine.dur_ns[a] - ref.dur_ns[b]) / 2
    return float(np.median(middle))


def _by_time(mine: Bounds, ref: Bounds) -> int:
    """The most frequent difference to the index of the nearest begin."""
    middle_mine, middle_ref = mine.t_ns + mine.dur_ns // 2, ref.t_ns + ref.dur_ns // 2
    at = np.clip(np.searchsorted(middle_ref, middle_mine), 1, max(len(middle_ref) - 1, 1))
    if len(middle_ref) == 1:
        at = np.zeros(len(middle_mine), np.int64)
    else:
        at -= (middle_mine - middle_ref[at - 1]) < (middle_ref[at] - middle_mine)
    near = np.abs(middle_mine - middle_ref[at]) <= 0.75 * ref.dur_ns[at]
    if not near.any():
        return 0  # no common time at all: their own numbers are all there is
    values, counts = np.unique((ref.index[at] - mine.index)[near], return_counts=True)
    return int(values[np.argmax(counts)])


def _by_jitter(mine: Bounds, ref: Bounds, start: int) -> int:
    """The shift near `start` at which the durations go together, if one does so clearly; else `start`."""
    found: list[tuple[float, int]] = []
    for shift in {start + step for step in range(-SHIFTS, SHIFTS + 1)} | set(range(-SHIFTS, SHIFTS + 1)):
        _, a, b = np.intersect1d(mine.index + shift, ref.index, assume_unique=True, return_indices=True)
        if len(a) < ENOUGH:
            continue
        x, y = np.log(np.maximum(mine.dur_ns[a], 1)), np.log(np.maximum(ref.dur_ns[b], 1))
        found.append((float(np.median(np.abs((x - np.median(x)) - (y - np.median(y))))), shift))
    found.sort()
    if len(found) >= 2 and found[0][0] < CLEAR * found[1][0]:
        return found[0][1]
    return start


def clock_offsets(ends: list[tuple[int, Ints, Ints, Ints, NDArray[np.bool_]]], host: dict[int, str]) -> dict[int, int]:
    """What each rank's clock shows over that of the first host, ns, from the common ends of collectives.

    `ends`: rank, then by row the group, the iteration, the end and whether it counts. All members of a group leave
    together, so the last end of a group in an iteration is one moment on all of them. Hosts that share no group
    with the first, by way of others, are taken to be right.
    """
    last: dict[int, dict[int, tuple[Ints, Ints]]] = {}  # group -> rank -> iterations, ends
    for rank, group, it, end, counts in ends:
        for number in np.unique(group[counts]):
            rows = counts & (group == number)
            its, where = np.unique(it[rows], return_inverse=True)
            newest = np.full(len(its), np.iinfo(np.int64).min)
            np.maximum.at(newest, where, end[rows])
            last.setdefault(int(number), {})[rank] = (its, newest)
    known = {host[ends[0][0]]: 0} if ends else {}
    groups = [by_rank for by_rank in last.values() if len({host[rank] for rank in by_rank}) > 1]
    while groups:
        left = []
        for by_rank in groups:
            ref = next((rank for rank in by_rank if host[rank] in known), None)
            if ref is None:
                left.append(by_rank)
                continue
            for rank, (its, newest) in by_rank.items():
                _, a, b = np.intersect1d(its, by_rank[ref][0], assume_unique=True, return_indices=True)
                if host[rank] not in known and len(a):
                    apart = int(np.median(newest[a] - by_rank[ref][1][b]))
                    known[host[rank]] = known[host[ref]] + apart
        if len(left) == len(groups):
            break
        groups = left
    return {rank: known.get(host[rank], 0) for rank, *_ in ends}
