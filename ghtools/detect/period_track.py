# SPDX-License-Identifier: Apache-2.0
"""One rank's calls to iterations, online: search for the pattern, then cut the stream at its anchor.

While searching, calls are kept in a bounded buffer; once the pattern is known the iterations in the buffer
are delivered too. While tracking, the buffer begins at the last delivered boundary, so that a piece that is
no ordinary iteration is held back until it is clear whether it was an extra or a new pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ghtools.detect.period_choose import POOR_REPEATS, Choice, choose
from ghtools.detect.period_levels import ORDERS, cuts, prefix_sums, tokens
from ghtools.detect.period_marker import Marker
from ghtools.detect.period_ranks import by_ranks
from ghtools.detect.period_symbols import (
    I64,
    REDUCING,
    SCALAR_BYTES,
    U64,
    Columns,
    columns_of,
    describe,
    empty,
    join,
    resize,
    varied_families,
)  # fmt: skip
from ghtools.stream.records import FLAG_EXEC, PHASE_CODE, Calls, Iters, Period

BUFFER_CALLS = 1 << 18  # calls kept while searching: 8 iterations of 32,768 calls
GROWTH = 1.25  # of the buffer between two attempts
REARM_PIECES, REARM_SAME = 4, 3  # odd pieces in a row (any, alike) after which the pattern has changed
REARM_CALLS = 8  # ordinary iterations' worth of calls without one
WARMUP_ITERS = 3
STEADY, WARMUP, OUTLIER, RESTART, REARM, GAP = (
    PHASE_CODE[p] for p in ("steady", "warmup", "outlier", "restart", "rearm", "gap")
)

Bools = NDArray[np.bool_]
Chooser = Callable[[Columns, bool, int, bool], Choice]


@dataclass
class Pattern:
    """A known iteration: where to cut (token and every how many), and which multisets are ordinary."""

    order: int  # calls in the token; 0 = every call is a cut
    token: int
    every: int
    calls: int
    accepted: U64
    reduces: bool
    dur_ns: int
    method: str
    anchor: str
    confidence: float
    any_piece: bool = False  # a marker: what is between does not matter


MARKED = Pattern(
    order=1, token=0x6D61726B6572, every=1, calls=0, accepted=np.empty(0, np.uint64), reduces=False, dur_ns=0,
    method="marker", anchor="", confidence=1.0, any_piece=True,
)  # fmt: skip


@dataclass
class Rows:
    """Iterations waiting to be delivered, as lists of equally long arrays."""

    t: list[I64] = field(default_factory=list)
    dur: list[I64] = field(default_factory=list)
    phase: list[NDArray[np.uint8]] = field(default_factory=list)
    calls: list[I64] = field(default_factory=list)
    seq: list[I64] = field(default_factory=list)
    step: list[I64] = field(default_factory=list)

    def add(self, t: I64, dur: I64, phase: NDArray[np.uint8], calls: I64, seq: I64, step: I64) -> None:
        for name, value in zip(
            ("t", "dur", "phase", "calls", "seq", "step"), (t, dur, phase, calls, seq, step), strict=True
        ):
            getattr(self, name).append(value)


def pattern_of(c: Columns, choice: Choice, names: dict[int, str]) -> Pattern:
    """What the tracker needs of a choice made on window `c`."""
    level = choice.level
    assert level is not None
    w = c.cut(choice.window)
    a, b = int(level.starts[0]), int(level.starts[0]) + level.calls
    inside = w.cut(a, b)
    dur_ns = level.dur_ns * choice.every
    if choice.every > 1 and level.order > 0:
        whole = np.diff(w.t[cuts(w, level)[choice.phase :: choice.every]])
        dur_ns = int(np.median(whole)) if len(whole) else level.dur_ns * choice.every
    base = np.uint64(level.sig * choice.every % (1 << 64))
    return Pattern(
        order=level.order, token=level.token, every=choice.every, calls=level.calls * choice.every,
        accepted=np.array([base]),
        reduces=bool((np.isin(inside.op, list(REDUCING)) & (inside.bytes > SCALAR_BYTES)).any()),
        dur_ns=dur_ns, method=choice.method, anchor=describe(w, a, names),
        confidence=round(min(1.0, level.share), 3), any_piece=level.order == 0,
    )  # fmt: skip


class Tracker:
    """State of one rank. `feed` and `flush` return records; `pattern` is None while searching."""

    def __init__(
        self, rank: int, names: dict[int, str], chooser: Chooser | None = None, marker: Marker | None = None
    ) -> None:
        self.rank, self.names, self.marker = rank, names, marker
        self.fixed = None if marker is None else replace(MARKED)
        self.chooser = chooser or choose
        self.bounds: Callable[[], I64] | None = None  # when iterations of another rank began, ns
        self.pattern: Pattern | None = self.fixed
        self.old: Pattern | None = None  # while re-arming: what was known before
        self.choice = Choice("wait", why="no calls yet")
        self.incarnation = 0
        self.index = 0
        self.emitted = 0  # iterations delivered of this incarnation
        self._next_phase = STEADY  # of the next ordinary iteration: restart, rearm
        self._reset_stream()

    def _reset_stream(self) -> None:
        self._last = (-1, 0)
        self._parts: list[Columns] = []
        self._n = 0
        self._try_at = 8
        self._context = np.empty(0, np.uint64)  # hashes of the calls before the buffer
        self._aligned = False
        self._sizeless = np.empty(0, np.uint64)
        self._from_start = False
        self._said_unknown = False

    def feed(self, calls: Calls) -> list[Iters | Period]:
        """What follows from a batch of this rank's calls."""
        out: list[Iters | Period] = []
        if calls.incarnation != self.incarnation:
            if self._n or self.emitted:
                out += self.flush()
                self._next_phase = RESTART
            self.incarnation, self.emitted = calls.incarnation, 0
            self.pattern = self.fixed = None if self.marker is None else replace(MARKED)
            self.old = None
            self._reset_stream()
        c, self._last = columns_of(calls, self._last, self._sizeless)
        if self.marker is not None:
            c.h[self.marker.matches(calls, self.names)[(calls.flags & np.uint16(FLAG_EXEC)) == 0]] = MARKED.token
        if not len(c):
            return out
        if not self._parts and not self._aligned:
            self._from_start = int(c.seq[0]) == 0
        self._parts.append(c)
        self._n += len(c)
        return out + self._work(final=False)

    def flush(self) -> list[Iters | Period]:
        """What is still owed when no more calls will come."""
        return self._work(final=True) if self._n else []

    def _work(self, final: bool) -> list[Iters | Period]:
        out: list[Iters | Period] = []
        if self.pattern is not None:
            out += self._advance(final)
        if self.pattern is None and (self._n >= self._try_at or final):
            out += self._search(final)
        return out

    # searching

    def _search(self, final: bool) -> list[Iters | Period]:
        c = self._buffer()
        if self.old is not None and not final:
            back = self._returned(c)
            if back:
                self.pattern, self.old = self.old, None
                self._next_phase = STEADY
                return [self._period("found", c), *self._advance(final)]
        more = varied_families(c, self._sizeless)
        if len(more):
            self._sizeless = np.concatenate([self._sizeless, more])
            c = resize(c, self._sizeless)
            self._parts = [c]
        repeats = 0 if self.old is None else REARM_PIECES
        choice = self.chooser(c, final, repeats, bool(self.old and self.old.reduces))
        if choice.state != "found" and self.bounds is not None and (told := by_ranks(c, self.bounds(), final)):
            told.candidates = choice.candidates
            choice = told
        self.choice = choice
        self._try_at = max(self._n + 1, int(self._n * GROWTH))
        if choice.state == "found" and self._plausible(c, choice):
            self.pattern = pattern_of(c, choice, self.names)
            begin = choice.window
            if choice.every > 1:
                at = np.flatnonzero(self._tokens(c, self.pattern) == np.uint64(self.pattern.token))
                before = int((at < choice.window).sum()) if self.old is None else 0
                begin = int(at[(before + choice.phase) % choice.every])
            if self.old is not None:
                self._next_phase = REARM
                self.old = None
            elif choice.every == 1:
                begin = 0
            if begin:
                self._drop(begin)
            self._said_unknown = False
            return [self._period("found", c), *self._advance(final)]
        out: list[Iters | Period] = []
        if (choice.state == "unknown" or (final and self.emitted == 0)) and not self._said_unknown:
            self._said_unknown = True
            out.append(self._period("unknown", c))
        if self._n > BUFFER_CALLS:
            self._drop(self._n - BUFFER_CALLS // 2)
            self._try_at = int(self._n * GROWTH)
        return out

    def _plausible(self, c: Columns, choice: Choice) -> bool:
        """While re-arming: not a part of an iteration as it was, such as the layers of an evaluation."""
        level = choice.level
        if self.old is None or level is None:
            return True
        span = int(c.t[-1] - c.t[0])
        if level.dur_ns * choice.every < 0.1 * self.old.dur_ns:
            return level.count >= POOR_REPEATS and span >= 8 * self.old.dur_ns
        return span >= 3 * self.old.dur_ns

    def _returned(self, c: Columns) -> bool:
        """Whether an ordinary piece of the pattern before ends in the buffer."""
        assert self.old is not None
        at = np.flatnonzero(self._tokens(c, self.old) == np.uint64(self.old.token))
        sums = prefix_sums(c.h)
        piece = sums[at[self.old.every :]] - sums[at[: -self.old.every]] if len(at) > self.old.every else sums[:0]
        return bool(np.isin(piece, self.old.accepted).any())

    # tracking

    def _tokens(self, c: Columns, p: Pattern) -> U64:
        if p.order == 0:
            return np.full(len(c), p.token, np.uint64)
        if p.order == 1:
            return c.h
        k = len(self._context)
        out = tokens(np.concatenate([self._context, c.h]), p.order)[k:]
        if k < p.order - 1:
            out[: p.order - 1 - k] = np.uint64(p.token ^ 1)  # without context nothing is the anchor
        return out

    def _advance(self, final: bool) -> list[Iters | Period]:
        p = self.pattern
        assert p is not None
        c = self._buffer()
        at = np.flatnonzero(self._tokens(c, p) == np.uint64(p.token))
        if not len(at):
            if not self._aligned:
                if self._n > BUFFER_CALLS:
                    self._drop(self._n - BUFFER_CALLS // 2)
                return []
            return self._changed(c, 0, final)
        if p.every > 1:
            at = self._every(c, at, p)
        sums = prefix_sums(c.h)
        lost = np.cumsum(c.broken)
        a, b = at[:-1], at[1:]
        gap = lost[b] > lost[a]
        count = b - a
        dur = c.t[b] - c.t[a]
        gap |= dur <= 0
        ok = self._ordinary(sums[b] - sums[a], p) & ~gap
        phase = np.where(ok, STEADY, np.where(gap, GAP, OUTLIER)).astype(np.uint8)
        good = np.flatnonzero(ok)
        done = int(good[-1]) + 1 if len(good) else 0  # pieces after the last ordinary one are held back
        same = self._same_new(c, sums, a, b, ok, gap)
        if same is not None:  # the anchor goes on with other calls around it: the new pattern begins at piece `same`
            return self._adopt(c, sums, a, b, dur, phase, same, final)
        if final:
            done = len(a)
        rows = Rows()
        if done:
            self._collect(rows, c, a, b, count, dur, phase, done)
        begin = int(at[done]) if len(at) > done else int(b[done - 1])
        if done or not self._aligned:
            self._aligned = True
            if begin:
                self._drop(begin)
        out: list[Iters | Period] = []
        if p.calls == 0 and (self.emitted + done >= 4 or final) and done:
            p.calls, p.dur_ns, p.anchor = int(np.median(count)), int(np.median(dur)), describe(c, int(a[0]), self.names)
            out.append(self._period("found", c))
        out += self._deliver(rows)
        return out + self._changed(c.cut(begin), int((count[done:] >= 0.6 * p.calls).sum()), final)

    def _ordinary(self, sig: U64, p: Pattern) -> NDArray[np.bool_]:
        """Pieces with the pattern's calls; also two in a row that have them together: a call has changed sides."""
        if p.any_piece:
            return np.ones(len(sig), bool)
        ok = sig == p.accepted[0] if len(p.accepted) == 1 else np.isin(sig, p.accepted)
        odd = np.flatnonzero(~ok[:-1] & ~ok[1:])
        if len(odd):
            twice = odd[sig[odd] + sig[odd + 1] == p.accepted[:1] * np.uint64(2)]
            ok[twice] = ok[twice + 1] = True
        return ok

    def _every(self, c: Columns, at: I64, p: Pattern) -> I64:
        """Every p.every-th cut; lost calls are counted by seq, short pieces (of an evaluation) do not count."""
        long = np.append(np.diff(at) >= 0.6 * p.calls / p.every, True)
        at = at[long | (np.arange(len(at)) == 0)]
        if not c.broken[at[0] + 1 :].any():
            return at[:: p.every]
        per = max(1, p.calls // p.every)
        number: I64 = np.round((c.seq[at] - c.seq[at[0]]) / per).astype(np.int64)
        chosen: I64 = at[number % p.every == 0]
        return chosen

    def _same_new(
        self, c: Columns, sums: U64, a: I64, b: I64, ok: NDArray[np.bool_], gap: NDArray[np.bool_]
    ) -> int | None:
        """First of REARM_SAME successive odd pieces that are alike and could be an iteration, if there are such."""
        p = self.pattern
        assert p is not None
        if p.any_piece or len(a) < REARM_SAME or ok.all():
            return None
        sig = sums[b] - sums[a]
        odd = ~ok & ~gap
        alike = odd[:-1] & odd[1:] & (sig[:-1] == sig[1:])
        run = alike.copy()
        for back in range(1, REARM_SAME - 1):
            run[back:] &= alike[:-back]
            run[:back] = False
        for end in np.flatnonzero(run).tolist():
            i: int = end + 2 - REARM_SAME
            piece = c.cut(int(a[i]), int(b[i]))
            large = (np.isin(piece.op, list(REDUCING)) & (piece.bytes > SCALAR_BYTES)).any()
            if (large or not p.reduces) and len(piece) > 0.3 * p.calls:
                return i
        return None

    def _adopt(
        self, c: Columns, sums: U64, a: I64, b: I64, dur: I64, phase: NDArray[np.uint8], at: int, final: bool
    ) -> list[Iters | Period]:
        p = self.pattern
        assert p is not None
        rows = Rows()
        if at:
            self._collect(rows, c, a, b, b - a, dur, phase, at)
        out: list[Iters | Period] = list(self._deliver(rows))
        base = prefix_sums(c.h[a[at] : b[at]])[-1]
        calls = int(b[at] - a[at])
        piece = dur[at : at + REARM_SAME]
        large = np.isin(c.op[a[at] : b[at]], list(REDUCING)) & (c.bytes[a[at] : b[at]] > SCALAR_BYTES)
        self.pattern = Pattern(
            p.order, p.token, p.every, calls, np.array([base]), bool(large.any()), int(np.median(piece)), p.method,
            p.anchor, p.confidence,
        )  # fmt: skip
        self._aligned = True
        if self.emitted:
            self._next_phase = REARM
        if a[at]:
            self._drop(int(a[at]))
        return [*out, self._period("found", c), *self._advance(final)]

    def _changed(self, c: Columns, odd: int, final: bool) -> list[Iters | Period]:
        """Re-arm if what follows the last ordinary iteration is no passing extra."""
        p = self.pattern
        if p is None or final or p.any_piece or self.fixed is not None:
            return []
        many = len(c) > REARM_CALLS * p.calls + 64
        if not many and odd < REARM_PIECES:
            if self._n > BUFFER_CALLS:
                self._drop(self._n - BUFFER_CALLS // 2)
            return []
        self.old, self.pattern = p, None
        self._try_at = 0
        return [self._period("rearm", c), *self._search(False)]

    # delivering

    def _collect(
        self, rows: Rows, c: Columns, a: I64, b: I64, count: I64, dur: I64, phase: NDArray[np.uint8], done: int
    ) -> None:
        p = self.pattern
        assert p is not None
        a, b, count, dur, phase = a[:done], b[:done], count[:done], dur[:done], phase[:done]
        if p.every == 1 and (phase != STEADY).any():
            short = (phase == OUTLIER) & (count < 0.6 * p.calls)
            # A short piece is a part of the extra before it (or after it, if it comes first).
            keep = ~short
            keep[0] = True
            first = np.flatnonzero(short & np.concatenate(([True], phase[:-1] == STEADY)))
            keep[first] = True
            if not keep.all():
                heads = np.flatnonzero(keep)
                a = a[heads]
                b = np.append(a[1:], b[-1])
                count, dur = b - a, c.t[b] - c.t[a]
                phase = np.maximum.reduceat(phase, heads)
        step = np.ones(len(a), np.int64)
        gaps = phase == GAP
        if gaps.any():
            spans = c.seq[b] - c.seq[a]
            step[gaps] = np.maximum(1, np.round(spans[gaps] / p.calls) if p.calls else 1)
        rows.add(c.t[a], np.maximum(dur, 0), phase, count, c.seq[a], step)

    def _deliver(self, rows: Rows) -> list[Iters]:
        if not rows.t:
            return []
        t, dur, calls, seq, step = (np.concatenate(x) for x in (rows.t, rows.dur, rows.calls, rows.seq, rows.step))
        phase = np.concatenate(rows.phase).copy()
        n = len(t)
        index = self.index + np.concatenate(([0], np.cumsum(step)[:-1]))
        self.index += int(step.sum())
        began = self.emitted
        self.emitted += n
        if began < WARMUP_ITERS and (self._from_start or self.incarnation > 0):
            ordinary = np.flatnonzero(phase == STEADY)
            odd = phase[: ordinary[0]] if len(ordinary) else phase
            odd[odd == OUTLIER] = WARMUP
            lead = phase[: max(0, WARMUP_ITERS - began)]
            lead[lead == STEADY] = WARMUP
        if self._next_phase == RESTART:
            phase[0], self._next_phase = RESTART, STEADY
        elif self._next_phase == REARM:
            good = np.flatnonzero(phase == STEADY)
            if len(good):
                phase[good[0]], self._next_phase = REARM, STEADY
        return [
            Iters(
                rank=self.rank, incarnation=self.incarnation, index=index, t_ns=t, dur_ns=dur, phase=phase,
                calls=calls.astype("<i4"), seq=seq,
            )
        ]  # fmt: skip

    def _period(self, state: str, c: Columns) -> Period:
        p = self.pattern if state == "found" else None
        choice = self.choice
        return Period(
            rank=self.rank, t_ns=int(c.t[-1]) if len(c) else 0, state=state, calls=p.calls if p else 0,
            dur_ns=p.dur_ns if p else 0, method=p.method if p else choice.method, anchor=p.anchor if p else "",
            confidence=p.confidence if p else 0.0, candidates=choice.candidates if state != "rearm" else [],
        )  # fmt: skip

    def _buffer(self) -> Columns:
        c = join(self._parts) if self._parts else empty()
        self._parts = [c]
        return c

    def _drop(self, n: int) -> None:
        c = self._buffer()
        self._context = np.concatenate([self._context, c.h[max(0, n - ORDERS) : n]])[-(ORDERS - 1) :]
        rest = c.cut(n)
        self._parts = [rest.copy() if len(rest) * 4 < len(c) else rest]
        self._n = len(rest)
