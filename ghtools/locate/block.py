# SPDX-License-Identifier: Apache-2.0
"""What each rank did in a block of iterations, and all ranks' rows of it as one table to be matched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .collect import Bounds, Rows
from .match import Flat


@dataclass
class Seen:
    """What one rank has done that is not used up."""

    rows: Rows
    at: Any  # position in bounds of each row's iteration, -1 = outside of all
    bounds: Bounds
    usable: Any  # iterations that were seen whole and are steady


@dataclass
class Part:
    """One rank's share of a block."""

    rank: int
    rows: Rows
    at: Any  # position in bounds, -1 = outside of all
    inside: Any  # rows of the iterations of the block
    it: Any  # position of the iteration in the block
    bounds: Bounds
    shift: int
    keep: Any  # rows that can be matched
    group: Any
    key: Any


def columns_of(table: Any) -> list[Any]:
    """Columns of a table, in the order of its fields."""
    return [getattr(table, name) for name in table.__dataclass_fields__]


def flat(parts: list[Part], chosen: list[Any], clocks: dict[int, int] | None) -> Flat:
    """Chosen rows of all ranks, one rank after the other; with `clocks` (ns by rank) times of entry, negated."""
    if clocks is None:
        dur = [part.rows.dur[where].astype(float) for part, where in zip(parts, chosen, strict=True)]
    else:
        entry = [part.rows.entry[w] - clocks.get(part.rank, 0) for part, w in zip(parts, chosen, strict=True)]
        base = min((int(t.min()) for t in entry if len(t)), default=0)
        dur = [(base - t).astype(float) for t in entry]

    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name)[where] for part, where in zip(parts, chosen, strict=True)])

    rank = np.concatenate([np.full(int(w.sum()), part.rank, np.int64) for part, w in zip(parts, chosen, strict=True)])
    return Flat(rank, column("it"), column("group"), column("key"), np.concatenate(dur))
