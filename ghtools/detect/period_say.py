# SPDX-License-Identifier: Apache-2.0
"""What the period finder believes, in sentences."""

from __future__ import annotations

from ghtools.stream.records import Period


def human_ns(ns: float) -> str:
    """A time for people: 312 ms."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def sentence(p: Period) -> str:
    """One line on what a record of state says."""
    who = "all ranks" if p.rank < 0 else f"rank {p.rank}"
    if p.state == "found":
        begins = f", begins with {p.anchor}" if p.anchor else ""
        return f"{who}: an iteration is {p.calls} calls, {human_ns(p.dur_ns)} ({p.method}{begins})"
    if p.state == "rearm":
        return f"{who}: the pattern of calls has changed, looking again"
    best = f"; {p.candidates[0]['why']}" if p.candidates else ""
    return f"{who}: cannot tell what an iteration is{best}; --marker names the call that begins one"


def explain(p: Period) -> list[str]:
    """One line a candidate, longest first."""
    return [
        f"rank {p.rank}:   {row['calls']} calls, {human_ns(row['dur_ns'])}, {row['repeats']} times, "
        f"{row['share']:.0%} of all calls: {row['why']}"
        for row in p.candidates
    ]
