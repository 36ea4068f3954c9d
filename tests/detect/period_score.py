# SPDX-License-Identifier: Apache-2.0
"""Whether the period finder was right about a synthetic stream whose truth is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ghtools.detect.period import PeriodFinder
from ghtools.source.synth_calls import CallStream
from ghtools.stream.records import Calls, Iters, Period

STEADY, WARMUP, REARM, GAP = 0, 1, 4, 5


@dataclass
class Score:
    """state is right, wrong or unknown; why says what is wrong."""

    state: str
    why: str = ""


def run(finder: PeriodFinder, batches: Iterable[Calls]) -> tuple[list[Iters], list[Period]]:
    """All that a finder makes of a stream."""
    made = [rec for batch in batches for rec in finder.feed(batch)] + list(finder.flush())
    return [m for m in made if isinstance(m, Iters)], [m for m in made if isinstance(m, Period)]


def joined(made: list[Iters]) -> Iters:
    """The records of one rank as one."""
    names = ("index", "t_ns", "dur_ns", "phase", "calls", "seq")
    return Iters(**{n: np.concatenate([getattr(m, n) for m in made]) for n in names})


def score(stream: CallStream, made: list[Iters], late: int = 3, lossy: bool = False) -> Score:
    """Compare with the truth: calls, alignment, coverage and times.

    `late` iterations at the beginning and two at the end may be missing; `lossy` allows for damaged ones.
    """
    if not made:
        return Score("unknown")
    it = joined(made)
    steady = (it.phase == STEADY) | (it.phase == WARMUP) | (it.phase == REARM)
    steady &= np.abs(it.calls - stream.n_calls) <= 2  # a call may have changed sides
    true = np.searchsorted(stream.starts, it.seq, "right") - 1
    if lossy:  # by seq it is a whole iteration
        steady |= np.append(np.diff(it.seq) == stream.n_calls, False) & (it.phase == GAP)
    if not steady.any():
        return Score("wrong", f"no iteration has {stream.n_calls} calls, most have {int(np.median(it.calls))}")
    odd = (it.phase == STEADY) & (it.calls != stream.n_calls)
    off = it.calls[odd] - stream.n_calls
    if (np.abs(off) > 2).any() or abs(off.sum()) > 0.03 * len(it.seq):  # a call that changed sides is missing there
        return Score("wrong", f"{odd.sum()} iterations of other sizes are called steady")
    shift = it.index[steady] - true[steady]
    if not lossy and np.ptp(shift) > 1:  # 1 when the anchor moves within the iteration
        return Score("wrong", f"numbers drift from the loop's by {np.ptp(shift)}")
    whole = stream.starts >= stream.calls.seq[0]
    expected = stream.regular & whole
    expected[np.flatnonzero(whole)[:late]] = False
    expected[-2:] = False
    got = np.isin(np.flatnonzero(expected), true[steady])
    if len(got) and got.mean() < (0.4 if lossy else 0.85):
        return Score("wrong", f"{got.sum()} of {len(got)} ordinary iterations were found")
    loop = np.diff(stream.starts_ns)
    pick = true[steady & (it.phase != WARMUP)]
    pick = pick[pick < len(loop)]
    ratio = float(np.median(it.dur_ns[steady]) / np.median(loop[pick])) if len(pick) else 1.0
    if abs(ratio - 1) > 0.01 + 0.05 / max(1, len(pick)) ** 0.5:
        return Score("wrong", f"median time is {ratio:.3f} of the loop's")
    return Score("right")
