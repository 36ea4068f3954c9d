# SPDX-License-Identifier: Apache-2.0
"""What one rank did between its communication: its own time, and where in the iteration it lies.

A rank works on its own from the moment a collective releases it until its host enters the next one. A collective
that still runs when the host enters the next one held nobody up (an overlapped bucket), so only the wait after
the last call of such a run counts as being held. What is overlapped on one rank is so on all that do the same, even
where it ended early: else a late rank, whose transfers are short, would seem to be held by them. A send that was
seen to run on is buffered: it never holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .collect import RECV, SEND, Bounds, Rows

Floats = NDArray[np.float64]
FIRST = 1 << 40
BLIND = 0.002  # share of an iteration: a first call so soon after its begin is what the begin was taken from
JITTER_NS = 20_000  # an end may be noted this much after the host was let go


@dataclass
class Own:
    """Per iteration of one rank, ns; NaN where nothing is known. `place` is the key of the call before which the
    longest gap lies, plus FIRST if that is the first call of the iteration."""

    own: Floats
    longest: Floats
    place: NDArray[np.int64]


def _buffered(rows: Rows) -> NDArray[np.bool_]:
    """Sends to a peer to which some send outlasted the host's next call."""
    sends: NDArray[np.bool_] = rows.op == SEND
    if not sends.any():
        return sends
    runs_on = sends & np.append((rows.start + rows.dur)[:-1] > rows.entry[1:], False)
    made: NDArray[np.bool_] = sends & np.isin(rows.peer, np.unique(rows.peer[runs_on]))
    return made


def places(rows: Rows, at: NDArray[np.int64], key: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Of each row: a number for its place in the iteration and what is called there, equal on all ranks that do the
    same, -1 where that cannot be said; and whether it still ran when the host made its next call."""
    n = len(rows.seq)
    starts = np.flatnonzero(np.concatenate(([True], at[1:] != at[:-1])))
    count = np.diff(np.append(starts, n))
    place = np.arange(n) - np.repeat(starts, count)
    size = np.repeat(count, count)
    known = (at >= 0) & (key >= 0) & (size < 1 << 20) & (rows.op != SEND) & (rows.op != RECV)
    code = np.where(known, (key << 40) | (np.minimum(size, (1 << 20) - 1) << 20) | np.minimum(place, (1 << 20) - 1), -1)
    over = np.append((rows.start + rows.dur)[:-1] - rows.entry[1:], 0)
    runs_on = (over > np.maximum(JITTER_NS, rows.dur // 50)) & known
    return code, runs_on


def blind(rows: Rows, at: NDArray[np.int64], bounds: Bounds) -> NDArray[np.bool_]:
    """Iterations whose first gap is not known: counted from their first call, with nothing seen before that.

    So is the first of a stretch that is timed. Data in which it is so of every iteration has no such gaps, and none is
    called blind.
    """
    made = np.zeros(len(bounds.index), bool)
    if not len(rows.seq):
        return made
    new = np.flatnonzero(np.concatenate(([True], at[1:] != at[:-1])) & (at >= 0))
    before = np.maximum(new - 1, 0)
    step = rows.seq[new] - rows.seq[before]
    seen = np.where(at[before] >= 0, bounds.index[at[before]] + 1 >= bounds.index[at[new]], (step == 0) | (step == 1))
    seen &= new > 0
    soon = rows.entry[new] - bounds.t_ns[at[new]] < BLIND * np.maximum(bounds.dur_ns[at[new]], 1)
    if seen.any():
        made[at[new[soon & ~seen]]] = True
    return made


def own_time(
    rows: Rows,
    at: NDArray[np.int64],
    bounds: Bounds,
    key: NDArray[np.int64] | None = None,
    overlapped: NDArray[np.bool_] | None = None,
) -> Own:
    """Own time by iteration. `at` is iteration_of(rows, bounds); rows are in order of issue; `key` is what is called.

    `overlapped` rows are known not to hold the host, since elsewhere the same call ran on after the next. An
    iteration with a receive of unknown duration is not known.
    """
    n = len(bounds.index)
    made = Own(np.full(n, np.nan), np.full(n, np.nan), np.full(n, -1, np.int64))
    if not len(rows.seq) or not n:
        return made
    free_run = _buffered(rows) if overlapped is None else _buffered(rows) | overlapped
    end = np.where(free_run, rows.entry, rows.start + np.maximum(rows.dur, 0))
    before_end, before_entry, before_at = np.maximum.accumulate(end)[:-1], rows.entry[:-1], at[:-1]
    entry, mine = rows.entry[1:], at[1:]
    free = np.where(before_end <= entry, before_end, np.where(end[:-1] <= entry, end[:-1], before_entry))
    gap = np.concatenate(([0], entry - free)).astype(float)
    # The gap before the first row of an iteration begins with the row before it, if that is of the iteration before
    # or, where that one is used up, the call before; else where the iteration began.
    step = rows.seq[1:] - rows.seq[:-1]
    follows = np.where(before_at >= 0, bounds.index[before_at] + 1 >= bounds.index[mine], (step == 0) | (step == 1))
    known = np.concatenate(([False], follows & (rows.dur[:-1] >= 0)))
    first = ~known & (at >= 0)
    gap[first] = rows.entry[first] - bounds.t_ns[at[first]]
    gap = np.maximum(gap, 0.0)
    inside = at >= 0
    where, gap = at[inside], gap[inside]
    if not len(where):
        return made
    some = np.unique(where)
    made.own[some] = np.bincount(where, gap, n)[some]
    starts = np.flatnonzero(np.concatenate(([True], where[1:] != where[:-1])))
    if len(starts) == len(some):  # iterations do not interleave
        made.longest[where[starts]] = np.maximum.reduceat(gap, starts)
        number = key[inside].copy() if key is not None else np.zeros(len(where), np.int64)
        number[starts] += FIRST
        is_longest = gap >= made.longest[where]
        made.place[where[is_longest][::-1]] = number[is_longest][::-1]
    made.own[at[(at >= 0) & (rows.op == RECV) & (rows.dur < 0)]] = np.nan
    # An iteration whose own time is more than it lasted was cut by a hole in the data.
    made.own[made.own > 1.5 * np.maximum(bounds.dur_ns, 1)] = np.nan
    return made
