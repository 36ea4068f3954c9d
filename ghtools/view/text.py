# SPDX-License-Identifier: Apache-2.0
"""Numbers as people write them: durations, clock times, sizes, ranks, communicators."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

LOG_CLOCK_NS = 10**15  # times below 11.6 days since the epoch are offsets into a log, not dates


def duration(ns: float) -> str:
    """A duration in three digits with its unit: 312 ms, 4.1 s, 2 min 05 s."""
    if ns < 0:
        return "-" + duration(-ns)
    if ns < 1000:
        return f"{ns:.0f} ns"
    for limit, unit, size in ((999.5e3, "us", 1e3), (999.5e6, "ms", 1e6), (99.95e9, "s", 1e9)):
        if ns < limit:
            return f"{_three(ns / size)} {unit}"
    seconds = round(ns / 1e9)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds // 60 % 60:02d} min"


def _three(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(count: int) -> str:
    """Bytes in powers of 1000, as nccl-tests counts bandwidth: 4.19 MB."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    units = ["kB", "MB", "GB", "TB", "PB", "EB"]
    while (value := value / 1000) >= 999.5 and len(units) > 1:
        units.pop(0)
    return f"{_three(value)} {units[0]}"


def clock(t_ns: int, *, fine: bool = False, date: bool = False) -> str:
    """Local time of day hh:mm:ss, to the microsecond if `fine`; an offset into a log as +h:mm:ss."""
    second, rest = divmod(t_ns, 10**9)
    tail = f".{rest // 1000:06d}" if fine else ""
    if abs(t_ns) < LOG_CLOCK_NS:
        sign = "+" if t_ns >= 0 else "-"
        second = abs(t_ns) // 10**9
        return f"{sign}{second // 3600}:{second // 60 % 60:02d}:{second % 60:02d}{tail}"
    try:
        local = time.localtime(second)
    except (OverflowError, ValueError, OSError):  # a nonsense time in the input is no reason to stop
        return f"{t_ns} ns"
    return time.strftime("%Y-%m-%dT%H:%M:%S" if date else "%H:%M:%S", local) + tail


def short_comm(comm: int) -> str:
    """A communicator's identity as the first six hex digits of its 64-bit hash."""
    return f"{comm & (1 << 64) - 1:016x}"[:6]


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks as 0-3,7."""
    parts: list[str] = []
    first = last = None
    for rank in sorted(set(ranks)):
        if last is not None and rank == last + 1:
            last = rank
            continue
        parts += _span(first, last)
        first = last = rank
    return ",".join(parts + _span(first, last))


def _span(first: int | None, last: int | None) -> list[str]:
    if first is None:
        return []
    return [f"{first}" if first == last else f"{first}-{last}"]


def per_cent(ratio: float) -> str:
    """A ratio after / before as +190 %."""
    change = (ratio - 1) * 100
    return f"{change:+.0f} %" if abs(change) >= 10 else f"{change:+.1f} %"


def plural(count: int, word: str, words: str = "") -> str:
    """1 call, 2 calls."""
    return f"{count} {word if count == 1 else words or word + 's'}"


def aligned(rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Rows of cells as lines with aligned columns; `right` has an r for each right-aligned one."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right[i : i + 1] == "r" else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
