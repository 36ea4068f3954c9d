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
    place: Ints  # the key of the call before which that gap lies; see gaps.Own


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

    def complete(self, share: float = 0.8) -> Window:
        """Only iterations that this share of the ranks were seen in; if there are hardly any, all."""
        it, count = np.unique(self.ranks.it, return_counts=True)
        most = len(np.unique(self.ranks.rank))
        keep = it[count >= share * most]
        if len(keep) < 3 or len(keep) == len(it):
            return self
        return Window(
            take(self.ranks, np.isin(self.ranks.it, keep)), take(self.members, np.isin(self.members.it, keep)),
            take(self.transfers, np.isin(self.transfers.it, keep)),
        )  # fmt: skip


@dataclass
class History:
    """Blocks, oldest first; about `keep` iterations at most, whatever their numbers."""

    keep: int = 256
    blocks: list[Block] = field(default_factory=list)
    total: int = 0  # iterations ever added

    def add(self, block: Block) -> None:
        """Append; the oldest are let go."""
        self.blocks.append(block)
        self.total += len(np.unique(block.ranks.it))
        counts = [len(np.unique(b.ranks.it)) for b in self.blocks[-self.keep :]]
        del self.blocks[: len(self.blocks) - len(counts)]
        total = sum(counts)
        while len(self.blocks) > 1 and total - counts[0] >= self.keep:
            total -= counts.pop(0)
            self.blocks.pop(0)

    def numbers(self) -> Ints:
        """Numbers of the iterations kept, in order."""
        parts = [block.ranks.it for block in self.blocks]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def window(self, numbers: Ints) -> Window:
        """These iterations (ascending numbers), as far as they are kept."""
        first, last = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
        chosen = [block for block in self.blocks if block.last >= first and block.first <= last]
        return Window(
            _rows(RankIters, (block.ranks for block in chosen), numbers),
            _rows(Members, (block.members for block in chosen), numbers),
            _rows(Transfers, (block.transfers for block in chosen), numbers),
        )

    @property
    def last(self) -> int:
        """Newest iteration, -1 if there is none."""
        return self.blocks[-1].last if self.blocks else -1

    @property
    def first(self) -> int:
        """Oldest iteration kept, 0 if there is none."""
        return self.blocks[0].first if self.blocks else 0


def _rows(cls: type[T], tables: Iterable[T], numbers: Ints) -> T:
    """Rows of those iterations in one table."""
    parts = list(tables)
    names = list(cls.__dataclass_fields__)
    columns: dict[str, Any] = {}
    if not parts:
        floats = {"wait", "last", "spread", "time", "dur", "own", "longest"} & set(names)
        return cls(**{name: np.empty(0, float if name in floats else np.int64) for name in names})
    keep = [np.isin(part.it, numbers) for part in parts]
    for name in names:
        columns[name] = np.concatenate([getattr(part, name)[k] for part, k in zip(parts, keep, strict=True)])
    return cls(**columns)


def take(table: T, where: NDArray[np.bool_]) -> T:
    """Rows of a table."""
    return type(table)(**{name: getattr(table, name)[where] for name in table.__dataclass_fields__})


def matrix(rows: Ints, cols: Ints, values: Floats, n_rows: int, n_cols: int) -> Floats:
    """Values as a matrix, NaN where there is none."""
    made = np.full((n_rows, n_cols), np.nan)
    made[rows, cols] = values
    return made
