# SPDX-License-Identifier: Apache-2.0
"""Plain series of iteration times: numbers one a line, or one column of a CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.records import Iters, Record

from .importers import File, Options
from .lines import lines, place

NAME = "series"
DOC = "numbers one a line, or --column NAME of a CSV, in --unit s, ms, us or ns; an empty or NaN value is a gap"

UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
BATCH = 64
MAX_NS = 1 << 62


def looks_like(first: bytes) -> bool:
    """Whether the first line that is not empty is a number."""
    head = first.split()
    try:
        float(head[0]) if head else float("x")
    except ValueError:
        return False
    return True


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Iterations of one rank (-1 = the job), numbered from 0 through all files; time is the sum so far.

    Raises InputError naming the line that is no number, GhError for an unknown unit or column.
    """
    if options.unit not in UNITS_NS:
        raise GhError(f"cannot read values in {options.unit}", "no such unit", "--unit s, ms, us or ns")
    series = _Series(options.rank)
    try:
        for file in files:
            for value in _values(file, options):
                if value is None:
                    yield from series.flush()
                else:
                    yield from series.add(value * UNITS_NS[options.unit])
    except InputError:
        yield from series.flush()  # what came before the bad line is delivered
        raise
    yield from series.flush()


class _Series:
    """Collects durations into batches."""

    def __init__(self, rank: int) -> None:
        self._rank, self._index, self._now = rank, 0, 0
        self._rows: list[tuple[int, int, int]] = []

    def add(self, ns: float) -> Iterator[Record]:
        """One duration; NaN leaves a gap in the numbering and takes no time."""
        if not math.isnan(ns):
            dur_ns = round(ns)
            self._rows.append((self._index, self._now, dur_ns))
            self._now = min(self._now + max(dur_ns, 0), MAX_NS)
        self._index += 1
        if len(self._rows) >= BATCH:
            yield from self.flush()

    def flush(self) -> Iterator[Record]:
        """The batch so far, if there is one."""
        if not self._rows:
            return
        index, t_ns, dur_ns = np.array(self._rows, np.int64).T
        count = len(self._rows)
        self._rows = []
        yield Iters(
            rank=self._rank,
            index=index,
            t_ns=t_ns,
            dur_ns=dur_ns,
            phase=np.zeros(count, np.uint8),
            calls=np.zeros(count, np.int32),
            seq=np.full(count, -1, np.int64),
        )


def _values(file: File, options: Options) -> Iterator[float | None]:
    """Values as they come, NaN for a missing one; None when the source has gone quiet."""
    column = -1
    delimiter = ","
    limit = MAX_NS / UNITS_NS[options.unit]
    for item in lines(file.source, file.name):
        if item is None:
            yield None
            continue
        number, line = item
        try:
            text = line.decode("utf-8-sig").strip()
            if not text:
                continue
            if not options.column:
                cell = text
            else:
                if column < 0:
                    delimiter = max(",;\t", key=text.count)
                    column, is_header = _find(next(csv.reader([text], delimiter=delimiter)), options.column)
                    if is_header:
                        continue
                row = next(csv.reader([text], delimiter=delimiter))
                cell = row[column].strip() if column < len(row) else ""
            value = float(cell) if cell else math.nan
        except UnicodeDecodeError:
            raise InputError(f"bad input at {place(file.name, number)}", "not UTF-8 text") from None
        except ValueError:
            hint = "" if options.column else "--column NAME for a table"
            raise InputError(f"bad input at {place(file.name, number)}", f"{_short(cell)} is no number", hint) from None
        except csv.Error as error:
            raise InputError(f"bad input at {place(file.name, number)}", str(error)) from None
        if abs(value) >= limit:  # infinity, too
            raise InputError(f"bad input at {place(file.name, number)}", f"{_short(cell)} is no duration")
        yield value


def _find(cells: list[str], column: str) -> tuple[int, bool]:
    """Number of the column, from 0, and whether the first line is a header."""
    names = [cell.strip() for cell in cells]
    if column in names:
        return names.index(column), True
    if column.isascii() and column.isdigit() and 1 <= int(column) <= len(names):
        at = int(column) - 1
        try:
            float(names[at] or "nan")
        except ValueError:
            return at, True
        return at, False
    raise GhError(f"cannot find column {column}", "the first line has " + _short(", ".join(names)))


def _short(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")
