# SPDX-License-Identifier: Apache-2.0
"""The same picture in a terminal: braille dots, two by four a character, and rows for episodes and phases."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import numpy as np

from ghtools.stream.records import PHASE_CODE

from . import text
from .plot_data import PlotData, ceiling, title

# Bit of the braille pattern for each dot of a character: [row][column].
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.int64)
MIN_COLUMNS = 30
RED, GREEN, BLUE, DIM, BOLD, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def lines(data: PlotData, columns: int, rows: int, *, log: bool = False, colour: bool = False) -> list[str]:
    """The picture as text lines of at most `columns` characters; the plot itself has `rows` of them."""
    paint = _Paint(colour)
    head, said = title(data)
    out = [paint(BOLD, head[:columns]), *wrap(said, columns)]
    if not data.iterations:
        return [*out, "no iterations in this stream"]
    _, low, high = data.lines()
    values = high[np.isfinite(high)]
    if not len(values):
        values = low = high = data.marks[:, : low.shape[1]]
        values = values[np.isfinite(values)]
    if not len(values):
        return [*out, "no time of any iteration can be trusted"]
    top = float(values.max()) * 1.05 if log else ceiling(data, values)
    bottom = float(np.nanmin(low)) * 0.9 if log else 0.0
    labels = _labels(bottom, top, rows, log)
    gutter = max(len(label) for label in [*labels, "iteration"]) + 1
    wide = max(MIN_COLUMNS, columns) - gutter - 2
    spots = _spots(low, high, bottom, top, wide, rows, log)
    slow = _slow(data, wide)
    for row in range(rows):
        cells = "".join(chr(0x2800 + int(bits)) if bits else " " for bits in spots[row])
        body = "".join(paint(RED if slow[at] else BLUE, cell) for at, cell in _runs(cells, slow))
        out.append(f"{labels[row]:>{gutter}}{paint(DIM, '┤' if labels[row] else '│')}{body}".rstrip())
    out.append(" " * gutter + paint(DIM, "└" + "─" * wide))
    out += _under(data, wide, gutter, slow, paint)
    return out


class _Paint:
    """Colour codes where they are wanted."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, code: str, what: str) -> str:
        return f"{code}{what}{PLAIN}" if self._on and what.strip() else what


def _runs(cells: str, slow: Any) -> list[tuple[int, str]]:
    """Stretches of equal colour as (first column, characters)."""
    cuts = [0, *(np.flatnonzero(np.diff(slow)) + 1).tolist(), len(cells)]
    return [(cuts[i], cells[cuts[i] : cuts[i + 1]]) for i in range(len(cuts) - 1)]


def _labels(bottom: float, top: float, rows: int, log: bool) -> list[str]:
    """Round times along the axis, some rows apart, each on the row that holds it."""
    made = [""] * rows
    if log:
        values = [m * 10.0**e for e in range(19) for m in (1, 2, 5) if bottom <= m * 10.0**e < top]
    else:
        rough = (top - bottom) * 4 / rows
        power = 10.0 ** np.floor(np.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
        values = [step * i for i in range(int(top / step) + 1)]
    last = rows + 1
    for value in values:
        row = rows - 1 - min(rows - 1, int(_height(value, bottom, top, log) * rows))
        if last - row >= 2:
            made[row], last = text.duration(value) if value else "0", row
    return made


def _spots(low: Any, high: Any, bottom: float, top: float, wide: int, rows: int, log: bool) -> Any:
    """Braille bits, shape (rows, wide): in each column of dots the span from least to greatest over ranks."""
    buckets = low.shape[1]
    dots_x, dots_y = 2 * wide, 4 * rows
    least, most = np.full(dots_x, np.nan), np.full(dots_x, np.nan)
    place = np.arange(buckets) * dots_x // max(buckets, 1)
    if buckets < dots_x:  # fewer iterations than dots: each stands for a stretch of them
        place = np.arange(dots_x) * buckets // dots_x
        least, most = np.fmin.reduce(low, axis=0)[place], np.fmax.reduce(high, axis=0)[place]
    else:
        np.fmin.at(least, place, np.fmin.reduce(low, axis=0))
        np.fmax.at(most, place, np.fmax.reduce(high, axis=0))
    bits = np.zeros((rows, wide), np.int64)
    for x in np.flatnonzero(np.isfinite(least)):
        ends = [_height(float(value), bottom, top, log) for value in (least[x], most[x])]
        first, last = (min(dots_y - 1, max(0, int(end * dots_y))) for end in ends)
        for y in range(first, last + 1):
            bits[rows - 1 - y // 4, x // 2] |= DOTS[3 - y % 4, x % 2]
    return bits


def _height(value: float, bottom: float, top: float, log: bool) -> float:
    if log:
        return float(np.log(value / bottom) / np.log(top / bottom))
    return (value - bottom) / (top - bottom)


def _column(data: PlotData, index: int, wide: int) -> int:
    return min(wide - 1, max(0, (index - data.first) * wide // max(1, data.iterations)))


def _slow(data: PlotData, wide: int) -> Any:
    slow = np.zeros(wide, bool)
    for episode in data.shown:
        end = episode.end if episode.end is not None else data.first + data.iterations
        slow[_column(data, episode.begin, wide) : max(_column(data, end, wide), 1)] = True
    return slow


def _under(data: PlotData, wide: int, gutter: int, slow: Any, paint: _Paint) -> list[str]:
    """Rows under the axis: numbers of iterations, slow times, planted ones, phases."""
    last = data.first + data.iterations - 1
    numbers = [" "] * wide
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        label = str(data.first + round(share * (data.iterations - 1)))
        at = min(_column(data, int(label), wide), wide - len(label))
        numbers[at : at + len(label)] = label
    made = [f"{'iteration':>{gutter}} " + "".join(numbers).rstrip()]
    if slow.any():
        row = ["━" if there else " " for there in slow]
        made.append(_row("slow", "".join(row), gutter, RED, paint))
    if data.planted:
        row = [" "] * wide
        for planted in data.planted:
            end = planted.end if planted.end is not None else last + 1
            for at in range(_column(data, planted.begin, wide), _column(data, end, wide) + (end > last)):
                row[at] = "━"
            row[_column(data, planted.begin, wide)] = "┣"
        made.append(_row("planted", "".join(row), gutter, DIM, paint))
    marks = [" "] * wide
    x = data.x()
    for phase, sign in (("warmup", "w"), ("outlier", "o"), ("rearm", "n"), ("restart", "R")):
        for bucket in np.flatnonzero(np.isfinite(data.marks[PHASE_CODE[phase], : len(x)])):
            marks[_column(data, int(x[bucket]), wide)] = sign
    if set(marks) != {" "}:
        made.append(_row("phase", "".join(marks), gutter, DIM, paint))
        names = {"w": "w warm-up", "o": "o evaluation or checkpoint", "n": "n new pattern", "R": "R restart"}
        made.append(" " * (gutter + 1) + ", ".join(name for sign, name in names.items() if sign in marks))
    return made


def _row(name: str, cells: str, gutter: int, code: str, paint: _Paint) -> str:
    return f"{name:>{gutter}} {paint(code, cells.rstrip())}"
