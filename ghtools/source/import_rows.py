# SPDX-License-Identifier: Apache-2.0
"""Rows of anything: a JSON list of maps, JSON lines, or a CSV with a header, as samples.

Fault and event logs, inventories, metrics saved by a script or a tracker have this form. Keys of nested maps are joined
by dots; lists in a row are left out. Each column of numbers is a metric (--column A,B picks some), each column of text
a label (--set labels=A,B picks some, labels= none); rows without numbers count as 1 each, of the metric `rows`.
--set time=COLUMN:UNIT says when (s, ms, us, ns, min, h, d). They tell what their writer wrote down, and ghtools judges
none of it: gh-show counts and sums up. For iteration times use the format series, which the detector reads.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import Record

from .importers import File, Options
from .jsonpull import Leaves
from .lines import lines, place
from .logtext import Ahead, Told, printable
from .samples import Samples
from .series import MAX_NS, TIMES_NS

NAME = "rows"
DOC = (
    "rows of JSON or CSV (events, faults, metrics) as samples: --column A,B which numbers, --set labels=A,B which "
    "texts, --set time=COLUMN:UNIT when"
)

MAX_COLUMNS = 4096
_TIMES_NS = {**TIMES_NS, "d": 86400e9}

Row = dict[str, object]


def looks_like(first: bytes) -> bool:
    """Whether it begins as a JSON list of maps; other rows must be named."""
    return first[:4096].removeprefix(b"\xef\xbb\xbf").translate(None, b" \t\r\n").startswith((b'[{"',))


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Samples in the order of the rows. InputError where a row is none or nothing was found."""
    rows = _Rows(options)
    try:
        for file in files:
            source = Ahead(Told(file.source, file.name, options.warn))
            first = source.first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            made = (
                _of_list(Leaves(source, file.name))
                if first == b"["
                else _of_lines(source, file.name)
                if first == b"{"
                else _of_csv(source, file.name)
            )
            for row in made:
                yield from rows.add(row)
    except (GhError, Stopped):
        yield from rows.samples.flush()
        raise
    yield from rows.samples.flush()
    if not rows.samples.count:
        names = ", ".join(file.name for file in files[:3])
        raise InputError(f"no rows in {names}", "it holds no list of maps, JSON lines or CSV with a header")
    rows.missing()


class _Rows:
    """Turns rows into samples."""

    def __init__(self, options: Options) -> None:
        time, _, unit = options.more.get("time", "").partition(":")
        if unit and unit not in _TIMES_NS:
            raise GhError(f"cannot read times in {unit}", "no such unit", "--set time=COLUMN:" + ", ".join(_TIMES_NS))
        self._time, self._time_ns = time, _TIMES_NS[unit or "s"]
        self._wanted = set(filter(None, options.column.split(",")))
        picked = options.more.get("labels")
        self._labels = None if picked is None else set(filter(None, picked.split(",")))
        self._unseen = self._wanted | (self._labels or set()) | ({time} if time else set())
        self._warn = options.warn
        self.samples = Samples()

    def add(self, row: Row) -> Iterator[Record]:
        """One row."""
        if not row:
            return
        self._unseen -= row.keys()
        labels, numbers = {}, {}
        for key, value in row.items():
            number = _number(value)
            if key == self._time:
                continue
            if self._labels is not None and key in self._labels:
                labels[printable(key)] = printable(str(value))
            elif number is not None and (not self._wanted or key in self._wanted):
                numbers[key] = number
            elif number is None and self._labels is None and value not in (None, ""):
                labels[printable(key)] = printable(str(value))
        t_ns = (_number(row.get(self._time)) or 0.0) * self._time_ns if self._time else 0.0
        stamp = round(t_ns) if 0 <= t_ns < MAX_NS else 0
        for key, number in (numbers or ({} if self._wanted else {"rows": 1.0})).items():
            yield from self.samples.add(printable(key), "", labels, stamp, number)

    def missing(self) -> None:
        """Say which columns that were asked for no row had."""
        if self._unseen:
            self._warn("no row has " + ", ".join(sorted(printable(key) for key in self._unseen)))


def _number(value: object) -> float | None:
    """A number, also as text; NaN for an empty number (null is none); None for what is no number."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else math.nan


def _of_list(leaves: Leaves) -> Iterator[Row]:
    """The maps of a list; a nested map's keys are joined by dots."""
    row: Row = {}
    at: object = None
    for path, key, value in leaves:
        if not path or (len(path) == 1 and isinstance(key, int)):
            raise InputError(f"bad input at {leaves.where()}", "a value where a map should be")
        if path[0] != at:
            if row:
                yield row
            row, at = {}, path[0]
        in_list = isinstance(key, int) or any(isinstance(step, int) for step in path[1:])
        if len(row) < MAX_COLUMNS and not in_list:
            row[".".join(map(str, (*path[1:], key)))] = value
    if row:
        yield row


def _of_lines(source: Ahead, name: str) -> Iterator[Row]:
    for item in lines(source, name):
        if item is None or not item[1].strip():
            continue
        try:
            made = json.loads(item[1])
        except (ValueError, RecursionError):
            raise InputError(f"bad input at {place(name, item[0])}", "the line is no JSON") from None
        if not isinstance(made, dict):
            raise InputError(f"bad input at {place(name, item[0])}", "the line is no map")
        yield dict(_flat(made, ""))


def _flat(values: Mapping[str, object], before: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    for key, value in list(values.items())[:MAX_COLUMNS]:
        if isinstance(value, dict):
            if depth < 8:
                yield from _flat(value, f"{before}{key}.", depth + 1)
        elif not isinstance(value, list):
            yield f"{before}{key}", value


def _of_csv(source: Ahead, name: str) -> Iterator[Row]:
    header: list[str] = []
    delimiter = ","
    for item in lines(source, name):
        if item is None or not item[1].strip():
            continue
        try:
            text = item[1].decode("utf-8-sig")
            if not header:
                delimiter = max(",;\t", key=text.count)
            cells = [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter))]
        except (UnicodeDecodeError, csv.Error, StopIteration):
            raise InputError(f"bad input at {place(name, item[0])}", "the line is no CSV") from None
        if not header:
            header = cells[:MAX_COLUMNS]
            if all(_number(cell) is not None for cell in header):
                raise InputError(f"bad input at {place(name, item[0])}", "the first line is no header")
            continue
        yield {key: cell for key, cell in zip(header, cells, strict=False) if cell}
