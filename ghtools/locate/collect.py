# SPDX-License-Identifier: Apache-2.0
"""What each rank did, kept until an iteration is whole: executions, host entries and iteration boundaries.

One buffer a rank, bounded. A row is taken whole or dropped and counted; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.records import FLAG_CAPTURE, FLAG_DUR_INVALID, FLAG_EXEC, OP_CODE, PHASE_CODE, Calls, Iters

MAX_ROWS = 1 << 21  # of one rank; the oldest are let go
MAX_RECORDS = 1 << 14  # of iterations of one rank
MAX_DUR_NS = 3600 * 10**9  # a collective that took longer is a hang or nonsense
NONE_DONE = -(1 << 62)  # an index before all iterations
STEADY = PHASE_CODE["steady"]
SEND, RECV = OP_CODE["send"], OP_CODE["recv"]

Ints = NDArray[np.int64]


@dataclass
class Rows:
    """Executions of one rank in the order in which they were issued: columns of equal length."""

    seq: Ints
    entry: Ints  # when the host called, ns; the same as `start` where only executions are known
    start: Ints  # when it began to run, ns
    dur: Ints  # ns; -1 = only the host entry is known
    op: NDArray[np.uint8]
    peer: NDArray[np.int32]
    comm: NDArray[np.uint64]
    bytes: Ints

    def take(self, where: Any) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, name)[where] for name in ROW))


ROW = ("seq", "entry", "start", "dur", "op", "peer", "comm", "bytes")


def join(parts: list[Rows]) -> Rows:
    """Rows one after the other."""
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in ROW)) if parts else empty()


def empty() -> Rows:
    """No rows."""
    i8 = np.empty(0, np.int64)
    return Rows(i8, i8, i8, i8, np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.uint64), i8)


@dataclass
class Bounds:
    """Iterations of one rank: columns of equal length, by index."""

    index: Ints
    t_ns: Ints
    dur_ns: Ints
    phase: NDArray[np.uint8]
    seq: Ints


@dataclass
class Dropped:
    """Rows that could not be used, by why."""

    invalid: int = 0  # the duration is marked invalid, negative or absurd
    captured: int = 0
    overflow: int = 0  # over the bound of a buffer
    unknown_peer: int = 0
    unmatched: int = 0  # members disagree about how many there were


@dataclass
class RankBuffer:
    """One rank's rows and boundaries that have not been used up."""

    rank: int
    incarnation: int = 0
    calls: list[Rows] = field(default_factory=list)  # host entries
    execs: list[Rows] = field(default_factory=list)
    index: list[Iters] = field(default_factory=list)
    rows: int = 0
    last_t_ns: int = 0
    done_index: int = NONE_DONE  # iterations up to this one are used up
    seen_exec: bool = False
    times_pairs: bool = False  # sends and receives have executions, too (NCCL)

    def add(self, rec: Calls, dropped: Dropped) -> None:
        """Take a batch of calls."""
        if rec.incarnation != self.incarnation:
            self._restart(rec.incarnation)
        n = len(rec.t_ns)
        if not n:
            return
        self.last_t_ns = max(self.last_t_ns, int(rec.t_ns[-1]))
        captured = (rec.flags & FLAG_CAPTURE) != 0
        is_exec = (rec.flags & FLAG_EXEC) != 0
        whole = (rec.dur_ns >= 0) & (rec.dur_ns <= MAX_DUR_NS) & ((rec.flags & FLAG_DUR_INVALID) == 0)
        timed = is_exec | (rec.dur_ns != -1)
        bad = timed & ~whole
        dropped.captured += int(captured.sum())
        dropped.invalid += int((bad & ~captured).sum())
        use = timed & whole & ~captured
        if use.any():
            self.seen_exec = True
            self.execs.append(_rows(rec, use, rec.dur_ns))
            self.times_pairs = self.times_pairs or bool(np.isin(self.execs[-1].op, (SEND, RECV)).any())
        entry = ~is_exec & ~captured & ~use
        if entry.any():
            self.calls.append(_rows(rec, entry, np.full(n, -1, np.int64)))
        self.rows += int(use.sum() + entry.sum())
        while self.rows > MAX_ROWS and len(self.calls) + len(self.execs) > 1:
            calls_first = self.calls and (not self.execs or _first(self.calls) < _first(self.execs))
            gone = len((self.calls if calls_first else self.execs).pop(0).seq)
            self.rows -= gone
            dropped.overflow += gone

    def bound(self, rec: Iters) -> None:
        """Take a batch of iterations."""
        if rec.incarnation != self.incarnation:
            self._restart(rec.incarnation)
        if len(rec.index):
            self.index.append(rec)
            del self.index[:-MAX_RECORDS]

    def _restart(self, incarnation: int) -> None:
        self.incarnation, self.done_index, self.rows = incarnation, NONE_DONE, 0
        self.calls, self.execs, self.index = [], [], []

    def bounds(self) -> Bounds:
        """All iterations that are known and not used up, in order of their index, each once."""
        if not self.index:
            i8 = np.empty(0, np.int64)
            return Bounds(i8, i8, i8, np.empty(0, np.uint8), i8)
        index = np.concatenate([rec.index for rec in self.index])
        keep, first = np.unique(index, return_index=True)
        first = first[keep > self.done_index]

        def column(name: str) -> Any:
            return np.concatenate([getattr(rec, name) for rec in self.index])[first]

        return Bounds(index[first], column("t_ns"), column("dur_ns"), column("phase"), column("seq"))

    def entries(self) -> Rows:
        """Calls in the order of issue, with `dur` -1: their times of entry are all that is known."""
        calls = join(self.calls)
        if np.any(calls.seq[1:] < calls.seq[:-1]):  # threads of one process can publish out of order
            calls = calls.take(np.argsort(calls.seq, kind="stable"))
        return calls

    def executions(self, on_device: bool = False) -> Rows:
        """Executions with their host entries, in the order of issue; where there are none, the host entries alone.

        `on_device`: the host only enqueues and runs ahead of the device, so the begin of the execution stands for
        the entry. Sends and receives that were not timed (gloo's are not) are among the rows, with `dur` -1.
        """
        calls, execs = self.entries(), join(self.execs)
        if not len(execs.seq):
            return calls
        in_order = np.all(execs.seq[1:] >= execs.seq[:-1]) and np.all(execs.seq >= 0)
        if not in_order:
            by = execs.seq if np.all(execs.seq >= 0) else execs.start
            execs = execs.take(np.argsort(by, kind="stable"))
        if len(calls.seq) and not on_device:
            at = np.searchsorted(calls.seq, execs.seq)
            at[at == len(calls.seq)] = 0
            same = (calls.seq[at] == execs.seq) & (execs.seq >= 0) & (calls.entry[at] <= execs.start)
            execs.entry = np.where(same, calls.entry[at], execs.start)
            pairs = np.isin(calls.op, (SEND, RECV)) & ~np.isin(calls.seq, execs.seq)
            if self.times_pairs:  # those before are only not timed yet
                pairs &= calls.seq >= execs.seq[0]
            if pairs.any():
                execs = join([execs, calls.take(pairs)])
                execs = execs.take(np.argsort(execs.seq if np.all(execs.seq >= 0) else execs.entry, kind="stable"))
        return execs

    def used(self, index: int, seq: int, t_ns: int) -> None:
        """Let go of what lies before an iteration: its index, first call (-1 = not known) and begin."""
        self.done_index = max(self.done_index, index - 1)
        self.index = [rec for rec in self.index if int(rec.index.max()) > self.done_index]
        self.calls, self.execs = _after(self.calls, seq, t_ns), _after(self.execs, seq, t_ns)
        self.rows = sum(len(part.seq) for part in (*self.calls, *self.execs))


def _first(parts: list[Rows]) -> int:
    return int(parts[0].start[0])


def _after(parts: list[Rows], seq: int, t_ns: int) -> list[Rows]:
    """Rows from a call on. One row before it stays, since a gap is measured from its end."""
    kept = []
    for part in parts:
        keep = part.start >= t_ns if seq < 0 else (part.seq >= seq - 1) | ((part.seq < 0) & (part.start >= t_ns))
        if keep.all():
            kept.append(part)
        elif keep.any():
            kept.append(part.take(keep))
    return kept


def _rows(rec: Calls, where: NDArray[np.bool_], dur: Ints) -> Rows:
    t = rec.t_ns[where].astype(np.int64)
    return Rows(
        rec.seq[where].astype(np.int64), t, t, dur[where].astype(np.int64), rec.op[where], rec.peer[where],
        rec.comm[where].astype(np.uint64), rec.bytes[where].astype(np.int64),
    )  # fmt: skip


def iteration_of(rows: Rows, bounds: Bounds) -> Ints:
    """Position in `bounds` of each row's iteration, -1 = outside all of them.

    By call number where both sides know it, else by host entry. A jump in the index is a hole, not a long iteration.
    """
    if not len(bounds.index):
        return np.full(len(rows.seq), -1, np.int64)
    if np.all(bounds.seq >= 0) and np.all(rows.seq >= 0):
        at = np.searchsorted(bounds.seq, rows.seq, side="right") - 1
    else:
        at = np.searchsorted(bounds.t_ns, rows.entry, side="right") - 1
    end = bounds.t_ns + bounds.dur_ns
    follows = np.append(bounds.index[1:] == bounds.index[:-1] + 1, False)
    inside = (at >= 0) & (follows[at] | (rows.entry < end[at]))
    return np.where(inside, at, -1)
