# SPDX-License-Identifier: Apache-2.0
"""A known iteration: where to cut the stream, and which pieces are ordinary."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ghtools.detect.period_choose import Choice
from ghtools.detect.period_levels import cuts, tokens
from ghtools.detect.period_symbols import I64, REDUCING, SCALAR_BYTES, U64, Columns, describe

Bools = NDArray[np.bool_]
SHORT = 0.6  # of an ordinary piece: one with fewer calls is a part of something
_NONE = np.empty(0, np.uint64)


@dataclass
class Pattern:
    """An iteration: `every` pieces between occurrences of `token`, with the calls of `accepted` in any order."""

    order: int  # calls in the token; 0 = every call is a cut
    token: int
    every: int
    calls: int  # of an iteration; 0 = not known yet (a marker)
    accepted: U64  # sums of the ordinary pieces
    reduces: bool  # a large reducing call is among them
    dur_ns: int
    method: str
    anchor: str
    confidence: float
    any_piece: bool = False  # what is between two cuts does not matter
    families: U64 = field(default_factory=lambda: _NONE)  # (op, dtype, communicator, peer) that occur in a piece
    symbols: U64 = field(default_factory=lambda: _NONE)  # calls that occur in a piece
    spare: U64 = field(default_factory=lambda: _NONE)  # other calls made once in a piece, best anchor first

    def cut(self, c: Columns, context: U64) -> I64:
        """Index of the calls at which pieces begin; `context` are the hashes of the calls before `c`."""
        if self.order == 0:
            return np.arange(0, len(c))
        if self.order == 1:
            return np.flatnonzero(c.h == np.uint64(self.token))
        k = len(context)
        token = tokens(np.concatenate([context, c.h]), self.order)[k:]
        at = np.flatnonzero(token == np.uint64(self.token))
        return at[at >= self.order - 1 - k]

    def ordinary(self, sig: U64) -> Bools:
        """Which pieces have the pattern's calls; also two in a row that have them together (a call changed sides)."""
        if self.any_piece:
            return np.ones(len(sig), bool)
        ok: Bools = sig == self.accepted[0]
        odd = np.flatnonzero(~ok[:-1] & ~ok[1:])
        if len(odd):
            twice = odd[sig[odd] + sig[odd + 1] == self.accepted[:1] * np.uint64(2)]
            ok[twice] = ok[twice + 1] = True
        return ok

    def nth(self, c: Columns, at: I64) -> I64:
        """Every `every`-th cut, from the first; lost calls are counted by seq, short pieces do not count."""
        if self.every == 1 or not len(at):
            return at
        keep = np.append(np.diff(at) >= SHORT * self.calls / self.every, True)
        keep[0] = True
        at = at[keep]
        if not c.broken[at[0] + 1 :].any():
            return at[:: self.every]
        number: I64 = np.round((c.seq[at] - c.seq[at[0]]) / max(1, self.calls // self.every)).astype(np.int64)
        chosen: I64 = at[number % self.every == 0]
        return chosen


def reduces_much(c: Columns) -> bool:
    """Whether a reducing call of more than a few numbers is among the calls."""
    return bool((np.isin(c.op, list(REDUCING)) & (c.bytes > SCALAR_BYTES)).any())


def pattern_of(c: Columns, choice: Choice, names: dict[int, str]) -> Pattern:
    """What is needed of a choice made on window `c` to go on from there."""
    level = choice.level
    assert level is not None
    w = c.cut(choice.window)
    a = int(level.starts[0])
    inside = w.cut(a, a + level.calls)
    dur_ns = level.dur_ns * choice.every
    if choice.every > 1 and level.order > 0:
        whole = np.diff(w.t[cuts(w, level)[choice.phase :: choice.every]])
        dur_ns = int(np.median(whole)) if len(whole) else dur_ns
    return Pattern(
        order=level.order, token=level.token, every=choice.every, calls=level.calls * choice.every,
        accepted=np.array([np.uint64(level.sig * choice.every % (1 << 64))]), reduces=reduces_much(inside),
        families=np.unique(inside.family), symbols=np.unique(inside.h), dur_ns=dur_ns, method=choice.method,
        anchor=describe(w, a, names),
        confidence=round(min(1.0, level.share), 3),
        any_piece=level.order == 0, spare=_spare(inside) if choice.every == 1 else _NONE,
    )  # fmt: skip


def _spare(piece: Columns) -> U64:
    """Calls made once in the piece other than its first: large reducing ones, then those after a long gap."""
    _, first, count = np.unique(piece.h, return_index=True, return_counts=True)
    once = first[(count == 1) & (first > 0)]
    large = np.isin(piece.op[once], list(REDUCING)) & (piece.bytes[once] > SCALAR_BYTES)
    gap = piece.t[once] - piece.t[once - 1]
    out: U64 = piece.h[once[np.lexsort((-gap, ~large))]]
    return out
