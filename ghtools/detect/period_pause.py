# SPDX-License-Identifier: Apache-2.0
"""Where a level's host time goes: pauses inside its pieces, between them, and by place in a longer level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ghtools.detect import period_timing as timing
from ghtools.detect.period_levels import Level
from ghtools.detect.period_symbols import I64, U64, Columns

DISTINCT = 1.3  # a pause so many times the next longer gap is one of its kind
SAMPLE = 64  # pieces looked at, the latest
MAX_ROWS, MAX_PLACES, MAX_FOLD = 2048, 32, 256  # pieces, places in them, and repetition looked for
CHANCE = -6.0  # log10: what is less likely by chance is believed


def own_pause(c: Columns, level: Level) -> float:
    """Longest median gap of the level's pieces over the second longest; 0 if a piece has one call."""
    if level.calls < 2 or not len(level.starts):
        return 0.0
    starts = level.starts[level.starts + level.calls < len(c)][-SAMPLE:]
    if not len(starts):
        return 0.0
    at = starts[:, None] + np.arange(level.calls + 1)
    gaps = np.sort(np.median(np.diff(c.t[at], axis=1), axis=0))
    return float(gaps[-1] / max(gaps[-2], 1.0))


def peaks(c: Columns, at: I64) -> I64:
    """Longest gap of each piece between successive cuts `at`. Shape (len(at) - 1,)."""
    if len(at) < 2:
        return np.empty(0, np.int64)
    return np.maximum.reduceat(np.diff(c.t)[: at[-1]], at[:-1])


@dataclass(frozen=True)
class Repeat:
    """A pause that comes with every k-th piece."""

    every: int
    place: int  # number of the piece, of k, that has it
    excess: float  # by how much it is longer than in the other pieces, in pieces


def repeats(c: Columns, level: Level, at: I64, among: frozenset[int] | None = None) -> Repeat | None:
    """Whether the gap at some place of the level's pieces repeats every k pieces (k in `among` if given), else None.

    Looks at the places whose gaps vary most, over the latest unbroken run of modal pieces.
    """
    whole = np.diff(at) == level.calls
    odd = np.flatnonzero(~whole)
    begin = int(odd[-1]) + 1 if len(odd) and odd[-1] < len(whole) // 2 else 0
    if not len(odd) or begin:
        starts = at[begin:-1]
        used = starts[starts + level.calls < len(c)][-MAX_ROWS:]
    else:
        used = at[:-1][whole][-MAX_ROWS:]  # numbers are wrong after an odd piece: only a pause in all of it would show
        return None if whole.mean() < 0.9 else _fold(c, level, used, 0, among)
    return _fold(c, level, used, int(np.searchsorted(at, used[0])) if len(used) else 0, among)


def _fold(c: Columns, level: Level, starts: I64, first: int, among: frozenset[int] | None) -> Repeat | None:
    if len(starts) < 12:
        return None
    gaps = np.diff(c.t[starts[:, None] + np.arange(level.calls + 1)], axis=1)
    logs = np.log(np.maximum(gaps, 1))
    spread = (gaps - np.median(gaps, axis=0)).clip(0).mean(axis=0)  # time beyond the usual gap
    some = np.argsort(-spread)[:MAX_PLACES]
    series, k, chance = timing.fold(logs[:, some], min(MAX_FOLD, len(starts) // 4), among)
    if not k or chance > CHANCE:
        return None
    rows = gaps[: len(gaps) // k * k, some[series]].reshape(-1, k)
    mid = np.median(rows, axis=0)
    odd = float(mid.max() - np.sort(mid)[(k - 1) // 2])
    return Repeat(k, (int(np.argmax(mid)) + first) % k, odd / max(1, level.dur_ns))


def durations(c: Columns, level: Level) -> I64:
    """Duration of each modal piece of the level."""
    return c.t[np.minimum(level.starts + level.calls, len(c) - 1)] - c.t[level.starts]


def by_position(c: Columns, level: Level, longer: Level) -> bool:
    """Whether the level's pieces clearly differ in time by their place inside `longer`."""
    lo = np.searchsorted(level.starts, longer.starts)
    hi = np.searchsorted(level.starts, longer.starts + longer.calls - level.calls + 1)
    inner = hi - lo - 2  # the outermost ones touch what is between
    k = int(np.median(inner)) if len(inner) else 0
    if k < 2:
        return False
    dur = durations(c, level)
    rows = [dur[a + 1 : a + 1 + k] for a, n in zip(lo.tolist(), inner.tolist(), strict=True) if n == k]
    if len(rows) < 3:
        return False
    f, spread = timing.fold_effect(np.log(np.maximum(np.array(rows, float), 1.0)))
    return f > 4.0 and spread > timing.MIN_EFFECT


def cuts_in(at: I64, longer: Level) -> int:
    """How many of the cuts `at` fall into one piece of `longer`."""
    return int(np.median(np.searchsorted(at, longer.starts + longer.calls) - np.searchsorted(at, longer.starts)))


@dataclass(frozen=True)
class Outside:
    """The pause in a longer level that its shorter pieces do not have."""

    excess: float  # by how much it is longer than a piece's own pause, in pieces
    share: float  # of the longer level's time


def outside(c: Columns, level: Level, longer: Level, at: I64) -> Outside:
    """How the one odd pause in `longer` compares with the pieces of `level`, cut at `at`."""
    piece = max(1.0, float(np.median(durations(c, level))))
    many = cuts_in(at, longer)
    rows = [a for a in np.searchsorted(at, longer.starts).tolist() if a + many < len(at)][-SAMPLE:]
    if many < 2 or len(rows) < 3:
        return Outside(0.0, 0.0)
    order = np.array(rows)[:, None] + np.arange(many)  # (rows, pieces)
    like = c.h[level.starts[0] : level.starts[0] + level.calls]
    head, from_head = _gaps(c, at[order], like, 1)
    tail, from_tail = _gaps(c, at[order + 1] - level.calls, like, -1)
    known = np.where(from_head, head, np.where(from_tail, tail, np.nan))
    known[0, 0, ~(from_head | from_tail).any(axis=(0, 1))] = 0.0
    gaps = np.where(np.isnan(known), np.nanmedian(known, axis=(0, 1)), known)
    middle = np.median(gaps, axis=0)  # (pieces, calls)
    noise = 1.86 * np.median(np.abs(gaps - middle), axis=(0, 1)) / np.sqrt(len(rows))  # of a median
    usual = np.sort(middle, axis=0)[(many - 1) // 2]
    odd = np.where(middle.max(axis=0) - usual > 6 * noise, middle.max(axis=0) - usual, 0.0)
    return Outside(float(odd.max()) / piece, float(odd.max()) / max(1, longer.dur_ns))


def _gaps(c: Columns, first: I64, like: U64, step: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Gap before each call of the pieces that begin at `first`, and whether the calls are as usual up to there.

    Up to there from the front for step 1, from the back for -1: an extra call in a piece shifts what follows.
    Shapes (rows, pieces, calls).
    """
    call = np.clip(first[:, :, None] + np.arange(len(like)), 0, len(c) - 1)
    same = np.cumprod((c.h[call] == like)[:, :, ::step], axis=2, dtype=bool)[:, :, ::step]
    return (c.t[call] - c.t[np.maximum(call - 1, 0)]).astype(float), same


def blocks_differ(c: Columns, longer: Level, at: I64, k: int, least: float) -> bool:
    """Whether blocks of k pieces differ in time by their place inside `longer`: then k is too short, too."""
    dur = np.diff(c.t[at])
    lo = np.searchsorted(at[:-1], longer.starts)
    many = cuts_in(at, longer) // k
    if many < 2:
        return True
    rows = [dur[a : a + many * k].reshape(many, k).sum(axis=1) for a in lo.tolist() if a + many * k <= len(dur)]
    if len(rows) < 3:
        return False
    mid = np.median(np.array(rows, float), axis=0)
    return bool(mid.max() / np.median(mid) - 1.0 > least)


def one_long(dur: I64, k: int) -> bool:
    """Whether only one of k positions differs from the others."""
    mid = np.log(np.median(np.maximum(dur[: len(dur) // k * k], 1).reshape(-1, k).astype(float), axis=0))
    rest = np.delete(mid, int(np.argmax(mid)))
    return bool(len(rest) < 2 or np.std(rest) < timing.MIN_EFFECT)
