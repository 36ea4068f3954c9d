# SPDX-License-Identifier: Apache-2.0
"""Plain series of iteration times: numbers one a line, or a column of a CSV (comma, semicolon or tab).

Anything writes such files: a script that prints how long a step took, a spreadsheet, a metric saved by a tracker
(TensorBoard's or Weights & Biases' CSV download). They tell the iteration time of the job, or of one rank (--rank);
they cannot tell who is slow. With a column of step numbers (--set index=) restarts and gaps are seen; with one of times
(--set time=) a rate is read as the iterations between two points. JSON is handed to the format golden.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.records import Iters, Record

from .importers import File, Options
from .lines import lines, place
from .logtext import Ahead, Told
from .points import Steps

NAME = "series"
DOC = (
    "numbers one a line, or --column NAME of a CSV, in --unit s, ms, us, ns, or it/s, it/min for rates; an empty or "
    "NaN value is a gap; --set index=COLUMN numbers the iterations, --set time=COLUMN:UNIT says when; JSON as golden"
)

UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
RATES_NS = {"it/s": 1e9, "it/min": 60e9}  # a rate of 1 is so many ns an iteration
TIMES_NS = {**UNITS_NS, "min": 60e9, "h": 3600e9}
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

    With a column of indices a step back is a restart; with one of times and none of indices, the time between two
    points tells how many iterations the later one stands for. Raises InputError naming the line that is no number,
    GhError for an unknown unit or column.
    """
    if options.unit not in UNITS_NS and options.unit not in RATES_NS:
        raise GhError(f"cannot read values in {options.unit}", "no such unit", "--unit s, ms, us, ns, it/s or it/min")
    placed = _Placed(options)
    series = _Series(options.rank)
    try:
        for file in files:
            source = Ahead(file.source)
            file = File(file.name, source)
            if source.first.lstrip()[:1] in (b"{", b"["):
                from . import import_golden

                yield from import_golden.read([file], options)
                continue
            placed.begin(file.name)
            for row in _values(file, options):
                if row is None:
                    yield from series.flush()
                    yield from placed.quiet()
                elif placed.is_used:
                    yield from placed.add(row)
                else:
                    yield from series.add(row.ns)
    except GhError:
        yield from series.flush()  # what came before the bad line is delivered
        yield from placed.end()
        raise
    yield from series.flush()
    yield from placed.end()


@dataclass
class _Row:
    """A value with its place in the file, and what other columns say."""

    ns: float  # NaN = missing
    line: int
    index: float = math.nan
    time_ns: float = math.nan


class _Placed:
    """Points whose number or time is a column of the table."""

    def __init__(self, options: Options) -> None:
        self.is_used = bool(options.more.get("index") or options.more.get("time"))
        self._by_time = "index" not in options.more
        self._steps = Steps(options.rank, echo_lines=0)
        self._last_ns = math.nan
        self._sum = 0.0  # iterations so far, by time

    def begin(self, name: str) -> None:
        """Another file."""
        self._steps.begin(name)
        self._last_ns = math.nan

    def add(self, row: _Row) -> Iterator[Record]:
        """One row; without a value, number or time it leaves a gap."""
        stamp = round(row.time_ns) if 0 <= row.time_ns < MAX_NS else None
        if math.isnan(row.ns) or (stamp is None if self._by_time else not 0 <= row.index < MAX_NS):
            return
        if self._by_time:
            passed = row.time_ns - self._last_ns
            before = round(self._sum)
            self._sum += 1 if math.isnan(passed) or row.ns <= 0 else max(passed / row.ns, 1)
            self._last_ns = row.time_ns
            every = round(self._sum) - before
            yield from self._steps.each(before + every - 1, row.ns, stamp, row.line, max(every, 1))
        else:
            yield from self._steps.each(round(row.index), row.ns, stamp, row.line)

    def quiet(self) -> Iterator[Record]:
        """The source has nothing more for now."""
        yield from self._steps.quiet()

    def end(self) -> Iterator[Record]:
        """No more points."""
        yield from self._steps.end()


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


def _values(file: File, options: Options) -> Iterator[_Row | None]:
    """Rows as they come, NaN for a missing value; None when the source has gone quiet."""
    table = _Table(options)
    for item in lines(Told(file.source, file.name, options.warn), file.name):
        if item is None:
            yield None
            continue
        number, line = item
        try:
            text = line.decode("utf-8-sig").strip()
            row = table.row(text, number) if text else None
        except UnicodeDecodeError:
            raise InputError(f"bad input at {place(file.name, number)}", "not UTF-8 text") from None
        except (ValueError, csv.Error) as error:
            hint = "" if options.column else "--column NAME for a table"
            raise InputError(f"bad input at {place(file.name, number)}", str(error), hint) from None
        if row:
            yield row


class _Table:
    """Cells of the wanted columns; a bare number a line is a table of one column."""

    def __init__(self, options: Options) -> None:
        time, _, unit = options.more.get("time", "").partition(":")
        if unit and unit not in TIMES_NS:
            raise GhError(f"cannot read times in {unit}", "no such unit", "--set time=COLUMN:" + ", ".join(TIMES_NS))
        self._time_ns = TIMES_NS[unit or "s"]
        self._names = {"value": options.column, "index": options.more.get("index", ""), "time": time}
        if (self._names["index"] or time) and not options.column:
            raise GhError("cannot find the values", "an index or time column was named, but none of values", "--column")
        self._rate = RATES_NS.get(options.unit, 0.0)
        self._scale = 1.0 if self._rate else UNITS_NS[options.unit]
        self._limit = MAX_NS / self._scale
        self._at: dict[str, int] = {}
        self._delimiter = ","

    def row(self, text: str, number: int) -> _Row | None:
        """One line, None for the header. Raises ValueError, csv.Error where a cell is no number."""
        if not self._names["value"]:
            return _Row(self._ns(text), number)
        header = not self._at
        if header:
            self._delimiter = max(",;\t", key=text.count)
        cells = next(csv.reader([text], delimiter=self._delimiter))
        if header:
            found = {key: _find(cells, name) for key, name in self._names.items() if name}
            self._at = {key: at for key, (at, _) in found.items()}
            if any(is_header for _, is_header in found.values()):
                return None
        cell = {key: cells[at].strip() if at < len(cells) else "" for key, at in self._at.items()}
        row = _Row(self._ns(cell["value"]), number)
        row.index, row.time_ns = _float(cell.get("index", "")), _float(cell.get("time", "")) * self._time_ns
        return row

    def _ns(self, cell: str) -> float:
        value = _float(cell)
        if self._rate and value > 0:
            value = self._rate / value
        elif self._rate:
            value = math.nan  # no iteration in that time
        if abs(value) >= self._limit:  # infinity, too
            raise ValueError(f"{_short(cell)} is no duration")
        return value * self._scale


def _float(cell: str) -> float:
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        raise ValueError(f"{_short(cell)} is no number") from None


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
