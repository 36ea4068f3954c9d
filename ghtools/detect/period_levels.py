# SPDX-License-Identifier: Apache-2.0
"""Levels of repetition in a window of calls (ALGORITHMS.md section 2.4, generalised).

A token is a call together with the one or two before it. Cutting the window at every occurrence of one
token gives pieces; the pieces that have the same multiset of calls and hold most of the window are that
token's modal pieces. Tokens whose modal pieces are the same multiset (rotations of one pattern) are one
level: a layer, a micro-batch, an iteration, the distance between two evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ghtools.detect.period_symbols import I64, REDUCING, SCALAR_BYTES, U64, Columns

ORDERS = (1, 2, 3)  # calls in a token
LONG_ORDERS = (
    1,
    2,
    3,
    5,
    8,
    16,
    32,
    64,
    128,
)  # the same where these show no iteration (a pipeline's schedule of equal calls)
MIN_CHAINED = 0.2
MIN_SHARE = 0.4  # of the window's calls that a level's modal pieces must hold
_A, _B = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)


@dataclass
class Level:
    """One level: the multiset `sig` of its pieces, `calls` each, and how to cut the window at it."""

    sig: int
    calls: int
    count: int  # modal pieces under the best token
    share: float  # of the window's calls in those pieces
    order: int  # calls in the token; 0 = every call is one
    token: int
    purity: float  # of the token's pieces that are not shorter: low if the token is also in evaluation
    reduces: bool = False  # the anchor reduces something large: forward passes alone do not
    chained: float = 1.0  # of the modal pieces: directly followed by another
    pause: float = 0.0  # mean log of the gap before the anchor, or of the longest inside a token of several calls
    starts: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # first call of each modal piece
    dur_ns: int = 0  # median
    inside: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))  # calls in modal pieces

    def better_cut(self, than: Level) -> bool:
        """Whether this token cuts the level better: more modal pieces, purer, shorter, and at a better place.

        The best place for one call is after the longest pause, where the iteration begins. A token of several
        calls must not have the pause between them: that is where extra calls come in.
        """
        if self.reduces != than.reduces and self.order == than.order == 1:
            with_, without = (self, than) if self.reduces else (than, self)
            if with_.count > 0.6 * without.count:
                return self.reduces
        if abs(self.count - than.count) > 0.03 * than.count + 1:
            return self.count > than.count
        if abs(self.purity - than.purity) > 0.05:
            return self.purity > than.purity
        if self.order != than.order:
            return self.order < than.order
        return self.pause > than.pause if self.order == 1 else self.pause < than.pause


def tokens(h: U64, order: int) -> U64:
    """Token of each call: a hash of it and the `order` - 1 calls before it; the first ones lack context."""
    out = h
    for back in range(1, order):
        shifted = np.zeros_like(h)
        shifted[back:] = h[:-back]
        out = (out * _A) ^ (shifted * _B + np.uint64(back))
    return out


def prefix_sums(h: U64) -> U64:
    """S with S[j] - S[i] the multiset of calls i to j - 1; one longer than `h`."""
    out = np.zeros(len(h) + 1, np.uint64)
    np.cumsum(h, out=out[1:])
    return out


def find_levels(
    c: Columns, min_count: int, min_share: float = MIN_SHARE, orders: tuple[int, ...] = ORDERS
) -> list[Level]:
    """Levels of the window with at least `min_count` modal pieces, shortest first. O(n log n)."""
    n = len(c)
    if n < 2:
        return []
    sums = prefix_sums(c.h)
    log_gap = np.zeros(n)
    log_gap[1:] = np.log(np.maximum(np.diff(c.t), 1))
    lost = np.cumsum(c.broken)
    total = max(n, int(c.seq[-1]) - int(c.seq[0]) + 1) if lost[-1] else n
    best: dict[int, Level] = {}
    for order in orders:
        tok = tokens(c.h, order)
        at = np.argsort(tok, kind="stable")
        if order > 1:
            at = at[at >= order - 1]
        run = tok[at]
        same = run[1:] == run[:-1]
        cur, nxt, token = at[:-1][same], at[1:][same], run[1:][same]
        if not len(cur):
            continue
        sig = sums[nxt] - sums[cur]
        torn = lost[nxt] > lost[cur]
        span = np.where(torn, c.seq[nxt] - c.seq[cur], nxt - cur)  # with the calls lost in it
        sig[torn] = span[torn].astype(np.uint64) * _B  # its calls are not known, but their number is
        key = (token * _A) ^ (sig * _B)
        _, head, group, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        length = span[head]
        whole = count
        if torn.any():
            count = _with_torn(token[head], length, torn[head], count, min(min_count, 2))
        good = np.flatnonzero((count >= min_count) & (count * length >= min_share * total) & ~torn[head])
        chain = (group[1:] == group[:-1]) | (torn[1:] & (span[1:] == span[:-1]) & (token[1:] == token[:-1]))
        follow = np.bincount(group[:-1], weights=chain, minlength=len(count))
        if not len(good):
            continue
        inner = log_gap[cur]
        for back in range(1, order - 1):
            inner = np.maximum(inner, log_gap[cur - back])
        gap = np.bincount(group, weights=inner) / whole
        heads = np.concatenate(([0], np.flatnonzero(token[1:] != token[:-1]) + 1))
        mine = np.searchsorted(heads, head[good], "right") - 1
        ends = np.append(heads, len(token))[1:]
        reduces = np.isin(c.op, list(REDUCING)) & (c.bytes > SCALAR_BYTES)
        chosen: dict[int, int] = {}
        for g, a, b in zip(good.tolist(), heads[mine].tolist(), ends[mine].tolist(), strict=True):
            short = int((nxt[a:b] - cur[a:b] < 0.9 * length[g]).sum())
            level = Level(
                sig=int(sig[head[g]]),
                calls=int(length[g]),
                count=int(count[g]),
                share=int(count[g]) * int(length[g]) / total,
                order=order,
                token=int(token[head[g]]),
                purity=1.0 - short / (b - a),
                chained=float(follow[g] / whole[g]),
                pause=float(gap[g]),
                reduces=bool(reduces[cur[head[g]]]),
            )
            have = best.get(level.sig)
            if have is None or level.better_cut(have):
                best[level.sig] = level
                chosen[level.sig] = g
        for name, g in chosen.items():
            best[name].starts = np.sort(cur[group == g])
    out = sorted(best.values(), key=lambda level: level.calls)
    out = [level for level in out if level.chained >= MIN_CHAINED or _alternates(c, level)]
    for level in out:
        ends = level.starts + level.calls
        level.dur_ns = int(np.median(c.t[np.minimum(ends, n - 1)] - c.t[level.starts]))
        edge = np.zeros(n + 1, np.int64)
        np.add.at(edge, level.starts, 1)
        np.add.at(edge, ends, -1)
        level.inside = np.cumsum(edge[:-1]) > 0
    return out


def _with_torn(token: U64, span: I64, torn: NDArray[np.bool_], count: I64, least: int) -> I64:
    """Counts of groups of whole pieces, with the torn pieces of the same token and number of calls added."""
    key = (token * _A) ^ (span.astype(np.uint64) * _B)
    mine, at = key[torn], count[torn]
    order = np.argsort(mine)
    mine, at = mine[order], at[order]
    if not len(mine):
        return count
    where = np.minimum(np.searchsorted(mine, key), len(mine) - 1)
    more = np.where((mine[where] == key) & ~torn & (count >= least), at[where], 0)
    return np.asarray(count + more, np.int64)


def cuts(c: Columns, level: Level) -> I64:
    """Index of every occurrence of the level's token."""
    at = np.flatnonzero(tokens(c.h, level.order) == np.uint64(level.token))
    return at[at >= level.order - 1]


def _alternates(c: Columns, level: Level) -> bool:
    """Whether the pieces between modal ones are such a piece and something more (a call made every second time).

    Otherwise the token occurs several times in a longer pattern and its piece is a part of that.
    """
    at = cuts(c, level)
    kinds, inverse = np.unique(c.h, return_inverse=True)
    modal = np.bincount(inverse[level.starts[0] : level.starts[0] + level.calls], minlength=len(kinds))
    whole = np.concatenate(([0], np.cumsum(np.isin(at[:-1], level.starts))))
    lengths = np.diff(at)
    other = np.flatnonzero(np.diff(whole) == 0)
    if not len(other):
        return True
    some = other[:16].tolist()
    holds = 0
    for i in some:
        if lengths[i] >= level.calls:
            holds += bool((np.bincount(inverse[at[i] : at[i + 1]], minlength=len(kinds)) >= modal).all())
    return holds > 0.7 * len(some)
