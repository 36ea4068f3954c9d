# SPDX-License-Identifier: Apache-2.0
"""From records to reduced iterations: buffers by rank, one numbering, matched and reduced as soon as all are there.

Online and in bounded memory. An iteration is reduced when every live rank has finished the one after it, since
executions come after their calls; a rank that stays behind by GONE iterations is taken as missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from ghtools.stream.records import Calls, Iters

from .align import begins_apart, clock_offsets, offset
from .block import Part, Seen, columns_of, flat
from .collect import NONE_DONE, RECV, SEND, STEADY, Bounds, Dropped, RankBuffer, Rows, iteration_of
from .gaps import blind, own_time, places
from .groups import MAX_RANK, Groups, Key
from .history import Block, History, RankIters
from .match import TOGETHER, UNEVEN, Matched, Members, Transfers, reduce
from .stretches import Stretches

GONE = 20
MAX_HELD = 1 << 22  # rows of all ranks, held back for ranks that have said nothing yet
GONE_ROUNDS = 4  # and by so many records of every other rank, since one record can hold many iterations
MAX_KEYS = 1 << 20
MAX_BLOCK = 64  # iterations reduced at a time
WHOLE = 0.9  # an iteration with fewer rows than this share of the usual was not seen as a whole


class Profiler:
    """Feed it calls and iterations; `advance` reduces what is complete."""

    def __init__(self, groups: Groups) -> None:
        self.groups, self.dropped = groups, Dropped()
        # Iterations with durations and those of which only the times of entry are known: what was made of arrivals
        # cannot be compared with what durations tell, and executions may be timed in a few stretches only.
        self.durations, self.arrivals = History(), History()
        self.keys: list[Key] = []
        self._key_number: dict[int, int] = {}
        self.buffers: dict[int, RankBuffer] = {}
        self._newest: dict[int, int] = {}
        self._records = self._look_at = 0
        self._said: dict[int, int] = {}  # number of the newest record of iterations, by rank
        self._shift: dict[int, int] = {}
        self._ref = -1  # the rank whose numbers all others are brought to
        self._apart: dict[int, float] = {}  # how far the begins of an iteration are from the reference's, ns
        self._carry: dict[int, tuple[int, int]] = {}  # by rank: the last row reduced, its call and how long it held
        self._counts: dict[tuple[int, bool], deque[int]] = {}  # rows of a usual iteration, by rank and timed or not
        self._stretches = Stretches(WHOLE)
        self._next: int | None = None  # first iteration not reduced yet
        self.timed = False  # durations have been seen

    def calls(self, rec: Calls) -> None:
        """Take calls of one rank."""
        if 0 <= rec.rank < MAX_RANK:
            self._buffer(rec.rank, rec.incarnation).add(rec, self.dropped)
            self.timed = self.timed or self.buffers[rec.rank].seen_exec

    def iters(self, rec: Iters) -> None:
        """Take iterations of one rank."""
        if 0 <= rec.rank < MAX_RANK and len(rec.index):
            self._buffer(rec.rank, rec.incarnation).bound(rec)
            self._records += 1
            self._said[rec.rank] = self._records
            self._newest[rec.rank] = max(self._newest.get(rec.rank, -1), int(rec.index.max()))

    def _buffer(self, rank: int, incarnation: int) -> RankBuffer:
        found = self.buffers.get(rank)
        if found is None:
            found = self.buffers[rank] = RankBuffer(rank, incarnation)
        elif found.incarnation != incarnation:
            self._newest.pop(rank, None)
            self._shift.pop(rank, None)
            self._counts.pop((rank, True), None)
            self._counts.pop((rank, False), None)
        return found

    def advance(self, final: bool = False) -> bool:
        """Reduce the iterations that all live ranks have finished; whether there were any."""
        if not self._newest or (not final and self._records < self._look_at):
            return False  # looking at all ranks after every record would cost their square
        ranks = [rank for rank in sorted(self.buffers) if rank in self._newest]
        if final:
            return self._reduce(ranks, ranks, 0)
        self._look_at = self._records + len(ranks)
        waited = self._records - GONE_ROUNDS * len(self.expected())
        silent = self.expected() - set(ranks)
        if silent and sum(buffer.rows for buffer in self.buffers.values()) < MAX_HELD:
            return False  # a file may hold one rank after the other
        ends = {rank: self._newest[rank] + self._shift.get(rank, 0) - 1 for rank in ranks}
        front = max(ends.values())
        live = [rank for rank, end in ends.items() if end >= front - GONE or self._said[rank] > waited]
        step = 1 if len(ranks) <= 16 else 2 if len(ranks) <= 64 else 4
        if self._next is not None and min(ends[rank] for rank in live) < self._next + step - 1:
            return False
        return self._reduce(ranks, live, 1)

    def expected(self) -> set[int]:
        """Ranks that should report: those of the job, of communicators, or that have reported."""
        return self.groups.ranks() | set(self.buffers)

    def forget_iterations(self) -> None:
        """What was told of iterations so far was a guess, and better is known now. Calls that are still held stay."""
        for buffer in self.buffers.values():
            buffer.index, buffer.done_index = [], NONE_DONE
        self.durations, self.arrivals = History(), History()
        self._newest, self._said, self._shift, self._carry = {}, {}, {}, {}
        self._counts, self._apart, self._ref, self._next = {}, {}, -1, None

    @property
    def has_iterations(self) -> bool:
        """Whether any rank has said an iteration."""
        return bool(self._newest)

    @property
    def last(self) -> int:
        """Newest iteration that was reduced, -1 if there is none."""
        return max(self.durations.last, self.arrivals.last)

    def whole(self) -> None:
        """Take all that each rank did as one iteration, where none could be made out."""
        for rank, buffer in self.buffers.items():
            rows = buffer.executions()
            if len(rows.seq):
                begin = int(rows.entry.min())
                dur = max(1, int((rows.start + np.maximum(rows.dur, 0)).max()) - begin)
                self.iters(
                    Iters(
                        rank=rank, incarnation=buffer.incarnation, index=np.zeros(1, "<i8"), t_ns=np.array([begin]),
                        dur_ns=np.array([dur]), phase=np.zeros(1, "u1"), calls=np.zeros(1, "<i4"),
                        seq=np.full(1, -1, "<i8"),
                    )
                )  # fmt: skip

    def iteration_at(self, begins: dict[int, int]) -> int | None:
        """Number of the iteration that begins at a time, given by rank (-1 = any clock); None if not known yet.

        Each rank's own clock decides; the least number is taken.
        """
        found: list[int] = []
        blocks = sorted(self.durations.blocks + self.arrivals.blocks, key=lambda block: block.first)
        for block in blocks:
            table = block.ranks
            for rank, t_ns in begins.items():
                mine = np.ones(len(table.it), bool) if rank < 0 else table.rank == rank
                after = mine & (table.t_ns + table.dur / 2 >= t_ns)
                if after.any() and (mine & ~after).any():
                    found.append(int(table.it[after].min()))
            if found:
                break
        if found:
            return min(found)
        newest = blocks[-1].ranks if blocks else None
        if newest is None:
            return None
        t_ns = begins.get(-1, min(begins.values(), default=0))
        last = int(newest.t_ns.max()) if len(newest.t_ns) else 0
        if t_ns > last:
            return self.last + 1
        oldest = blocks[0].ranks
        for block in blocks:
            if (block.ranks.t_ns + block.ranks.dur / 2 >= t_ns).any():
                return block.first
        return int(oldest.it.min()) if len(oldest.it) else None

    def _reduce(self, ranks: list[int], live: list[int], lag: int) -> bool:
        bounds = {rank: self.buffers[rank].bounds() for rank in ranks}
        self._number(ranks, bounds)
        known = [rank for rank in ranks if len(bounds[rank].index)]
        if not known:
            return False
        ends = {rank: int(bounds[rank].index[-1]) + self._shift[rank] - lag for rank in known}
        last = min((end for rank, end in ends.items() if rank in live), default=-1) if lag else max(ends.values())
        if self._next is None:
            self._next = min(int(bounds[rank].index[0]) + self._shift[rank] for rank in known)
        if last < self._next:
            return False
        numbers = np.unique(np.concatenate([bounds[rank].index + self._shift[rank] for rank in known]))
        numbers = numbers[(numbers >= self._next) & (numbers <= last)]
        rest = numbers
        for timed in (True, False) if self.timed else (False,):
            seen = {rank: self._see(rank, bounds[rank], not lag, timed) for rank in known} if len(rest) else {}
            told = [its.bounds.index[its.usable] + self._shift[rank] for rank, its in seen.items() if its is not None]
            here = np.isin(rest, np.concatenate(told)) if told else np.zeros(len(rest), bool)
            some, rest = rest[here], rest[~here]
            for begin in range(0, len(some), MAX_BLOCK):
                self._block(seen, some[begin : begin + MAX_BLOCK], timed)
        self._next = last + 1
        for rank in known:
            at = int(np.searchsorted(bounds[rank].index, self._next - self._shift[rank]))
            if at < len(bounds[rank].index):
                mine = bounds[rank]
                self.buffers[rank].used(int(mine.index[at]), int(mine.seq[at]), int(mine.t_ns[at]))
        return True

    def _number(self, ranks: list[int], bounds: dict[int, Bounds]) -> None:
        """What to add to each rank's index, checked anew each time: a rank whose period was found late, or found to be
        another, has counted something else before."""
        have = [rank for rank in ranks if len(bounds[rank].index)]
        if not have:
            for rank in ranks:
                self._shift.setdefault(rank, 0)
            return
        if self._ref not in have or self._ref not in self._shift:
            known = [rank for rank in have if rank in self._shift]
            self._ref = known[0] if known else max(have, key=lambda rank: (len(bounds[rank].index), -rank))
            self._apart = {}
            if not known:
                first, last = int(bounds[self._ref].index[0]), int(bounds[self._ref].index[-1])
                anew = self._next is not None and last < self._next  # the whole job began anew
                self._shift[self._ref] = (self._next or 0) - first if anew else 0
        ref = bounds[self._ref]
        for rank in ranks:
            if rank == self._ref:
                continue
            shift = self._shift.get(rank)
            relative = 0 if shift is None else shift - self._shift[self._ref]
            apart = begins_apart(bounds[rank], ref, relative)
            same = apart is not None and abs(apart - self._apart.get(rank, apart)) < float(np.median(ref.dur_ns)) / 2
            if shift is None or not (apart is None or same):
                relative = offset(bounds[rank], ref, self.groups.link((self._ref, rank)) == "local")
                self._shift[rank] = relative + self._shift[self._ref]
                apart = begins_apart(bounds[rank], ref, relative)
            if apart is not None:
                self._apart[rank] = apart

    def _see(self, rank: int, bounds: Bounds, final: bool, timed: bool) -> Seen | None:
        """One rank's executions (its calls, if not `timed`) and the iterations they belong to; None if it has none."""
        buffer = self.buffers[rank]
        if timed and not buffer.execs:
            return None
        rows = buffer.executions(on_device="nccl" in self.groups.backend) if timed else buffer.entries()
        at = iteration_of(rows, bounds)
        count = np.bincount(at[at >= 0], minlength=len(bounds.index))
        usable = (bounds.phase == STEADY) & (count > 0)
        if timed:
            usable &= self._stretches.whole(buffer, bounds, rows, at) & ~blind(rows, at, bounds)
        usual = self._counts.setdefault((rank, timed), deque(maxlen=16))
        followed = np.append(bounds.index[1:] == bounds.index[:-1] + 1, final)  # what comes last may not be all there
        usual.extend(count[usable & followed][-16:].tolist())
        if usual:
            usable &= count >= WHOLE * float(np.median(usual))
        return Seen(rows, at, bounds, usable)

    def _block(self, seen: dict[int, Seen | None], numbers: Any, timed: bool) -> None:
        """Reduce some iterations, given by their numbers for all ranks."""
        made = (self._part(rank, mine, numbers) for rank, mine in seen.items() if mine is not None)
        parts = [part for part in made if part is not None]
        if not parts:
            return
        made_of = [self._timed(parts)] if timed else []
        made_of += self._untimed(parts, timed)
        found = [places(part.rows, part.at, part.key) for part in parts]
        overlapped = np.unique(np.concatenate([code[runs_on] for code, runs_on in found]))
        ranks = [
            self._rank_iters(part, np.isin(code, overlapped) if len(overlapped) else None)
            for part, (code, _) in zip(parts, found, strict=True)
        ]
        members = Members(*(np.concatenate(c) for c in zip(*(columns_of(m.members) for m in made_of), strict=True)))
        transfers = Transfers(
            *(np.concatenate(c) for c in zip(*(columns_of(m.transfers) for m in made_of), strict=True))
        )
        members.it, transfers.it = numbers[members.it], numbers[transfers.it]
        joined = RankIters(*(np.concatenate(column) for column in zip(*ranks, strict=True)))
        history = self.durations if timed else self.arrivals
        history.add(Block(int(numbers[0]), int(numbers[-1]), joined, members, transfers))

    def _timed(self, parts: list[Part]) -> Matched:
        """Match what has durations."""
        made = reduce(flat(parts, [part.keep & (part.rows.dur >= 0) for part in parts], None))
        self.dropped.unmatched += made.unmatched
        return made

    def _untimed(self, parts: list[Part], timed: bool) -> list[Matched]:
        """Match what has times of entry only, on one clock; how long each waited for the last to come is put into its
        rows as their duration. Without any durations that is everything, else sends and receives."""
        chosen = [part.keep & (part.rows.dur < 0) for part in parts]
        if not timed:  # arrivals are compared on one clock
            numbers = {int(number) for part in parts for number in np.unique(part.group[part.keep])}
            apart = [n for n in numbers if self.groups.link(self.groups.group(n).members) == "network"]
            chosen = [w & ~np.isin(part.group, apart) for w, part in zip(chosen, parts, strict=True)]
        if timed and not any(where.any() for where in chosen):
            return []
        clocks = {part.rank: 0 for part in parts}
        if timed and len({self.groups.host.get(part.rank) for part in parts}) > 1:
            clocks = clock_offsets(
                [
                    (part.rank, part.group, part.it, part.rows.start + part.rows.dur, part.keep & (part.rows.dur >= 0))
                    for part in parts
                ],
                {part.rank: self.groups.host.get(part.rank, "") for part in parts},
            )
        made = reduce(flat(parts, chosen, clocks), arrivals=True)
        self.dropped.unmatched += made.unmatched
        done = 0
        for part, where in zip(parts, chosen, strict=True):
            n = int(where.sum())
            wait = made.wait[done : done + n]
            done += n
            dur = part.rows.dur.copy()
            dur[where] = np.where(np.isfinite(wait), wait, -1 if timed else 0).astype(np.int64)
            if not timed:
                dur = np.maximum(dur, 0)
            self._carry[part.rank] = (int(part.rows.seq[-1]), int(dur[-1]))
            part.rows = replace(part.rows, start=np.where(where, part.rows.entry, part.rows.start), dur=dur)
        return [made]

    def _part(self, rank: int, seen: Seen, numbers: Any) -> Part | None:
        """One rank's rows of some iterations, and the row before them, from whose end the first gap is measured."""
        number = seen.bounds.index + self._shift[rank]
        usable = seen.usable & np.isin(number, numbers)
        inside = (seen.at >= 0) & usable[seen.at]
        if not inside.any():
            return None
        chosen = inside.copy()
        chosen[:-1] |= inside[1:]
        rows, inside = seen.rows.take(chosen), inside[chosen]
        if not inside[0] and rows.dur[0] < 0 and self._carry.get(rank, (-1, 0))[0] == rows.seq[0]:
            rows.dur[0] = self._carry[rank][1]  # what was found out about it when it was reduced
        at = seen.at[chosen]
        group, key = self._numbers(rank, rows, inside)
        it = np.searchsorted(numbers, number[at])
        return Part(rank, rows, at, inside, it, seen.bounds, self._shift[rank], inside & (group >= 0), group, key)

    def _numbers(self, rank: int, rows: Rows, inside: Any) -> tuple[Any, Any]:
        """Group and key of each row, -1 where it tells nothing."""
        groups = self.groups
        group = np.full(len(rows.seq), -1, np.int64)
        together = inside & np.isin(rows.op, TOGETHER)
        for comm in np.unique(rows.comm[together]):
            groups.called(int(comm), rank)
            group[together & (rows.comm == comm)] = groups.number(int(comm))
        pairs = inside & ((rows.op == SEND) | (rows.op == RECV)) & (rows.peer >= 0)
        if pairs.any():
            where = np.flatnonzero(pairs)
            what = np.stack([rows.comm[where].view(np.int64), rows.peer[where], rows.op[where]], axis=1)
            for comm, peer, op in np.unique(what, axis=0):
                mine = where[(what == (comm, peer, op)).all(axis=1)]
                other = groups.of_peer(int(comm) % (1 << 64), int(peer))
                if other < 0 or other == rank:
                    self.dropped.unknown_peer += len(mine)
                    continue
                ends = (rank, other) if op == SEND else (other, rank)
                group[mine] = groups.number(int(comm) % (1 << 64), *ends)
        size = np.clip(rows.bytes, 0, (1 << 58) - 1)
        size = np.where(rows.op == UNEVEN, 0, size)
        code = (size << 4) | np.where(rows.op == RECV, SEND, rows.op).astype(np.int64)
        found, where_code = np.unique(code, return_inverse=True)
        return group, np.array([self._key(int(one)) for one in found], np.int64)[where_code]

    def _key(self, code: int) -> int:
        number = self._key_number.get(code)
        if number is None:
            if len(self.keys) >= MAX_KEYS:
                return 0
            number = self._key_number[code] = len(self.keys)
            self.keys.append(Key(code & 15, code >> 4))
        return number

    def _rank_iters(self, part: Part, overlapped: Any) -> list[Any]:
        """Own time by iteration, as columns of RankIters."""
        bounds = part.bounds
        own = own_time(part.rows, part.at, bounds, part.key, overlapped)
        mine = np.zeros(len(bounds.index), bool)
        mine[part.at[part.inside]] = True
        keep = mine & np.isfinite(own.own)
        n = int(keep.sum())
        return [
            bounds.index[keep] + part.shift, np.full(n, part.rank, np.int64), bounds.t_ns[keep],
            bounds.dur_ns[keep].astype(float), own.own[keep], own.longest[keep], own.place[keep],
        ]  # fmt: skip
