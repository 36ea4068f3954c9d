# SPDX-License-Identifier: Apache-2.0
"""A score as a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from ghtools.detect.score import Report, quantile, rate, wilson

from . import text

MOST_LISTED = 20
DELAYS = (
    ("delay", "confirmed after"),
    ("suspected", "suspected after"),
    ("relief_delay", "end said after"),
    ("off", "onset off by"),
)


def table(report: Report) -> Iterator[str]:
    """The lines: shares, rates and delays with their 95 % intervals, then what was missed and what was false."""
    rows = [["", "", "", "95 % interval"]]
    for name, (hits, n) in report.shares().items():
        low, high = wilson(hits, n)
        if n:
            row = [name, f"{hits} of {n}", f"{100 * hits / n:.2f} %", f"{100 * low:.2f} to {100 * high:.2f} %"]
            rows.append(row)
    iters = sum(one.iters for one in report.series)
    known = all(one.iters for one in report.series) and iters > 0
    for name, key in (("false episodes", "false"), ("false suspicions", "doubts")):
        events = sum(len(one.false) if key == "false" else one.doubts for one in report.series)
        row = [name, f"{events}", "-", "-"]
        if known:
            low, high = rate(events, iters / 1e4)
            row[2:] = [f"{events / iters * 1e4:.3g} per 10,000 iterations", f"{low:.3g} to {high:.3g}"]
        rows.append(row)
    for key, name in DELAYS:
        values = [float(value) for one in report.series for value in getattr(one, key)]
        for label, q in (("median", 0.5), ("p95", 0.95)):
            middle, low, high = quantile(values, q)
            if not isnan(middle):
                rows.append([f"{name}, {label}", f"{len(values)}", f"{middle:g} iterations", f"{low:g} to {high:g}"])
    errors = [abs(error) for one in report.series for error in one.ratio_error]
    if errors:
        middle, low, high = quantile(errors, 0.5)
        rows.append(
            [
                "ratio off by, median",
                f"{len(errors)}",
                f"{100 * middle:.1f} %",
                f"{100 * low:.1f} to {100 * high:.1f} %",
            ]
        )
    rows += [
        [name, f"{count}", "", ""]
        for name, count in (
            ("named fail-slow, labelled otherwise", sum(len(one.misnamed) for one in report.series)),
            ("said again inside one episode", sum(one.repeated for one in report.series)),
            ("parts accused wrongly", report.parts.wrong),
        )
        if count
    ]
    yield from text.aligned(rows, " r  ")
    if not known:
        yield "rates need the number of iterations: keep them in the stream (`gh-bocd --keep`), or --iters N"
    yield from _listed(report)


def _listed(report: Report) -> Iterator[str]:
    lines = []
    for number, one in enumerate(report.series, 1):
        where = f"series {number}: " if len(report.series) > 1 else ""
        lines += [f"{where}missed: {m.kind} since iteration {m.onset}" for m in one.missed]
        lines += [
            f"{where}false: {c.verdict} since iteration {c.onset_index}, said at {c.said_index}, "
            f"{text.per_cent(c.ratio)}"
            for c in one.false
        ]
    yield from lines[:MOST_LISTED]
    if len(lines) > MOST_LISTED:
        yield f"and {len(lines) - MOST_LISTED} more"
