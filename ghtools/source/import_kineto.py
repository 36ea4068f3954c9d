# SPDX-License-Identifier: Apache-2.0
"""Traces of the PyTorch profiler (Kineto), JSON, one file a rank, of any length in bounded memory.

They are made by torch.profiler.profile with on_trace_ready=tensorboard_trace_handler(DIR), by export_chrome_trace, or
on demand by dynolog. The rank is taken from distributedInfo, else from the file's name (rank-3, worker3, _3.json), else
from --rank with one file. NCCL kernels and Gloo operations become executions with true durations, what the host asked
for becomes calls (their time in the library is no duration and is left out), ProfilerStep#N becomes iterations.
From these it can be told who came last into a collective (who spends least time in it) and whether the transfer
itself is slow. Traces of torch before 2.1 do not tell groups: they are told only where there can be but one. Compute
kernels are not read. A trace holds a few steps: enough to look at one moment, too few to see a change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.records import FLAG_BYTES_UNKNOWN, FLAG_EXEC, Comm, Iters, Job, Record

from .call_table import MAX_NS
from .comm_names import MAX_RANKS, group_id, rank_in_name, ranks_of, text_of
from .each_file import each_file
from .importers import File, Options
from .interleave import side_by_side
from .json_split import Splitter
from .kineto_events import LAUNCH, NEEDLES, Events, GroupKey

NAME = "kineto"
DOC = "traces of the PyTorch profiler, one file a rank: NCCL and Gloo with true durations, ProfilerStep as iterations"

MAX_ROWS = 1 << 20  # calls of one file held at a time; beyond, they leave in the order of the file
SAY_BYTES = 1 << 29


def looks_like(first: bytes) -> bool:
    """Whether this begins as a Chrome trace that Kineto wrote."""
    return first.lstrip()[:1] == b"{" and bool(
        re.search(rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:', first)
    )


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Job and comm of each file, then calls (those of the host, then executions with durations) and iters.

    Calls and iters of all files come step by step, as far as a million calls can be held.

    InputError names a file that is cut or malformed, or whose rank cannot be told or was read already for the same
    time; what was sound in it and the other files are delivered.
    """
    if options.rank >= 0 and len(files) > 1:
        raise GhError("cannot read several files as one rank", "a file is a rank", "one file with --rank")
    yield from side_by_side(_records(files, options))


def _records(files: Sequence[File], options: Options) -> Iterator[Record]:
    """All records, file after file."""
    job = _Job(options)
    try:
        yield from each_file(files, lambda file: _read_file(file, job, options, lone=len(files) == 1), options.warn)
    except GhError:
        yield from job.last()
        raise
    yield from job.last()


@dataclass
class _Rank:
    """What must be remembered of a rank between files."""

    file: str
    calls: int = 0
    until_ns: int = 0
    comms: set[int] = field(default_factory=set)


class _Job:
    """The ranks seen so far. A job record is due when their number has doubled, and at the end."""

    def __init__(self, options: Options) -> None:
        self.ranks: dict[int, _Rank] = {}
        self._record = Job(job=options.job)
        self._said = 0

    def add(self, rank: int, host: str, world: int, backend: str) -> None:
        """A rank's first file."""
        record = self._record
        record.ranks.append({"rank": rank, "host": host, "state": "ended"})
        record.world_size = max(record.world_size, world)
        record.backend = backend or record.backend

    def due(self) -> Iterator[Job]:
        """The record, when it is time."""
        if len(self._record.ranks) >= 2 * self._said:
            yield from self.last()

    def last(self) -> Iterator[Job]:
        """The record, if it was not said as it is now."""
        if len(self._record.ranks) > self._said:
            self._said = len(self._record.ranks)
            now = self._record
            yield Job(job=now.job, world_size=now.world_size, backend=now.backend, ranks=list(now.ranks))


def _read_file(file: File, job: _Job, options: Options, lone: bool) -> Iterator[Record]:
    splitter = Splitter(file.name, (*NEEDLES, LAUNCH))
    trace = _Trace(file.name, job, options, lone)
    told = SAY_BYTES
    try:
        for raw in splitter.objects(file.source):
            trace.events.feed(raw)
            if trace.events.kernels_tell:
                splitter.want(NEEDLES)
            if len(trace.events) >= MAX_ROWS:
                yield from trace.flush(splitter.outside())
            if splitter.bytes >= told:
                options.warn(f"{file.name}: {splitter.bytes >> 20} MiB read")
                told += SAY_BYTES
    except InputError:
        yield from trace.flush(splitter.outside())  # what came before is sound
        raise
    if not trace.began and "traceEvents" not in splitter.outside():
        raise InputError(f"bad input: {file.name}", "it is JSON, but no trace: it has no traceEvents")
    yield from trace.flush(splitter.outside())
    if not trace.began:
        options.warn(f"{file.name}: it holds no NCCL or Gloo operation and no ProfilerStep")
    if trace.odd:
        options.warn(f"{file.name}: {trace.odd} events without a sound ts or dur were left out")


class _Trace:
    """One file on its way into records."""

    def __init__(self, name: str, job: _Job, options: Options, lone: bool) -> None:
        self.name, self.events, self.began, self.odd = name, Events(name), False, 0
        self._job, self._options, self._lone = job, options, lone

    def flush(self, outside: dict[str, Any]) -> Iterator[Record]:
        """Everything collected so far; `outside` is the trace without its events, as far as it is known."""
        events, self.events = self.events, Events(self.name)
        self.odd += events.odd
        tables = [events.calls(), events.gloo, events.runs]
        if not any(map(len, tables)) and not events.steps:
            return
        world = outside.get("distributedInfo")
        info = world if isinstance(world, dict) else {}
        rank = self._rank(info)
        base = outside.get("baseTimeNanoseconds", 0)
        first, last = _span(events)
        if not isinstance(base, int) or not 0 <= base <= MAX_NS - last:
            base = 0
        state = self._state(rank, first + base, info, outside)
        state.until_ns = max(state.until_ns, last + base)
        yield from self._job.due()
        groups = _Groups(rank, info, events)
        for comm in groups.records():
            if comm.comm not in state.comms:
                state.comms.add(comm.comm)
                yield comm
        _finish(events, groups)
        calls = events.calls()
        order = np.argsort(np.concatenate([np.array(calls.t_ns, np.int64), np.array(events.gloo.t_ns, np.int64)]))
        seq = np.empty(len(order), np.int64)
        seq[order] = np.arange(state.calls, state.calls + len(order))
        events.match(seq[: len(calls)])
        calls.seq = calls.seq[:0]
        calls.seq.extend(seq[: len(calls)].tolist())
        for row, number in enumerate(seq[len(calls) :].tolist()):
            _gloo(events, row, number)
        began = np.sort(np.array(calls.t_ns, np.int64))
        for table in (calls, events.runs):
            yield from table.records(rank, groups.ids, base)
        if events.steps:
            yield _iters(rank, sorted(events.steps), began, state.calls, base)
        state.calls += len(order)

    def _rank(self, info: dict[str, Any]) -> int:
        told = info.get("rank")
        if self._options.rank >= 0:
            return self._options.rank
        if isinstance(told, int) and 0 <= told < MAX_RANKS:
            return told
        named = rank_in_name(self.name)
        if named is None and not self._lone:
            raise InputError(
                f"cannot tell the rank of {self.name}", "it has no distributedInfo and no rank in its name",
                "a name such as rank3.json, or --rank with one file at a time",
            )  # fmt: skip
        return named or 0

    def _state(self, rank: int, first_ns: int, info: dict[str, Any], outside: dict[str, Any]) -> _Rank:
        state = self._job.ranks.get(rank)
        if state is None:
            state = self._job.ranks[rank] = _Rank(self.name)
            size, backend, host = info.get("world_size"), info.get("backend"), outside.get("host_name")
            self._job.add(
                rank, host[:256] if isinstance(host, str) else "",
                size if isinstance(size, int) and 0 < size <= MAX_RANKS else 0,
                backend[:64] if isinstance(backend, str) else "",
            )  # fmt: skip
        elif not self.began and first_ns < state.until_ns:
            raise InputError(
                f"bad input: {self.name}", f"it is rank {rank}, which {state.file} was for the same or a later time",
                "one file a rank, or the files of a rank in order of time",
            )  # fmt: skip
        state.file, self.began = self.name, True
        return state


class _Groups:
    """Communicators of a trace. `ids[group]` are their identities, the last one is for calls that name no group."""

    def __init__(self, rank: int, info: dict[str, Any], events: Events) -> None:
        self._rank = rank
        backend, world = info.get("backend"), info.get("world_size")
        self._backend = backend[:64] if isinstance(backend, str) else ""
        self._world = world if isinstance(world, int) and 0 < world <= MAX_RANKS else 0
        listed = info.get("pg_config")
        self._listed: dict[str, tuple[list[int], str]] = {}
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict):
                what = one.get("pg_desc")
                members = ranks_of(one.get("ranks")) or self._all(one.get("pg_size", one.get("group_size")))
                self._listed[text_of(one.get("pg_name"))] = members, what[:256] if isinstance(what, str) else ""
        self.known = [self._comm(key) for key in events.groups]
        self.known.append(self._unnamed(len(events.streams)))
        self.ids = np.array([comm.comm for comm in self.known], np.uint64)
        self._used = {*events.calls().group, *events.gloo.group, *events.runs.group}

    def records(self) -> Iterator[Comm]:
        """Those that are used."""
        for number, comm in enumerate(self.known):
            if number in self._used or (number == len(self.known) - 1 and -1 in self._used):
                yield comm

    def _all(self, size: object) -> list[int]:
        """PyTorch lists no ranks for a group of all."""
        return list(range(self._world)) if size == self._world and self._world else []

    def _comm(self, key: GroupKey) -> Comm:
        name, text, size, first, stride, what = key
        members, described = self._listed.get(name, ([], ""))
        members = ranks_of(text) or members
        if not members and 0 < size <= MAX_RANKS and first >= 0 and stride > 0:
            members = list(range(first, first + size * stride, stride))
        size = max(size, len(members))
        identity = group_id(name, members) if members else group_id(name, (), size, first)
        return self._made(identity, members, size, what or described or name)

    def _unnamed(self, streams: int) -> Comm:
        """For calls that tell no group: the only one there can be, or one that is equal on no other rank."""
        mine = {tuple(members) for members, _ in self._listed.values() if self._rank in members and len(members) > 1}
        if len(mine) == 1:
            members = list(mine.pop())
            name = next((n for n, (m, _) in self._listed.items() if m == members), "")
            several = sum(m == members for m, _ in self._listed.values()) > 1
            return self._made(
                group_id("" if several else name, members), members, len(members),
                "one of several" if several else self._listed[name][1] or name,
            )  # fmt: skip
        if not self._listed and self._world > 1 and streams <= 1:
            members = list(range(self._world))
            return self._made(group_id("", members), members, self._world, "all ranks")
        return self._made(group_id("unknown", (), self._rank), [], 0, "not told by the trace")

    def _made(self, identity: int, members: list[int], size: int, name: str) -> Comm:
        at = members.index(self._rank) if self._rank in members else -1
        return Comm(
            comm=identity, rank=self._rank, comm_rank=at, size=size, ranks=members, name=name, backend=self._backend
        )


def _span(events: Events) -> tuple[int, int]:
    """First begin and last end of anything in it."""
    begins = [min(table.t_ns) for table in (events.calls(), events.gloo, events.runs) if len(table)]
    ends = [max(table.t_ns) for table in (events.calls(),) if len(table)]
    for table in (events.gloo, events.runs):
        if len(table):
            ends.append(int((np.array(table.t_ns, np.int64) + np.array(table.dur_ns, np.int64)).max()))
    begins += [begin for _, begin, _ in events.steps]
    ends += [begin + took for _, begin, took in events.steps]
    return min(begins), max(ends)


def _finish(events: Events, groups: _Groups) -> None:
    """Sizes and peers that need the groups: a part of a reduce_scatter, the peer's number inside its group."""
    size = groups.known[-1].size
    for table, rows in ((events.annotated, events.sizeless_annotated), (events.gloo, events.sizeless_gloo)):
        for row in rows:
            if size:
                table.bytes[row] //= size
            else:
                table.bytes[row], table.flags[row] = 0, table.flags[row] | FLAG_BYTES_UNKNOWN
    place: dict[tuple[int, int], int] = {}
    for table in (events.named, events.runs):
        for row in np.flatnonzero(np.array(table.peer, np.int32) >= 0).tolist():
            key = table.group[row], table.peer[row]
            if key not in place:
                members = groups.known[key[0]].ranks
                place[key] = members.index(key[1]) if key[1] in members else -1
            table.peer[row] = place[key]


def _gloo(events: Events, row: int, seq: int) -> None:
    """A gloo annotation begins when the host calls and ends when the work is done: a call and its execution."""
    table, calls = events.gloo, events.calls()
    t_ns, op, dtype, size, flags = table.t_ns[row], table.op[row], table.dtype[row], table.bytes[row], table.flags[row]
    calls.add(t_ns, -1, op, dtype, size, flags=flags, seq=seq)
    events.runs.add(t_ns, table.dur_ns[row], op, dtype, size, flags=flags | FLAG_EXEC, seq=seq)


def _iters(rank: int, steps: list[tuple[int, int, int]], began: Any, calls: int, base: int) -> Iters:
    """Steps as iterations, each to the begin of the next: time between two belongs to the first."""
    index, t_ns, dur_ns = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    follows = (np.diff(index) == 1) & (np.diff(t_ns) >= dur_ns[:-1])
    dur_ns[:-1] = np.where(follows, np.diff(t_ns), dur_ns[:-1])
    first, last = np.searchsorted(began, t_ns), np.searchsorted(began, t_ns + dur_ns)
    return Iters(
        rank=rank, index=index, t_ns=t_ns + base, dur_ns=dur_ns, phase=np.zeros(len(index), np.uint8),
        calls=(last - first).astype(np.int32), seq=np.where(last > first, first + calls, -1),
    )  # fmt: skip
