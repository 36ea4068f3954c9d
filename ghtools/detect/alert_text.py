# SPDX-License-Identifier: Apache-2.0
"""Durations, costs and ratios in the words of an alert."""

from __future__ import annotations


def span_text(before_ns: int, after_ns: int) -> str:
    """Two durations in one unit: `312 -> 905 ms`."""
    top = max(before_ns, after_ns)
    unit, size = ("us", 1e3) if top < 1_000_000 else ("ms", 1e6) if top < 10_000_000_000 else ("s", 1e9)
    return f"{_digits(before_ns / size)} -> {_digits(after_ns / size)} {unit}"


def _digits(value: float) -> str:
    """Three significant digits, never fewer than the whole part."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def cost_text(ns: int) -> str:
    """A length of time for people: `0.4 s`, `53 s`, `12 min`, `3.5 h`."""
    seconds = ns / 1e9
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 10_800 else f"{seconds / 3600:.1f} h"


def percent_text(ratio: float) -> str:
    """A ratio as a signed change: `+190 %`."""
    return f"{(ratio - 1) * 100:+.0f} %"
