# SPDX-License-Identifier: Apache-2.0
"""Which rank works longer than those that do the same work, and does everybody wait for it?

Two views that must agree. Own time: what a rank does between its collectives, against the lower median of its
peers, iteration by iteration. Lateness: in its groups it is the one that waits least. Under a slow link waiting
moves about while nobody's own time grows, so own time decides and lateness has to bear it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .groups import COLLECTIVE, Group
from .history import Window, matrix
from .match import Members

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Least excess as a share of the iteration, by iterations of evidence: a small loss needs more of them.
NEED = ((20, 0.04), (10, 0.05), (6, 0.07), (3, 0.12))
FLOOR = 0.02  # what must be left of the excess after three standard errors
STEADY = 0.6  # share of the iterations in which at least half the excess is there
POPULATION_Z = 5.0  # and it must stand out of the spread that peers have anyway
MATERIAL = 0.02  # waiting in a group under this share of the iteration is no evidence
CONTRADICTS = 0.5
ALWAYS_ITERS, ALWAYS_LEAST, ALWAYS_MEDIAN = 4, 0.05, 0.2  # iterations, and share of the iteration in each and at large
SAME_STEP = 1.5


@dataclass
class Own:
    """Own time of ranks: matrices of iterations x ranks, ns, NaN = missing."""

    it: Ints
    ranks: Ints
    own: Floats
    dur: Floats
    longest: Floats
    place: Floats

    @property
    def iter_ns(self) -> float:
        """Median time of an iteration."""
        return float(np.nanmedian(self.dur)) if np.isfinite(self.dur).any() else float("nan")


@dataclass
class Late:
    """What is known of one rank's lateness."""

    rank: int
    excess: float  # own time over that of its peers, share of the iteration, median
    error: float  # standard error of it
    steady: float  # share of iterations
    ratio: float  # own time / that of its peers
    iters: int
    own_ns: float
    peers_ns: float
    z: float  # against the spread among peers
    lasting: float = 1.0  # least median excess of a third of the window, over that of all of it
    last: float = 0.0  # share of its groups' waiting for which it was the last to come
    against: list[str] = field(default_factory=list)  # what speaks against it
    groups: list[tuple[str, float, float]] = field(
        default_factory=list
    )  # name, its wait / longest, longest / iteration


def own_matrix(window: Window) -> Own:
    """The rank table of a window as matrices.

    Ranks in step take the same time. One that took another has been told another iteration: its values are left out.
    """
    t = window.ranks
    it, row = np.unique(t.it, return_inverse=True)
    ranks, col = np.unique(t.rank, return_inverse=True)
    shape = (len(it), len(ranks))
    made = Own(
        it, ranks, matrix(row, col, t.own, *shape), matrix(row, col, t.dur, *shape),
        matrix(row, col, t.longest, *shape), matrix(row, col, t.place.astype(float), *shape),
    )  # fmt: skip
    middle = nanmedian(made.dur, axis=1)[:, None]
    astray = ~((made.dur > middle / SAME_STEP) & (made.dur < middle * SAME_STEP))
    for values in (made.own, made.dur, made.longest, made.place):
        values[astray] = np.nan
    return made


def others_low_median(values: Floats) -> Floats:
    """For each element the lower median of the others in its row; NaN where there are no others.

    Slowness is one-sided, hence the lower median (ALGORITHMS.md section 5). Shape in = shape out.
    """
    n = np.sum(np.isfinite(values), axis=1)
    order = np.argsort(values, axis=1)  # NaN last
    ranked = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(values.shape[1]), values.shape), axis=1)
    middle = np.maximum((n - 2) // 2, 0)[:, None]
    at = np.where(place <= middle, middle + 1, middle)
    made = np.take_along_axis(ranked, np.minimum(at, values.shape[1] - 1), axis=1)
    made[~np.isfinite(values) | (n < 2)[:, None]] = np.nan
    return made


def nanmedian(values: Floats, axis: int = 0) -> Floats:
    """np.nanmedian that is silent about empty slices."""
    empty = ~np.isfinite(values).any(axis=axis)
    made = np.full(empty.shape, np.nan)
    if not empty.all():
        keep = np.take(values, np.flatnonzero(~empty), axis=1 - axis)
        made[~empty] = np.nanmedian(keep, axis=axis)
    return made


def standard_error(values: Floats) -> Floats:
    """Of the median of each column, from the median absolute deviation."""
    n = np.maximum(np.sum(np.isfinite(values), axis=0), 1)
    mad = nanmedian(np.abs(values - nanmedian(values)[None, :]))
    return np.asarray(1.2533 * 1.4826 * mad / np.sqrt(n))


def need(iters: int) -> float:
    """Least excess for so many iterations; infinite if they are too few for any."""
    return next((least for n, least in NEED if iters >= n), float("inf"))


def excess(own: Own, classes: list[list[int]], before: Own | None = None) -> Floats:
    """Own time over the peers' as a share of the iteration; with `before`, over what it was then. I x R."""
    made = np.full(own.own.shape, np.nan)
    typical = nanmedian(own.dur, axis=1)[:, None]
    for ranks in classes:
        cols = np.flatnonzero(np.isin(own.ranks, ranks))
        if len(cols) >= 2:
            made[:, cols] = (own.own[:, cols] - others_low_median(own.own[:, cols])) / typical
    if before is not None:
        old = nanmedian(excess(before, classes)) * (before.iter_ns / own.iter_ns)
        usual = np.zeros(len(own.ranks))
        common, here, there = np.intersect1d(own.ranks, before.ranks, return_indices=True)
        if len(common):
            usual[here] = np.nan_to_num(old[there])
        made = made - usual[None, :]
    return made


def lasting(values: Floats) -> float:
    """Least median of a third of the values over the median of all; 1 if they are too few to divide."""
    finite = values[np.isfinite(values)]
    middle = float(np.median(finite)) if len(finite) else 0.0
    if len(finite) < 9 or middle <= 0:
        return 1.0
    return min(float(np.median(third)) for third in np.array_split(finite, 3)) / middle


def always(values: Floats) -> bool:
    """Whether a large excess is there in every iteration: a quota that strikes now and then makes it uneven in size,
    so that its median is not sure after a few iterations, though it never fails."""
    finite = values[np.isfinite(values)]
    return len(finite) >= ALWAYS_ITERS and bool(finite.min() >= ALWAYS_LEAST and np.median(finite) >= ALWAYS_MEDIAN)


def candidates(own: Own, over: Floats, classes: list[list[int]], noticed: bool = False) -> list[Late]:
    """Ranks whose excess is large, sure and steady; the largest first.

    `noticed`: somebody else has noticed a slow-down, so that a large excess in each of few iterations is enough.
    """
    made = []
    middle, error = nanmedian(over), standard_error(over)
    n = np.sum(np.isfinite(over), axis=0)
    for ranks in classes:
        cols = np.flatnonzero(np.isin(own.ranks, ranks))
        if len(cols) < 2:
            continue
        spread = (
            1.4826 * float(np.nanmedian(np.abs(middle[cols] - np.nanmedian(middle[cols]))))
            if np.isfinite(middle[cols]).any()
            else 0.0
        )
        floor = max(spread, 0.002) if len(cols) >= 6 else 0.002
        # A few iterations tell little of their own noise; that of the peers is the least to reckon with.
        if not np.isfinite(error[cols]).any():
            continue
        common = float(np.nanmedian(error[cols] * np.sqrt(np.maximum(n[cols], 1))))
        error[cols] = np.fmax(error[cols], common / np.sqrt(np.maximum(n[cols], 1)))
        peers = nanmedian(others_low_median(own.own[:, cols]))
        mine = nanmedian(own.own[:, cols])
        for place, col in enumerate(cols):
            if not np.isfinite(middle[col]) or not peers[place] > 0:
                continue
            z = float(middle[col] / floor)
            never_fails = noticed and always(over[:, col])
            enough = middle[col] >= need(int(n[col])) and (never_fails or middle[col] - 3 * error[col] >= FLOOR)
            steady = float(np.mean(over[np.isfinite(over[:, col]), col] >= 0.5 * middle[col]))
            if enough and (never_fails or steady >= STEADY) and z >= POPULATION_Z:
                made.append(
                    Late(
                        int(own.ranks[col]), float(middle[col]), float(error[col]), steady,
                        float(mine[place] / peers[place]),
                        int(n[col]), float(mine[place]), float(peers[place]), z,
                        lasting(over[:, col]),
                    )
                )  # fmt: skip
    return sorted(made, key=lambda late: -late.excess)


def bear_out(
    late: Late, members: Members, iters: int, iter_ns: float, group_of: dict[int, Group], own: Own, peers: list[int]
) -> None:
    """Add what the rank's groups say: how much of their waiting was for it, and which of them contradict.

    A group contradicts if the rank waits in it for one that works as long. To wait for a rank that works less is no
    contradiction: that one was held up elsewhere, by a slow link or by the order of the pipeline. How often it came
    last is counted in groups of its peers, where there are any: between stages the pipeline has an order of its own.
    """
    same = set(peers)
    works = dict(zip(own.ranks.tolist(), nanmedian(own.own).tolist(), strict=True))
    long = late.own_ns - CONTRADICTS * max(0.0, late.own_ns - late.peers_ns)
    mine = members.rank == late.rank
    totals = np.zeros((2, 2))  # (all groups, groups of peers) x (last, spread)
    for number in np.unique(members.group[mine]):
        rows = members.group == number
        group = group_of[int(number)]
        here = rows & mine
        wait, last, spread = (float(column[here].sum()) for column in (members.wait, members.last, members.spread))
        share = spread / (iters * iter_ns)
        if share < MATERIAL:
            continue
        totals[0] += last, spread
        if group.kind == COLLECTIVE and same.issuperset(group.members):
            totals[1] += last, spread
        late.groups.append((name_of(group), wait / spread, share))
        if group.kind == COLLECTIVE and wait > CONTRADICTS * spread:
            who, at = np.unique(members.rank[rows], return_inverse=True)
            first = int(who[np.argmax(np.bincount(at, members.last[rows]))])
            if works.get(first, 0.0) > long:
                late.against.append(f"it waits for rank {first} in {name_of(group)}")
    late.groups.sort(key=lambda group: -group[2])
    last, spread = totals[1] if totals[1][1] else totals[0]
    late.last = float(last / spread) if spread else 0.0


def name_of(group: Group) -> str:
    """A group for people."""
    ranks = ",".join(map(str, group.members[:8])) + (",..." if len(group.members) > 8 else "")
    if group.kind != COLLECTIVE:
        return f"{group.members[0]}->{group.members[1]}"
    return f"{group.name or f'{group.comm:016x}'} [{ranks}]"
