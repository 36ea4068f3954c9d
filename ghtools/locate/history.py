# SPDX-License-Identifier: Apache-2.0
"""Reduced iterations, kept for as long as a judgement may need them: three tables in columns, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .match import Members, Transfers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

T = TypeVar("T", Members, Transfers, "RankIters")


@dataclass
class RankIters:
    """One row for a rank and an iteration; times in ns, NaN = not known."""

    it: Ints
    rank: Ints
    t_ns: Ints
    dur: Floats
    own: Floats
    longest: Floats  # its longest gap without communication
    place: Ints  # the call before which that gap lies


@dataclass
class Block:
    """Some iterations of all ranks."""

    first: int
    last: int
    ranks: RankIters
    members: Members
    transfers: Transfers


@dataclass
class Window:
    """The same tables over a choice of iterations."""

    ranks: RankIters
    members: Members
    transfers: Transfers

    @property
    def iters(self) -> int:
        """Iterations in it."""
        return len(np.unique(self.ranks.it))


@dataclass
class History:
    """Blocks, oldest first; `keep` iterations at most."""

    keep: int = 256
    blocks: list[Block] = field(default_factory=list)

    def add(self, block: Block) -> None:
        """Append; the oldest are let go."""
        self.blocks.append(block)
        while len(self.blocks) > 1 and self.blocks[0].last < block.last - self.keep:
            self.blocks.pop(0)

    def window(self, first: int, last: int) -> Window:
        """Iterations from `first` to `last`, both included."""
        chosen = [block for block in self.blocks if block.last >= first and block.first <= last]
        return Window(
            _rows(RankIters, (block.ranks for block in chosen), first, last),
            _rows(Members, (block.members for block in chosen), first, last),
            _rows(Transfers, (block.transfers for block in chosen), first, last),
        )

    @property
    def last(self) -> int:
        """Newest iteration, -1 if there is none."""
        return self.blocks[-1].last if self.blocks else -1

    @property
    def first(self) -> int:
        """Oldest iteration kept, 0 if there is none."""
        return self.blocks[0].first if self.blocks else 0


def _rows(cls: type[T], tables: Iterable[T], first: int, last: int) -> T:
    """Rows of those iterations in one table."""
    parts = list(tables)
    names = list(cls.__dataclass_fields__)
    columns: dict[str, Any] = {}
    if not parts:
        floats = {"wait", "last", "spread", "time", "dur", "own", "longest"} & set(names)
        return cls(**{name: np.empty(0, float if name in floats else np.int64) for name in names})
    keep = [(part.it >= first) & (part.it <= last) for part in parts]
    for name in names:
        columns[name] = np.concatenate([getattr(part, name)[k] for part, k in zip(parts, keep, strict=True)])
    return cls(**columns)


def matrix(rows: Ints, cols: Ints, values: Floats, n_rows: int, n_cols: int) -> Floats:
    """Values as a matrix, NaN where there is none."""
    made = np.full((n_rows, n_cols), np.nan)
    made[rows, cols] = values
    return made
