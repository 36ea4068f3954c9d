# SPDX-License-Identifier: Apache-2.0
"""Second looks at a pattern that was believed: it may be a part of the real one.

A job that was traced from its start shows many equal micro-batches before its first step ends. So the calls
are looked at again a few times after the pattern was found, whenever too many of them lie outside ordinary
pieces, and when a training call that the pattern does not have comes back again and again.
"""

from __future__ import annotations

import numpy as np

from ghtools.detect.period_choose import Choice, choose
from ghtools.detect.period_pattern import Pattern
from ghtools.detect.period_rows import Pieces
from ghtools.detect.period_symbols import REDUCING, SCALAR_BYTES, Columns, join

AT = (16, 32, 64, 128, 256, 512)  # pieces after the pattern was found at which it is looked at again
CALLS = 1 << 15  # kept for these looks
KEEP = 1 << 18  # kept for the others
ODD = 0.15  # of all calls in odd pieces
OVER = 64  # pieces over which that share is taken
AGAIN = 5  # times that a strange training call comes, before a look; then twice as many
STRANGERS = 256  # such calls remembered
REPEATS = 4  # of the longer pattern that must be seen


class Audit:
    """What is kept of the calls of one pattern, and when they are looked at again."""

    def __init__(self) -> None:
        self.checks = list(AT)
        self.seen = self.odd = 0.0  # calls in all pieces and in odd ones, of late
        self.kept: list[Columns] = []
        self.n = 0  # calls kept
        self.next = 0  # calls kept at which too much odd is looked at
        self.strange: dict[int, int] = {}
        self.again = AGAIN

    def longer(self, c: Columns, pieces: Pieces, done: int, p: Pattern) -> tuple[Columns, Choice] | None:
        """The calls looked at and a longer pattern found in them; `c` holds the first `done` pieces just delivered."""
        if p.method not in ("anchors", "timing") or p.every > 1 or not done:
            return None
        count, odd = pieces.count[:done], ~pieces.ok[:done] & ~pieces.gap[:done]
        keep = 0.5 ** (done / OVER)
        self.seen = self.seen * keep + float(count.sum())
        self.odd = self.odd * keep + float(count[odd].sum())
        much = self.odd >= ODD * self.seen
        if odd.any():
            self._strangers(c, pieces, np.flatnonzero(odd), p)
        if not (much or self.checks or self.strange):
            self.kept, self.n, self.next = [], 0, 8 * p.calls
            return None
        self.kept.append(c.copy())
        self.n += len(c)
        window = self._due(p, much)
        if self.n > KEEP:
            self.kept = [join(self.kept).cut(self.n - KEEP // 2).copy()]
            self.n = KEEP // 2
        if not window:
            return None
        self.kept = [join(self.kept)]
        choice = choose(self.kept[0].cut(0, window), False, REPEATS, p.reduces)
        if choice.state != "found" or choice.level is None or choice.level.calls * choice.every <= p.calls:
            return None
        return self.kept[0], choice

    def _due(self, p: Pattern, much: bool) -> int:
        """How many of the kept calls are to be looked at now; 0 = not yet."""
        if self.strange and max(self.strange.values()) >= self.again:
            self.strange, self.again = {}, 2 * self.again
            return self.n
        if self.checks:
            due = [n for n in self.checks if n * p.calls <= self.n]
            if self.checks[0] * p.calls > CALLS or (due and due[-1] * p.calls > CALLS):
                self.checks = []
            elif due:
                self.checks = self.checks[len(due) :]
                self.next = int(1.5 * self.n)
                return due[-1] * p.calls
        elif much and self.n >= self.next:
            self.next = int(1.5 * self.n)
            return self.n
        return 0

    def _strangers(
        self, c: Columns, pieces: Pieces, odd: np.ndarray[tuple[int, ...], np.dtype[np.int64]], p: Pattern
    ) -> None:
        """Count the large reducing calls of odd pieces that are not among the pattern's."""
        for i in odd[:64].tolist():
            piece = c.cut(int(pieces.a[i]), int(pieces.b[i]))
            new = np.isin(piece.op, list(REDUCING)) & (piece.bytes > SCALAR_BYTES) & ~np.isin(piece.h, p.symbols)
            for h in np.unique(piece.h[new]).tolist():
                if h in self.strange or len(self.strange) < STRANGERS:
                    self.strange[h] = self.strange.get(h, 0) + 1
