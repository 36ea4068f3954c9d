# SPDX-License-Identifier: Apache-2.0
"""Rows back into batches: the records of a batch kind are put together from single rows, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.records import KINDS, Record, columns

MAX_ROWS = 4096  # of a batch whose rows do not say how many there are
MAX_HELD_ROWS = 1 << 21  # over all open batches; then all are let go
MAX_OPEN = 1 << 16

_TYPECODE = {"i8": "q", "u8": "Q", "i4": "i", "u4": "I", "u2": "H", "u1": "B", "f8": "d"}
COLUMNS: dict[str, dict[str, str]] = {
    kind: {name: _TYPECODE[dtype.lstrip("<|")] for name, dtype in columns(cls).items()}
    for kind, cls in KINDS.items()
    if columns(cls)
}


@dataclass
class Batch:
    """One record in the making. `total` is the number of rows it says it has, 0 = not said."""

    kind: str
    scalars: dict[str, Any]
    total: int = 0
    last: int = -1
    count: int = 0
    columns: list[array[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = [array(code) for code in COLUMNS[self.kind].values()]

    def add(self, values: list[Any]) -> None:
        """One row, in the order of COLUMNS. TypeError or OverflowError where a value does not fit its column."""
        try:
            for column, value in zip(self.columns, values, strict=True):
                column.append(value)
        except (TypeError, OverflowError):
            for column in self.columns:  # a row is taken whole or not at all
                del column[self.count :]
            raise
        self.count += 1

    def record(self) -> Record:
        """The record so far."""
        cls = KINDS[self.kind]
        dtypes = columns(cls)
        made: dict[str, Any] = {
            name: np.array(column, dtypes[name]) for name, column in zip(COLUMNS[self.kind], self.columns, strict=True)
        }
        return cls(**self.scalars, **made)


class Regroup:
    """Open batches by (kind, scalar fields); rows that follow each other go to one record.

    Rows that say their place (`row` of `rows`) restore the very batches they came from; others are grouped by
    key up to MAX_ROWS. `flush` lets everything go in the order in which the batches were begun.
    """

    def __init__(self) -> None:
        self._open: dict[Any, Batch] = {}
        self._torn: dict[Any, int] = {}  # batches let go before they were whole: their last row
        self._held = 0

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def add(
        self, kind: str, key: Any, scalars: dict[str, Any], values: list[Any], row: int, total: int
    ) -> Iterator[Record]:
        """One row (`row` -1 = it does not say its place); yields the batches that are finished by it."""
        batch = self._open.get(key)
        if batch and row >= 0 and (row <= batch.last or total != batch.total):
            yield from self.flush()
            batch = None
        if batch is None:
            if len(self._open) >= MAX_OPEN:
                yield from self.flush()
            scalars = dict(scalars)
            if scalars.get("lost") and (self._torn.get(key, row) < row or (row < 0 and key in self._torn)):
                scalars["lost"] = 0  # the rest of a batch that said its loss already
            batch = Batch(kind, scalars, total)
        batch.add(values)
        batch.last = row
        self._open[key] = batch
        self._held += 1
        whole = batch.count >= (batch.total or MAX_ROWS) or (row >= 0 and row == batch.total - 1)
        if whole and next(iter(self._open)) == key:
            yield from self._close(key)
        elif whole or self._held >= MAX_HELD_ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[Record]:
        """All open batches, whole or not."""
        for key in list(self._open):
            yield from self._close(key)

    def _close(self, key: Any) -> Iterator[Record]:
        batch = self._open.pop(key)
        self._held -= batch.count
        if batch.total and batch.last >= batch.total - 1:
            self._torn.pop(key, None)
        else:
            if len(self._torn) >= MAX_OPEN:
                self._torn.clear()
            self._torn[key] = batch.last
        yield batch.record()
