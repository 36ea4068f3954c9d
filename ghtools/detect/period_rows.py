# SPDX-License-Identifier: Apache-2.0
"""Pieces of a rank's stream as records of iterations: numbered, and each with its phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ghtools.detect.period_pattern import SHORT, Bools, Pattern
from ghtools.detect.period_symbols import I64, U64, Columns
from ghtools.stream.records import PHASE_CODE, Iters

STEADY, WARMUP, OUTLIER, RESTART, REARM, GAP = (
    PHASE_CODE[p] for p in ("steady", "warmup", "outlier", "restart", "rearm", "gap")
)
WARMUP_ITERS = 3


@dataclass
class Pieces:
    """What lies between successive cuts; arrays of equal length."""

    a: I64  # index of the first call
    b: I64  # index of the call that begins the next piece
    count: I64
    dur: I64
    sig: U64
    gap: Bools  # calls were lost inside, or time went backwards
    ok: Bools  # an ordinary iteration
    fits: Bools  # calls were lost inside, but by seq their number is that of an ordinary iteration

    @classmethod
    def of(cls, c: Columns, at: I64, sums: U64, pattern: Pattern) -> Pieces:
        """The pieces of `c` between cuts `at`; `sums` are the prefix sums of its hashes."""
        a, b = at[:-1], at[1:]
        dur = c.t[b] - c.t[a]
        gap = dur <= 0
        if c.broken.any():
            lost = np.cumsum(c.broken)
            gap |= lost[b] > lost[a]
        sig = sums[b] - sums[a]
        fits = gap & (c.seq[b] - c.seq[a] == pattern.calls)
        return cls(a, b, b - a, dur, sig, gap, pattern.ordinary(sig) & ~gap, fits)

    def __len__(self) -> int:
        return len(self.a)

    @property
    def phase(self) -> NDArray[np.uint8]:
        """Steady, gap or outlier."""
        return np.where(self.ok, STEADY, np.where(self.gap, GAP, OUTLIER)).astype(np.uint8)


class Numbering:
    """Numbers one rank's iterations and gives them their phase."""

    def __init__(self, rank: int) -> None:
        self.rank, self.incarnation = rank, 0
        self.index = 0  # of the next iteration
        self.emitted = 0  # of this incarnation
        self.from_start = False  # the incarnation was seen from its first call on
        self._pending = STEADY  # restart or rearm, for the next iteration
        self._end_seq = -1  # seq of the call after the last iteration delivered

    def restart(self, incarnation: int) -> None:
        """The process began anew."""
        if self.emitted:
            self._pending = RESTART
        self.incarnation, self.emitted, self._end_seq = incarnation, 0, -1

    def rearm(self) -> None:
        """The pattern of calls changed."""
        if self.emitted and self._pending == STEADY:
            self._pending = REARM

    def rows(self, c: Columns, pieces: Pieces, n: int, pattern: Pattern) -> list[Iters]:
        """A record of the first n pieces; none if n is 0."""
        if n == 0:
            return []
        a, b, count, dur, phase = pieces.a[:n], pieces.b[:n], pieces.count[:n], pieces.dur[:n], pieces.phase[:n]
        if pattern.every == 1 and (phase == OUTLIER).any():
            keep = _whole(count < SHORT * pattern.calls, phase)
            if not keep.all():
                heads = np.flatnonzero(keep)
                a, phase = a[heads], np.maximum.reduceat(phase, heads)
                b = np.append(a[1:], b[-1])
                count, dur = b - a, c.t[b] - c.t[a]
        step = np.ones(len(a), np.int64)
        per = max(1, pattern.calls)
        if (phase == GAP).any():
            spans = (c.seq[b] - c.seq[a])[phase == GAP]
            step[phase == GAP] = np.maximum(1, np.round(spans / per)) if pattern.calls else 1
        if 0 <= self._end_seq < c.seq[a[0]]:  # calls in between belong to no iteration that was delivered
            self.index += round(int(c.seq[a[0]] - self._end_seq) / per)
        self._end_seq = int(c.seq[b[-1]])
        index = self.index + np.concatenate(([0], np.cumsum(step)[:-1]))
        self.index += int(step.sum())
        began, self.emitted = self.emitted, self.emitted + len(a)
        self._mark(phase, began)
        return [
            Iters(
                rank=self.rank, incarnation=self.incarnation, index=index, t_ns=c.t[a], dur_ns=np.maximum(dur, 0),
                phase=phase, calls=count.astype("<i4"), seq=c.seq[a],
            )
        ]  # fmt: skip

    def _mark(self, phase: NDArray[np.uint8], began: int) -> None:
        """Set warm-up, restart and re-arm."""
        if began < WARMUP_ITERS and (self.from_start or self.incarnation > 0):
            ordinary = np.flatnonzero(phase == STEADY)
            odd = phase[: ordinary[0]] if len(ordinary) else phase
            odd[odd == OUTLIER] = WARMUP
            lead = phase[: WARMUP_ITERS - began]
            lead[lead == STEADY] = WARMUP
        if self._pending == RESTART:
            phase[0], self._pending = RESTART, STEADY
        elif self._pending == REARM:
            good = np.flatnonzero(phase == STEADY)
            if len(good):
                phase[good[0]], self._pending = REARM, STEADY


def _whole(short: Bools, phase: NDArray[np.uint8]) -> Bools:
    """Which pieces stand alone: a short odd piece is a part of the odd one before it, or of one after it if first."""
    short = short & (phase == OUTLIER)
    keep = ~short
    keep[np.flatnonzero(short & np.concatenate(([True], phase[:-1] != OUTLIER)))] = True
    return keep
