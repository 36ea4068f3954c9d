# SPDX-License-Identifier: Apache-2.0
"""Markdown for the detector's studies: shares with their 95 % intervals, delays, and what was run."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ghtools import __version__
from ghtools.detect.score import Report, quantile, wilson


def share(hits: int, n: int) -> str:
    """`0.05 (0.01 to 0.28)`, per cent."""
    if not n:
        return "-"
    low, high = (100 * edge for edge in wilson(hits, n))
    return f"{100 * hits / n:.2f} ({low:.2f} to {high:.2f})"


def delays(values: Sequence[float]) -> str:
    """`5 / 8 (8 to 9)`: median, p95 and the interval of p95."""
    if not len(values):
        return "-"
    high, low_edge, high_edge = quantile(values, 0.95)
    return f"{quantile(values, 0.5)[0]:.0f} / {high:.0f} ({low_edge:.0f} to {high_edge:.0f})"


def all_of(report: Report, name: str) -> list[float]:
    return [float(value) for one in report.series for value in getattr(one, name)]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def commit() -> str:
    """The source that was measured; a + says that files of the detector differ from it."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", ":/ghtools/detect", ":/csrc/native")
    return (git("rev-parse", "--short", "HEAD") or "no git") + ("+" if changed else "")


def header(title: str, command: str, seed: int, wall_s: float, about: str) -> str:
    """The begin of a result file."""
    return (
        f"# {title}\n\n{about}\n\n`{command}`; seed {seed}; ghtools {__version__} at {commit()}, "
        f"Python {platform.python_version()}, numpy {np.__version__}; {wall_s:.0f} s. Made by `make bench-detect`.\n\n"
        "Per cent with 95 % intervals (Wilson). Delays are iterations after the first slow one, median / p95 (interval "
        "of p95).\n"
    )
