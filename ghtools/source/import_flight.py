# SPDX-License-Identifier: Apache-2.0
"""Dumps of PyTorch's flight recorder, pickle or JSON, one file a rank.

They are made when a collective times out by a job with TORCH_FR_BUFFER_SIZE=2000 (before torch 2.9
TORCH_NCCL_TRACE_BUFFER_SIZE) and TORCH_NCCL_DUMP_ON_TIMEOUT=1, at the place TORCH_NCCL_DEBUG_INFO_TEMP_FILE says, or by
_dump_fr_trace and _dump_fr_trace_json. The rank is the number after "rank" in the file's name, or the one it ends with.
They tell the last calls of each rank, with durations where TORCH_NCCL_ENABLE_TIMING=1 was set, and who keeps a job
waiting that stands still (suspects with the cause "stalled"). They do not tell who is slow, nor when they were taken:
of a job that still runs, a finding is only who was behind at that moment. A rank without a dump is missing, and may be
the one. A pickle that asks for any class or function is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.errors import Exit, GhError, InputError
from ghtools.stream.records import FLAG_ASYNC, FLAG_BYTES_UNKNOWN, OP_CODE, OPS, Comm, Job, Record, Suspect

from .call_table import MAX_NS, CallTable
from .comm_names import MAX_RANKS, dtype_of, group_id, numel_of, op_of, rank_in_name, ranks_of, size_of, text_of
from .each_file import each_file, read_all
from .importers import File, Options
from .plain_pickle import loads
from .stalled import Dump, Group, Pending, judge

NAME = "flight-recorder"
DOC = "dumps of PyTorch's flight recorder, pickle or JSON, one file a rank: last calls, and who keeps a stalled job"

MAX_FILE_BYTES = 256 << 20
_OUTPUT = (OP_CODE["reduce_scatter"], OP_CODE["scatter"], OP_CODE["recv"])
_PEER = re.compile(r"(?:send|recv) \d+(?:->|<-)(\d{1,7})")
_HOST = re.compile(r"(?:^|[-_.])((?:host|node)[-_]?[a-z0-9-]*\d)", re.I)


def looks_like(first: bytes) -> bool:
    """Whether this begins as such a dump."""
    if first[:1] == b"\x80":
        return any(key in first for key in (b"pg_config", b"entries", b"nccl_version", b"collective_seq_id"))
    return first.lstrip()[:1] == b"{" and b'"entries"' in first and b'"pg_' in first and b"traceEvents" not in first


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Comm and calls of each file, then a job record, and a suspect for each finding about a stall.

    The judgement needs all files: what it holds is the last numbers of each rank and its unfinished calls. InputError
    names a file that is malformed, cut, refused, of an unknown rank, or of a rank that was read already; the others
    are read and judged, and the rank of a bad file counts as missing.
    """
    if options.rank >= 0 and len(files) > 1:
        raise GhError("cannot read several files as one rank", "a file is a rank", "one file with --rank")
    job = _Job(options, lone=len(files) == 1)
    bad: GhError | None = None
    try:
        yield from each_file(files, job.read, options.warn)
    except GhError as error:
        if error.code != Exit.INPUT:
            raise
        bad = error
    yield from job.last()
    if bad:
        raise bad


@dataclass
class _Told:
    """What one dump says of one group."""

    called: int = -1  # by its entries
    done: int = -1
    open: int = -1  # first entry that is not finished
    status_called: int = -1  # by pg_status, which counts sends and receives as well where there are any
    status_done: int = -1
    mixed: bool = False


@dataclass
class _Rank:
    """One dump."""

    file: str
    host: str
    told: dict[int, _Told] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)


class _Job:
    """All dumps so far."""

    def __init__(self, options: Options, lone: bool) -> None:
        self._options, self._lone = options, lone
        self.ranks: dict[int, _Rank] = {}
        self.groups: dict[int, Group] = {}
        self._world = 0
        self._backends: set[str] = set()
        self._last_ns = 0

    def read(self, file: File) -> Iterator[Record]:
        """Comm and calls of one dump."""
        data = read_all(file, MAX_FILE_BYTES)
        found = _load(data, file.name)
        rank = self._rank(file.name, found)
        dump = _Rank(file.name, (_HOST.findall(file.name.rpartition("/")[2]) or [""])[0])
        groups = _Groups(found, file.name)
        table = CallTable()
        for entry in groups.entries:
            self._entry(rank, entry, groups, dump, table)
        for group, (called, done) in groups.status().items():
            told = dump.told.setdefault(group, _Told())
            told.status_called, told.status_done = called, done
        self.ranks[rank] = dump
        self._world = max(self._world, groups.world, rank + 1)
        for group, (name, what, members) in groups.made.items():
            self.groups[group] = Group(what or name, members)
            yield Comm(
                comm=group, rank=rank, comm_rank=members.index(rank) if rank in members else -1, size=len(members),
                ranks=members, name=what or name, backend=groups.backend,
            )  # fmt: skip
        self._backends |= {groups.backend} if groups.backend else set()
        yield from table.records(rank, np.array(groups.ids() or [0], np.uint64))

    def _rank(self, name: str, found: dict[str, Any]) -> int:
        told = found.get("rank")
        rank = self._options.rank if self._options.rank >= 0 else rank_in_name(name)
        if rank is None and (at_end := re.search(r"(\d{1,7})(?:\.\w+)?$", name)):
            rank = int(at_end[1])
        if rank is None and isinstance(told, int) and 0 <= told < MAX_RANKS:
            rank = told
        if rank is None and self._lone:
            rank = 0
        if rank is None or rank >= MAX_RANKS:
            raise InputError(f"cannot tell the rank of {name}", "its name has none", "a name that ends in _rank_N")
        if rank in self.ranks:
            raise InputError(f"bad input: {name}", f"it is rank {rank}, which {self.ranks[rank].file} was already")
        return rank

    def _entry(self, rank: int, entry: dict[str, Any], groups: _Groups, dump: _Rank, table: CallTable) -> None:
        group, number = groups.of(entry)
        members = groups.made[group][2]
        title = entry.get("profiling_name")
        title = title[:256] if isinstance(title, str) else ""
        op = op_of(title.partition(" ")[0]) or 0
        t_ns = _int(entry.get("time_created_ns"), 0)
        seq = _int(entry.get("collective_seq_id", entry.get("seq_id")), -1)
        p2p = entry.get("is_p2p") is True or op in (OP_CODE["send"], OP_CODE["recv"])
        peer = -1
        if to := _PEER.search(title):
            peer = int(to[1])
        self._last_ns = max(self._last_ns, t_ns)
        kinds = entry.get("output_dtypes" if op in _OUTPUT else "input_dtypes")
        dtype = dtype_of(kinds[0]) if isinstance(kinds, list) and kinds else 0
        numel = numel_of(entry.get("output_sizes" if op in _OUTPUT else "input_sizes"))
        size = 0 if op == OP_CODE["barrier"] else size_of(numel, dtype) if numel is not None else None
        took = entry.get("duration_ms")
        dur_ns = -1
        if isinstance(took, int | float) and 0 < took < MAX_NS / 1e6:
            dur_ns = round(took * 1e6)
        table.add(
            t_ns, dur_ns, op, dtype, size or 0, flags=FLAG_ASYNC | (FLAG_BYTES_UNKNOWN if size is None else 0),
            peer=peer if peer < len(members) or not members else -1, group=number,
            seq=_int(entry.get("record_id"), len(table)),
        )  # fmt: skip
        # Gloo's entries stay "scheduled" for ever; "retired" says that they ended.
        finished = entry.get("retired") is True or entry.get("state") == "completed"
        told = dump.told.setdefault(group, _Told())
        told.mixed |= p2p or _int(entry.get("op_id"), seq) > seq >= 0
        if not p2p:
            told.called = max(told.called, seq)
            if finished:
                told.done = max(told.done, seq)
            elif told.open < 0 or seq < told.open:
                told.open = seq
        if finished:
            return
        other = rank if p2p else -1  # a group of sends and receives: who it is for cannot be told
        if p2p and 0 <= peer < len(members):
            other = members[peer]
        name = OPS[op] if op else title.rpartition(":")[2] or "an operation"
        dump.pending.append(Pending(group, seq, name, other, t_ns, _where(entry.get("frames"))))

    def last(self) -> Iterator[Record]:
        """The job and what keeps it, from all dumps."""
        if not self.ranks:
            return
        ranks = [{"rank": r, "host": dump.host, "state": "ended"} for r, dump in sorted(self.ranks.items())]
        yield Job(
            job=self._options.job, world_size=self._world, backend=",".join(sorted(self._backends)), ranks=ranks,
            t_ns=self._last_ns,
        )  # fmt: skip
        if absent := [r for r in range(self._world) if r not in self.ranks]:
            shown = ", ".join(map(str, absent[:16])) + (", ..." if len(absent) > 16 else "")
            self._options.warn(f"no dump of {len(absent)} of {self._world} ranks: {shown}")
        mixed = {group for dump in self.ranks.values() for group, told in dump.told.items() if told.mixed}
        dumps = {rank: _dump(rank, dump, mixed) for rank, dump in self.ranks.items()}
        for stall in judge(dumps, self.groups):
            yield Suspect(
                what=stall.what, ranks=stall.ranks, comm=stall.group, cause="stalled", verdict=stall.verdict,
                hosts=sorted({self.ranks[r].host for r in stall.ranks if r in self.ranks and self.ranks[r].host}),
                t_ns=self._last_ns, text=stall.text, evidence=stall.evidence,
            )  # fmt: skip


def _dump(rank: int, dump: _Rank, mixed: set[int]) -> Dump:
    made = Dump(rank, dump.pending)
    for group, told in dump.told.items():
        called, done = told.called, told.open - 1 if told.open >= 0 else told.done
        if group not in mixed:
            called, done = max(called, told.status_called), max(done, told.status_done)
        if called >= 0:
            made.called[group] = called
        if done >= 0:
            made.done[group] = done
    return made


class _Groups:
    """Process groups of one dump. Each has an identity that is equal on all ranks."""

    def __init__(self, found: dict[str, Any], name: str) -> None:
        entries = found.get("entries")
        if not isinstance(entries, list):
            raise InputError(f"bad input: {name}", "it has no list of entries")
        self.entries: list[dict[str, Any]] = [entry for entry in entries if isinstance(entry, dict)]
        self.made: dict[int, tuple[str, str, list[int]]] = {}  # identity -> name, description, members
        self._number: dict[int, int] = {}
        self._config: dict[str, int] = {}
        self.world = 0
        self.backend = ""
        self._status = found.get("pg_status")
        config = found.get("pg_config")
        for key, one in config.items() if isinstance(config, dict) else ():
            if isinstance(one, dict):
                what, members = one.get("desc"), ranks_of(one.get("ranks"))
                text = text_of(one.get("name", key)) or "0"  # Gloo leaves the default group's name out
                self._config[text] = self._make(text, what[:256] if isinstance(what, str) else "", members)
                self.world = max(self.world, len(members), *members[-1:])
        self._by_id: dict[str, int] = {}
        for entry in self.entries:
            group, _ = self.of(entry)
            self._by_id.setdefault(text_of(entry.get("pg_id")), group)
            title = entry.get("profiling_name")
            if isinstance(title, str) and ":" in title:
                self.backend = title.partition(":")[0][:16]
        if not self.backend and found.get("nccl_version"):
            self.backend = "nccl"

    def _make(self, name: str, what: str, members: list[int]) -> int:
        identity = group_id(name, members)
        if identity not in self.made:
            self._number[identity] = len(self.made)
            self.made[identity] = (name, "" if what == "undefined" else what, members)
        return identity

    def of(self, entry: dict[str, Any]) -> tuple[int, int]:
        """Identity of an entry's group, and its number in this dump."""
        told = entry.get("process_group")
        name, what = (text_of(entry.get("pg_id")), "")
        if isinstance(told, list | tuple) and told and isinstance(told[0], str):
            name = told[0][:256]
            what = told[1][:256] if len(told) > 1 and isinstance(told[1], str) else ""
        identity = self._config.get(name)
        if identity is None:
            identity = self._make(name, what, [])
        return identity, self._number[identity]

    def ids(self) -> list[int]:
        """Identities by number."""
        return list(self.made)

    def status(self) -> dict[int, tuple[int, int]]:
        """Last number called and last number finished, by group.

        pg_status goes by the process's own numbers, entries tell which group has which. For groups without entries
        the two lists are laid side by side: both grow in the order in which groups were made. That is done only
        where they are equally long, names are numbers, and no entry contradicts.
        """
        told = {text_of(key): one for key, one in self._status.items()} if isinstance(self._status, dict) else {}
        numbers = {key: self._by_id[key] for key in told if key in self._by_id}
        ids = sorted((key for key in told if key.isdecimal()), key=int)
        names = sorted((name for name in self._config if name.isdecimal()), key=int)
        if len(ids) == len(names) == len(self._config):
            beside = {key: self._config[name] for key, name in zip(ids, names, strict=True)}
            if all(beside[key] == group for key, group in numbers.items()):
                numbers = beside
        found = {}
        for key, group in numbers.items():
            one = told[key]
            if isinstance(one, dict):
                called = _int(one.get("last_enqueued_collective"), -1)
                found[group] = called, _int(one.get("last_completed_collective"), -1)
        return found


def _load(data: bytes, name: str) -> dict[str, Any]:
    """The dump as a map; InputError if it is none."""
    if not data:
        raise InputError(f"input cut: {name}", "it is empty")
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InputError(f"bad input: {name}", f"it is not whole JSON: {error}") from None
    else:
        found = loads(data, name)
    if isinstance(found, list):
        found = {"entries": found}  # the first version had nothing else
    if not isinstance(found, dict):
        raise InputError(f"bad input: {name}", "it is no dump of a flight recorder")
    return found


def _where(frames: object) -> str:
    """The first line of the user's own code on the stack."""
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            path, line = frame.get("filename"), frame.get("line")
            if isinstance(path, str) and isinstance(line, int) and "/torch/" not in path:
                return f"{path[-128:]}:{line}"
    return ""


def _int(value: object, default: int) -> int:
    """A whole number that fits a column, else `default`; JSON dumps have some as text."""
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_NS else default
