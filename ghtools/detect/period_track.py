# SPDX-License-Identifier: Apache-2.0
"""One rank's calls to iterations, online: search for the pattern, then cut the stream at its anchor.

While searching, calls are kept in a bounded buffer; once the pattern is known the iterations in the buffer
are delivered too. While tracking, the buffer begins at the last delivered boundary, so that a piece that is
no ordinary iteration is held back until it is clear whether it was an extra or a new pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ghtools.detect.period_audit import Audit
from ghtools.detect.period_choose import POOR_REPEATS, Choice, choose
from ghtools.detect.period_levels import LONG_ORDERS, prefix_sums
from ghtools.detect.period_marker import Marker
from ghtools.detect.period_pattern import SHORT, Pattern, pattern_of, reduces_much
from ghtools.detect.period_ranks import by_ranks
from ghtools.detect.period_rows import Numbering, Pieces
from ghtools.detect.period_symbols import (
    I64,
    U64,
    Columns,
    columns_of,
    describe,
    empty,
    executed,
    join,
    resize,
    varied_families,
)
from ghtools.stream.records import Calls, Iters, Period

BUFFER_CALLS = 1 << 18  # calls kept while searching: 8 iterations of 32,768 calls
CHUNK_CALLS = 1 << 13  # of a large batch taken at a time: its columns stay in the cache
HELD_CALLS = 256  # executions without a call before them that are then taken for calls
GROWTH = 1.25  # of the buffer between two attempts
FIRST_LOOK, STRIDE = 512, 2  # calls looked at first in a large batch, and how many times more at each next look
LATE_CALLS, LATE_NS = 64, 600_000_000_000  # so many calls over so long a time without a pattern: it is said
REARM_PIECES, REARM_SAME = 4, 3  # odd pieces in a row (any, alike) after which the pattern has changed
REARM_CALLS = 8  # ordinary iterations' worth of calls without one
ADOPT_LEAST = 0.3  # of the calls of an iteration: a shorter piece is not taken for a new iteration at once
CONTEXT = LONG_ORDERS[-1] - 1  # calls before the buffer that a token may reach back to

Out = list[Iters | Period]
Chooser = Callable[[Columns, bool, int, bool], Choice]
MARKED = Pattern(
    order=1, token=0x6D61726B6572, every=1, calls=0, accepted=np.empty(0, np.uint64), reduces=False, dur_ns=0,
    method="marker", anchor="", confidence=1.0, any_piece=True,
)  # fmt: skip


class Tracker:
    """State of one rank. `feed` and `flush` return records; `pattern` is None while searching."""

    def __init__(
        self, rank: int, names: dict[int, str], chooser: Chooser | None = None, marker: Marker | None = None
    ) -> None:
        self.rank, self.names, self.marker = rank, names, marker
        self.chooser: Chooser = chooser or choose
        self.bounds: Callable[[], I64] | None = None  # when iterations of another rank began, ns
        self.choice = Choice("wait", why="no calls yet")
        self.numbering = Numbering(rank)
        self._begin()

    def _begin(self) -> None:
        """Nothing is known of the stream that follows."""
        self.pattern: Pattern | None = None if self.marker is None else replace(MARKED)
        self.old: Pattern | None = None  # while re-arming: what was known before
        self._last = (-1, 0)
        self._parts: list[Columns] = []
        self._n = 0
        self._fed, self._found_at = 0, -1  # calls ever fed: now, when the pattern was last found
        self._try_at, self._looked = 8, 0  # calls in the buffer: at the next attempt, at the last one
        self._context = np.empty(0, np.uint64)  # hashes of the calls before the buffer
        self._aligned = False  # the buffer begins where an iteration does
        self._sizeless = np.empty(0, np.uint64)
        self._held: list[Calls] = []  # executions, while it is not known whether there are calls
        self._calls_seen = self._executions = False
        self._skip = 0  # cuts before the first that begins an iteration
        self._led = False
        self._said_unknown = False
        self._audit = Audit()

    def feed(self, calls: Calls) -> Out:
        """What follows from a batch of this rank's calls."""
        out: Out = []
        if calls.incarnation != self.numbering.incarnation:
            out += self.flush()
            self.numbering.restart(calls.incarnation)
            self._begin()
        if not len(calls.t_ns):
            return out
        plain = not executed(calls).all()
        if plain and self._executions:  # executions stood for calls, and now there are calls
            out += self.flush()
            self._begin()
        if plain or self._calls_seen:
            self._held, self._calls_seen = [], True
            return out + self._feed(calls)
        self._held.append(calls)
        if self._executions or sum(len(b.t_ns) for b in self._held) >= HELD_CALLS:
            out += self._release()
        return out

    def _release(self) -> Out:
        """Take executions for calls: a trace of a device, or a library, shows nothing else."""
        held, self._held, self._executions = self._held, [], True
        return [made for batch in held for made in self._feed(batch)]

    def _feed(self, calls: Calls) -> Out:
        out: Out = []
        first = self._last[0] < 0
        c, self._last = columns_of(calls, self._last, self._sizeless, self._executions)
        if not len(c):
            return out
        if self.marker is not None:
            call = ~executed(calls) | self._executions
            c.h[self.marker.matches(calls, self.names)[call]] = MARKED.token
        if first:
            self.numbering.from_start = int(c.seq[0]) == 0
        for lo in range(0, len(c), CHUNK_CALLS):
            part = c.cut(lo, lo + CHUNK_CALLS) if len(c) > CHUNK_CALLS else c
            self._parts.append(part)
            self._n += len(part)
            self._fed += len(part)
            out += self._work(final=False)
        return out

    def flush(self) -> Out:
        """What is still owed when no more calls will come."""
        out = self._release() if self._held else []
        return out + (self._work(final=True) if self._n else [])

    def follow(self) -> None:
        """Forget the pattern; other ranks tell what an iteration is (`bounds`)."""
        self.pattern, self.old = None, None
        self._aligned, self._looked, self._try_at = False, 0, 0
        self._led = True

    def _work(self, final: bool) -> Out:
        out: Out = []
        if self.pattern is not None:
            out += self._advance(final)
        if self.pattern is None and (self._n >= self._try_at or final):
            out += self._search(final)
        if final and self.pattern is not None and self.pattern.calls == 0:
            self.choice = Choice("unknown", method="marker", why="no call, or only one, is like the marker")
            out.append(self._period("unknown", self._buffer()))
        return out

    # searching

    def _search(self, final: bool) -> Out:
        c = self._buffer()
        if self.old is not None and self._returned(c, self.old):
            self.pattern, self.old = self.old, None
            return [self._period("found", c), *self._advance(final)]
        while True:  # a large batch is looked at as if it had come in small ones
            n = self._n if final else min(self._n, max(FIRST_LOOK, STRIDE * self._looked))
            self._looked = n
            more = varied_families(c.cut(0, n), self._sizeless)
            if len(more):
                self._sizeless = np.concatenate([self._sizeless, more])
                c = resize(c, self._sizeless)
                self._parts = [c]
            choice = self.chooser(
                c.cut(0, n), final, REARM_PIECES if self.old else 0, bool(self.old and self.old.reduces)
            )
            if n == self._n or (choice.state == "found" and self._plausible(c.cut(0, n), choice)):
                break
        if self._led and not final:
            choice.state = "wait"
        if choice.state != "found" and self.bounds is not None and (told := by_ranks(c, self.bounds(), final)):
            told.candidates = choice.candidates
            choice = told
        self.choice = choice
        self._try_at = max(self._n + 1, int(self._n * GROWTH))
        if choice.state == "found" and self._plausible(c, choice):
            return self._found(c, choice, final)
        if self._n > BUFFER_CALLS:
            self._drop(self._n - BUFFER_CALLS // 2)
            self._try_at, self._looked = int(self._n * GROWTH), self._n
        late = len(c) >= BUFFER_CALLS or (len(c) >= LATE_CALLS and int(c.t[-1] - c.t[0]) >= LATE_NS)
        if self._said_unknown or not (choice.state == "unknown" or late or (final and self.numbering.emitted == 0)):
            return []
        self._said_unknown = True
        return [self._period("unknown", c)]

    def _found(self, c: Columns, choice: Choice, final: bool) -> Out:
        p = self.pattern = pattern_of(c, choice, self.names)
        self._found_at = self._fed
        begin = choice.window if self.old is not None else 0
        if p.every > 1:
            at = p.cut(c, self._context)
            skip = 0 if self.old is not None else int((at < choice.window).sum())
            at = at[at >= begin]
            begin = int(at[(skip + choice.phase) % p.every])
        if self.old is not None:
            self.numbering.rearm()
            self.old = None
        self._drop(begin)
        self._aligned = False
        self._said_unknown = False
        self._audit = Audit()
        return [self._period("found", c), *self._advance(final)]

    def _plausible(self, c: Columns, choice: Choice) -> bool:
        """While re-arming: not a part of an iteration as it was, such as the layers of an evaluation."""
        level = choice.level
        if self.old is None or level is None:
            return True
        span = int(c.t[-1] - c.t[0])
        if level.dur_ns * choice.every < 0.1 * self.old.dur_ns:
            return level.count >= POOR_REPEATS and span >= 8 * self.old.dur_ns
        return span >= 3 * self.old.dur_ns

    def _returned(self, c: Columns, old: Pattern) -> bool:
        """Whether an ordinary piece of the pattern before ends in the buffer."""
        at = old.nth(c, old.cut(c, self._context))
        return len(at) > 1 and bool(Pieces.of(c, at, prefix_sums(c.h), old).ok.any())

    # tracking

    def _advance(self, final: bool) -> Out:
        p = self.pattern
        assert p is not None
        c = self._buffer()
        at = self._cut(c, p)
        if self._skip < len(at):
            at = p.nth(c, at[self._skip :])
            self._skip = 0
        else:
            at = at[:0]
        if not len(at):
            if self._n > BUFFER_CALLS:
                self._drop(self._n - BUFFER_CALLS // 2)
            return []
        pieces = Pieces.of(c, at, prefix_sums(c.h), p)
        good = np.flatnonzero(pieces.ok | pieces.fits)
        done = int(good[-1]) + 1 if len(good) else 0  # pieces after the last ordinary one are held back
        out: Out = []
        new = self._same_new(c, pieces, p)
        spare = self._spare(c, pieces, p) if new is None else None
        if new is not None:  # the anchor goes on with other calls around it
            done = new
        elif spare is not None:  # the anchor is also made in evaluation
            done = min(done, spare)
        elif final:
            done = len(pieces)
        if p.calls == 0 and done and (self.numbering.emitted + done >= 4 or final):
            p.calls, p.dur_ns = int(np.median(pieces.count)), int(np.median(pieces.dur))
            p.anchor = describe(c, int(at[0]), self.names)
            out.append(self._period("found", c))
        out += self.numbering.rows(c, pieces, done, p)
        begin = int(at[done])
        self._drop(begin)
        self._aligned = True
        if new is not None:
            return [*out, *self._adopt(c, pieces, p, new), *self._advance(final)]
        if spare is not None:
            return out + self._advance(final)
        if self._impure(c, pieces, done, p):
            self._aligned = False
            return out + self._advance(final)
        if self.chooser is choose and (found := self._audit.longer(c.cut(0, begin), pieces, done, p)) is not None:
            return [*out, *self._longer(*found)]
        return out + self._changed(int((pieces.count[done:] >= SHORT * p.calls).sum()), p, final)

    def _cut(self, c: Columns, p: Pattern) -> I64:
        at = p.cut(c, self._context)
        if self._aligned and len(c) and (not len(at) or at[0] > 0):
            at = np.concatenate([np.zeros(1, np.int64), at])
        return at

    def _same_new(self, c: Columns, pieces: Pieces, p: Pattern) -> int | None:
        """First of REARM_SAME successive odd pieces that are alike and could be an iteration, if there are such."""
        if p.any_piece or len(pieces) < REARM_SAME or pieces.ok.all():
            return None
        odd = ~pieces.ok & ~pieces.gap
        alike = odd[:-1] & odd[1:] & (pieces.sig[:-1] == pieces.sig[1:])
        run = alike.copy()
        for back in range(1, REARM_SAME - 1):
            run[back:] &= alike[:-back]
            run[:back] = False
        for end in np.flatnonzero(run).tolist():
            i: int = end + 2 - REARM_SAME
            piece = c.cut(int(pieces.a[i]), int(pieces.b[i]))
            if np.isin(p.families, piece.family).all() and len(piece) > ADOPT_LEAST * p.calls:
                return i
        return None

    def _adopt(self, c: Columns, pieces: Pieces, p: Pattern, i: int) -> Out:
        """Take the calls of piece i for the pattern from now on."""
        piece = c.cut(int(pieces.a[i]), int(pieces.b[i]))
        self.pattern = replace(
            p, calls=len(piece), accepted=pieces.sig[i : i + 1].copy(), reduces=reduces_much(piece),
            families=np.unique(piece.family), symbols=np.unique(piece.h),
            dur_ns=int(np.median(pieces.dur[i : i + REARM_SAME])), spare=np.empty(0, np.uint64),
        )  # fmt: skip
        self.numbering.rearm()
        return [self._period("found", c)]

    def _spare(self, c: Columns, pieces: Pieces, p: Pattern) -> int | None:
        """Change to an anchor that is not made in short odd pieces; the first of these, None if nothing changes."""
        if not len(p.spare):
            return None
        short = np.flatnonzero(~pieces.ok & ~pieces.gap & (pieces.count < SHORT * p.calls))
        if not len(short) or (pieces.a[short[0]] == 0 and not self._aligned):
            return None
        made: U64 = np.concatenate([c.h[pieces.a[i] : pieces.b[i]] for i in short[:64].tolist()])
        left = p.spare[~np.isin(p.spare, made)]
        if not len(left):
            p.spare = left
            return None
        p.order, p.token, p.spare = 1, int(left[0]), left[1:]
        return int(short[0])

    def _impure(self, c: Columns, pieces: Pieces, done: int, p: Pattern) -> bool:
        """Change the anchor if a passing extra was cut at it: a piece between ordinary ones that is no iteration."""
        odd = np.flatnonzero(~pieces.ok[:done] & ~pieces.gap[:done])
        if not len(p.spare) or not len(odd):
            return False
        for i in odd[:64].tolist():
            made = c.h[pieces.a[i] : pieces.b[i]]
            left = p.spare[~np.isin(p.spare, made)]
            if 2 * len(left) >= len(p.spare):
                p.order, p.token, p.spare = 1, int(left[0]), left[1:]
                return True
        return False

    def _changed(self, odd: int, p: Pattern, final: bool) -> Out:
        """Re-arm if what follows the last ordinary iteration is no passing extra."""
        if final or p.any_piece or self._fed == self._found_at:
            return []
        if self._n <= REARM_CALLS * p.calls + 64 and odd < REARM_PIECES:
            if self._n > BUFFER_CALLS:
                self._drop(self._n - BUFFER_CALLS // 2)
                self._aligned = False
            return []
        self.old, self.pattern = p, None
        self._aligned, self._looked = False, 0
        return [self._period("rearm", self._buffer()), *self._search(False)]

    def _longer(self, kept: Columns, choice: Choice) -> Out:
        """Go on with a pattern of which the one before was a part; `kept` ends where the buffer begins."""
        self.choice = choice
        p = self.pattern = pattern_of(kept, choice, self.names)
        if p.every > 1:
            before = p.cut(kept, self._context[:0])
            skipped = int((before < choice.window).sum())
            self._skip = (skipped + choice.phase - len(before)) % p.every
        self.numbering.rearm()
        self._aligned = False
        self._audit = Audit()
        return [self._period("found", self._buffer()), *self._advance(False)]

    # the buffer

    def _period(self, state: str, c: Columns) -> Period:
        p = self.pattern if state == "found" else None
        choice = self.choice
        return Period(
            rank=self.rank, t_ns=int(c.t[-1]) if len(c) else 0, state=state, calls=p.calls if p else 0,
            dur_ns=max(0, p.dur_ns) if p else 0, method=p.method if p else choice.method, anchor=p.anchor if p else "",
            confidence=p.confidence if p else 0.0, candidates=choice.candidates if state != "rearm" else [],
        )  # fmt: skip

    def _buffer(self) -> Columns:
        c = join(self._parts) if self._parts else empty()
        self._parts = [c]
        return c

    def _drop(self, n: int) -> None:
        """Let go of the first n calls."""
        if n == 0:
            return
        c = self._buffer()
        self._context = np.concatenate([self._context, c.h[max(0, n - CONTEXT) : n]])[-CONTEXT:]
        rest = c.cut(n)
        self._parts = [rest.copy() if len(rest) * 4 < len(c) else rest]
        self._n = len(rest)
