# SPDX-License-Identifier: Apache-2.0
"""A rank whose own calls do not tell what an iteration is, told by the iterations of another rank."""

from __future__ import annotations

import numpy as np

from ghtools.detect.period_choose import MIN_REPEATS, Choice
from ghtools.detect.period_levels import Level, cuts, find_levels
from ghtools.detect.period_symbols import I64, Columns

MIN_AGREE = 0.8  # of the other rank's iterations that must hold the same number of pieces here
OFFSETS = 8  # places in its iteration at which they are counted: calls near a boundary cross it


def by_ranks(c: Columns, bounds: I64, final: bool = False) -> Choice | None:
    """Pieces that come in a constant number per iteration of another rank, which began at `bounds` (ns, sorted).

    None if there is no such number yet. Clocks need to agree only within a fraction of an iteration.
    """
    bounds = bounds[(bounds >= c.t[0]) & (bounds <= c.t[-1])]
    need = 3 if final else MIN_REPEATS
    if len(bounds) <= need:
        return None
    period = float(np.median(np.diff(bounds)))
    for level in find_levels(c, need):
        at = cuts(c, level)
        best = (0.0, 0)
        for i in range(OFFSETS):
            edges = bounds + int(i * period / OFFSETS)
            many = np.diff(np.searchsorted(c.t[at], edges))
            value, count = np.unique(many, return_counts=True)
            best = max(best, (float(count.max()) / len(many), int(value[np.argmax(count)])))
        share, every = best
        if share >= MIN_AGREE and every > 0:
            return Choice(
                "found", level=level, every=every, phase=_phase(c, level, at, every), method="ranks",
                why=f"{every} in each iteration of another rank, {share:.0%} of the time",
            )  # fmt: skip
    return None


def _phase(c: Columns, level: Level, at: I64, every: int) -> int:
    """Number of the cut, of `every`, before which the pause is longest."""
    gap = np.log(np.maximum(c.t[at[1:]] - c.t[at[1:] - 1], 1))
    rows = gap[: len(gap) // every * every].reshape(-1, every)
    return int(np.argmax(np.median(rows, axis=0)) + 1) % every if len(rows) else 0
