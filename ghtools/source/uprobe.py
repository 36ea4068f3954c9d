# SPDX-License-Identifier: Apache-2.0
"""Records of a job that was started without the shim, from probes in the kernel (gh-trace --attach, issue 2).

A breakpoint on each entry point of the communication library, in the traced processes only, runs a small
program that copies the call's arguments into a ring (uprobe_program). All of it hangs on descriptors of this
process: when it ends, even by kill -9, the kernel takes the breakpoints away. Other processes that have
the same library mapped, and anybody else's tracing, are not touched.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.job.process import process_start_ticks
from ghtools.stream.errors import GhError, MissingError
from ghtools.stream.records import Array, Calls, Comm, Job, Record

from . import bpf
from .elf import Function, functions
from .uprobe_decode import Decoder, TensorLayout, take
from .uprobe_process import Group, children, code_of, environment, gloo_group, identity, job_of, rank_of, torch_version
from .uprobe_program import STATE, build
from .uprobe_rights import RIGHTS, check, machine_lacks, why
from .uprobe_table import GLOO, LIBRARIES, NCCL, Probe

RING_BYTES = 4 << 20  # 8,192 calls; at a look every 10 ms that is 800,000 calls a second on this host
TARGETS_MAX = 1024
LOOK_S = 0.01
HOLD_S, HOLD_MAX = 2.0, 256  # first calls wait this long, so many, for a tensor that shows where sizes are
ASK_S = 0.1  # how often processes are asked whether they live
FIND_S, FIND_AGAIN_S = 0.5, 5.0  # how often a process without, with a known library is looked at
PROBES = GLOO + NCCL
__all__ = ["UprobeSource", "check"]
LIBRARY_NAMES = tuple(name for name, _ in LIBRARIES)


@dataclass
class _Target:
    """A process of the job."""

    pid: int
    start_ticks: int
    slot: int
    rank: int
    local_rank: int
    world_size: int
    decoder: Decoder
    looked_s: float = -1e9
    libraries: set[str] = field(default_factory=set)
    events: list[int] = field(default_factory=list)  # descriptors that hold the probes
    comms: dict[int, int] = field(default_factory=dict)  # address -> identity
    drops: int = 0
    incarnation: int = -1  # -1 = has made no call yet
    state: str = "running"
    held: list[Array] = field(default_factory=list)  # records whose sizes cannot be read yet
    held_s: float = 0.0
    backends: set[str] = field(default_factory=set)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return process_start_ticks(self.pid) == self.start_ticks


class UprobeSource:
    """Calls of the processes `pids` and of whatever they start, by uprobes; x86-64 Linux 5.15 or later.

    A launcher (torchrun) may be given for its ranks. Raises MissingError if rights or kernel are not enough,
    GhError if a process is not there. `warn` hears of processes that cannot be traced. Time stamps are
    CLOCK_MONOTONIC of the kernel plus one offset fixed here.
    """

    def __init__(
        self, pids: list[int], *, warn: Callable[[str], None] = lambda text: None, ring_bytes: int = RING_BYTES
    ) -> None:
        if missing := machine_lacks():
            raise MissingError("cannot attach", missing)
        for pid in pids:
            if process_start_ticks(pid) is None:
                raise GhError(f"cannot attach to process {pid}", "there is no such process")
        self._warn = warn
        self._roots = {pid: process_start_ticks(pid) for pid in pids}
        self._offset_ns = _clock_offset_ns()
        self._targets: dict[int, _Target] = {}
        self._gone: dict[int, _Target] = {}  # rank -> its last process, ended
        self._refused: dict[int, int] = {}
        self._layouts: dict[tuple[int, int], TensorLayout] = {}  # of a library file: device, inode
        self._known: dict[tuple[int, int], dict[str, Function]] = {}
        self._incarnations: dict[int, int] = {}
        self._members: dict[int, dict[int, int]] = {}
        self._job = ""
        self._free = list(range(TARGETS_MAX))
        self._changed = self._ended = False
        self._found_s = self._asked_s = -1e9
        self.lost = self.events = 0
        _many_files()
        try:
            self._states_map = bpf.Map(bpf.MAP_ARRAY, STATE.itemsize, TARGETS_MAX)
            self._ring_map = bpf.Map(bpf.MAP_RINGBUF, 0, ring_bytes)
        except OSError as error:
            raise MissingError("cannot attach", why(error), RIGHTS) from None
        page = os.sysconf("SC_PAGE_SIZE")
        # The kernel's layout: a page with our position, a page with its position, the data twice in a row.
        self._consumer = np.frombuffer(self._ring_map.view(page, 0, True), np.uint64)
        area = np.frombuffer(self._ring_map.view(page + 2 * ring_bytes, page, False), np.uint8)
        self._producer: NDArray[Any] = area[:8].view(np.uint64)
        self._data: NDArray[np.uint8] = area[page:]
        self._states = np.frombuffer(self._states_map.view(STATE.itemsize * TARGETS_MAX, 0, True), STATE)
        try:
            self._discover()
        except BaseException:
            self.close()
            raise
        if not self._targets:
            libraries = ", ".join(name.removesuffix(".so") for name in LIBRARY_NAMES)
            warn(f"none of these processes has {libraries} mapped; waiting for one that does")

    @property
    def job(self) -> str:
        """The job's id, as its launcher named it, else `attach-PID`."""
        return self._job or f"attach-{min(self._roots)}"

    @property
    def traced(self) -> list[int]:
        """Processes that have probes now."""
        return sorted(pid for pid, target in self._targets.items() if target.events)

    @property
    def done(self) -> bool:
        """Whether all processes have ended and everything has been given out."""
        return self._ended

    def close(self) -> None:
        """Take the probes away."""
        for target in self._targets.values():
            self._let_go(target)
        for name in ("_consumer", "_producer", "_data", "_states"):
            if hasattr(self, name):
                delattr(self, name)
        self._states_map.close()
        self._ring_map.close()
        self._ended = True

    def poll(self, timeout_s: float) -> list[Record]:
        """Job and comm records, then calls by time; waits up to `timeout_s` seconds for the first."""
        deadline = time.monotonic() + timeout_s
        while not self._ended:
            # Who has gone is asked before the ring is read: what they wrote before is read then.
            gone: list[_Target] = []
            if look := time.monotonic() - self._asked_s >= ASK_S:
                self._asked_s = time.monotonic()
                gone = [target for target in self._targets.values() if not target.running]
            if time.monotonic() - self._found_s >= FIND_S:
                self._discover()
            made = self._drain()
            for target in gone:
                made += self._bury(target)
            if look and not self._targets:
                self._ended = all(process_start_ticks(pid) != ticks for pid, ticks in self._roots.items())
            if self._changed and (self._gone or any(t.incarnation >= 0 for t in self._targets.values())):
                made.insert(0, self._job_record())
                self._changed = False
            if made or time.monotonic() >= deadline:
                return made
            time.sleep(LOOK_S)
        return []

    # -- processes ----------------------------------------------------------------------------------

    def _discover(self) -> None:
        """Find processes of the job, probe the libraries that are new in them."""
        self._found_s = time.monotonic()
        todo = [(pid, -1) for pid, ticks in self._roots.items() if process_start_ticks(pid) == ticks]
        seen: set[int] = set()
        while todo:
            pid, parent_rank = todo.pop()
            ticks = process_start_ticks(pid)
            if pid in seen or ticks is None:
                continue
            seen.add(pid)
            target = self._targets.get(pid)
            if target is None:
                rank, local_rank, world_size = rank_of(env := environment(pid))
                # A child with its parent's rank is a helper of that rank (a data loader), not a rank.
                if rank >= 0 and rank == parent_rank:
                    continue
                self._job = self._job or (job_of(env) if rank >= 0 or len(self._roots) == 1 else "")
                target = self._look(pid, ticks, rank, local_rank, world_size)
            elif self._found_s - target.looked_s >= FIND_AGAIN_S:
                self._probe(target)
            todo += [(child, target.rank if target is not None else -1) for child in children(pid)]

    def _look(self, pid: int, ticks: int, rank: int, local_rank: int, world_size: int) -> _Target | None:
        """Make a target of a process if it has a library mapped."""
        if self._refused.get(pid) == ticks or not self._free:
            return None
        target = _Target(pid, ticks, self._free[-1], rank, local_rank, world_size, Decoder(PROBES))
        self._states[target.slot] = (0, 0)
        self._probe(target)
        if not target.events:
            return None
        self._free.pop()
        self._targets[pid] = target
        return target

    def _probe(self, target: _Target) -> None:
        """Set probes in the libraries of a process that have none yet."""
        target.looked_s = self._found_s
        try:
            for name, code in code_of(target.pid, LIBRARY_NAMES).items():
                if name in target.libraries:
                    continue
                probes = dict(LIBRARIES)[name]
                known = self._functions(code.open_path, probes)
                if probes is GLOO:
                    target.decoder.layout = self._layouts.setdefault(self._key(code.open_path), TensorLayout())
                    self._states["numel_at"][target.slot] = target.decoder.layout.numel_at
                version = torch_version(target.pid, code.path) if probes is GLOO else (0, 0)
                for probe in probes:
                    if probe.symbol not in known:
                        continue
                    function = known[probe.symbol]
                    place = code.address(function.offset)
                    target.decoder.places.append((place, place + function.size))
                    self._attach(target, probe, version, str(code.open_path), function.offset)
                target.libraries.add(name)
        except (OSError, GhError) as error:
            if not target.running:
                return
            if not self._targets and isinstance(error, OSError) and error.errno in (errno.EPERM, errno.EACCES):
                self._let_go(target)
                raise MissingError(f"cannot attach to process {target.pid}", why(error), RIGHTS) from None
            self._refused[target.pid] = target.start_ticks
            self._warn(f"process {target.pid} is not traced: {why(error) if isinstance(error, OSError) else error}")

    def _functions(self, path: Path, probes: tuple[Probe, ...]) -> dict[str, Function]:
        key = self._key(path)
        if key not in self._known:
            self._known[key] = functions(path, [probe.symbol for probe in probes])
        return self._known[key]

    @staticmethod
    def _key(path: Path) -> tuple[int, int]:
        info = path.stat()
        return info.st_dev, info.st_ino

    def _attach(self, target: _Target, probe: Probe, version: tuple[int, int], path: str, offset: int) -> None:
        number = PROBES.index(probe)
        if probe.op == "reduce" and probe.root_at >= 0:
            # ReduceOptions begins with a ReduceOp, which shrank when torch 2.10 joined the reference counts.
            probe = replace(probe, root_offset=32 if version >= (2, 10) else 40)
        program = bpf.load_program(build(target.slot, number, probe, self._states_map.fd, self._ring_map.fd))
        try:
            target.events.append(bpf.attach_uprobe(path, offset, target.pid, program))
        finally:
            os.close(program)  # the probe keeps it

    def _let_go(self, target: _Target) -> None:
        for fd in target.events:
            os.close(fd)
        target.events.clear()

    def _bury(self, target: _Target) -> list[Record]:
        """A process has ended and its records are out."""
        self._let_go(target)
        del self._targets[target.pid]
        lost = int(self._states["drops"][target.slot]) - target.drops
        self._free.insert(0, target.slot)  # used again as late as may be
        if target.incarnation < 0:
            return []
        target.state = "ended"
        self._gone[target.rank] = target
        self._changed = True
        made: list[Record] = []
        if lost > 0:
            self.lost += lost
            made.append(Calls(rank=target.rank, incarnation=target.incarnation, lost=lost))
        return made

    # -- records ------------------------------------------------------------------------------------

    def _drain(self) -> list[Record]:
        """What is in the ring: new communicators, then calls by time."""
        records, after = take(self._data, int(self._consumer[0]), int(self._producer[0]))
        self._consumer[0] = after
        comms: list[Record] = []
        batches: list[Calls] = []
        for target in self._targets.values():
            mine = records[records["target"] == target.slot]
            mine = self._hold(target, mine[np.argsort(mine["t"], kind="stable")])
            if len(mine):
                self._decode(target, mine, comms, batches)
        batches.sort(key=lambda calls: int(calls.t_ns[0]))
        return [*comms, *batches]

    def _hold(self, target: _Target, records: Array) -> Array:
        """The records to decode now: none as long as the layout of tensors may become known soon."""
        layout = target.decoder.layout
        layout.learn(records["dump"][records["begin"] < records["end"]])
        now = time.monotonic()
        if not target.held:
            target.held_s = now
        if len(records):
            target.held.append(records)
        sized = any((held["begin"] < held["end"]).any() for held in target.held)
        few = sum(map(len, target.held)) <= HOLD_MAX and now - target.held_s < HOLD_S
        if layout.word < 0 and sized and few and target.running:
            return records[:0]
        held, target.held = [*target.held, records[:0]], []
        return np.concatenate(held)

    def _decode(self, target: _Target, records: Array, comms: list[Record], batches: list[Calls]) -> None:
        """Records of one process, by time, into batches; a batch ends where calls were lost."""
        ids = self._identify(target, records, comms)
        drops = np.maximum.accumulate(records["drops"].astype(np.int64))
        records["t"] += np.uint64(self._offset_ns)
        edges = [0, *(np.flatnonzero(np.diff(drops)) + 1).tolist(), len(records)]
        for begin, end in pairwise(edges):
            lost = max(int(drops[begin]) - target.drops, 0)
            target.drops += lost
            calls = target.decoder.decode(
                records[begin:end], ids[begin:end], target.rank, max(target.incarnation, 0), lost
            )
            self.lost += lost
            self.events += len(calls.t_ns)
            if len(calls.t_ns):
                batches.append(calls)
            elif lost:  # only silent ones came after: the loss is told with the next calls
                target.drops -= lost
                target.decoder.calls -= lost
                self.lost -= lost
        self._states["numel_at"][target.slot] = target.decoder.layout.numel_at

    def _identify(self, target: _Target, records: Array, comms: list[Record]) -> Array:
        """Identity of each record's communicator; comm records of new ones."""
        ids = np.zeros(len(records), np.uint64)
        made = np.array([p.op == "made" for p in PROBES])[records["probe"]]
        silent = np.array([p.comm < 0 for p in PROBES])[records["probe"]]
        edges = [0, *np.flatnonzero(made).tolist(), len(records)]
        for begin, end in pairwise(edges):
            if begin < end and made[begin]:  # another object begins its life at this address
                target.comms.pop(int(records["comm"][begin]), None)
            rows = np.flatnonzero(~(made | silent)[begin:end]) + begin
            for address in np.unique(records["comm"][rows]):
                here = rows[records["comm"][rows] == address]
                key = int(address)
                if key not in target.comms:
                    self._meet(target, key, PROBES[int(records["probe"][here[0]])].library, comms)
                ids[here] = target.comms[key]
        return ids

    def _meet(self, target: _Target, address: int, backend: str, comms: list[Record]) -> None:
        """The first call on a communicator."""
        group = gloo_group(target.pid, address) if backend == "gloo" else None
        if target.incarnation < 0:
            self._introduce(target, group)
        if backend not in target.backends:
            target.backends.add(backend)
            self._changed = True
        # NCCL's communicators say nothing to outsiders: theirs is an identity of this process only.
        number = identity(backend, group.uid, group.size) if group and group.uid else identity(target.pid, address)
        target.comms[address] = number
        members = self._members.setdefault(number, {})
        if group is not None:
            members[group.rank] = target.rank
        comms.append(
            Comm(
                comm=number,
                rank=target.rank,
                comm_rank=group.rank if group else -1,
                size=group.size if group else 0,
                ranks=[members[i] for i in sorted(members)] if group and len(members) == group.size else [],
                name=group.name if group else "",
                backend=backend,
            )
        )

    def _introduce(self, target: _Target, group: Group | None) -> None:
        """The first call of a process: it is a rank. Which one, its launcher said, else its first group says."""
        if target.rank < 0:
            taken = {other.rank for other in self._targets.values() if other is not target}
            target.rank = group.rank if group and group.rank not in taken else max(taken, default=-1) + 1
            target.world_size = group.size if group else -1
        target.incarnation = self._incarnations.get(target.rank, -1) + 1
        self._incarnations[target.rank] = target.incarnation
        self._changed = True

    def _job_record(self) -> Job:
        latest = {**self._gone, **{t.rank: t for t in self._targets.values() if t.incarnation >= 0}}
        ranks = [latest[rank] for rank in sorted(latest)]
        return Job(
            job=self.job,
            t_ns=time.monotonic_ns() + self._offset_ns,
            world_size=max(0, *(target.world_size for target in ranks)),
            backend=",".join(sorted(set[str]().union(*(target.backends for target in ranks)))),
            ranks=[
                {
                    "rank": target.rank,
                    "local_rank": target.local_rank,
                    "host": platform.node(),
                    "pid": target.pid,
                    "device": "",
                    "incarnation": target.incarnation,
                    "state": target.state,
                }
                for target in ranks
            ],
        )


def _many_files() -> None:
    """A job of many ranks needs some thousand descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _clock_offset_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC; of some tries the one that took the shortest."""
    best, offset = 1 << 62, 0
    for _ in range(20):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best:
            best, offset = after - before, real - (before + after) // 2
    return offset
