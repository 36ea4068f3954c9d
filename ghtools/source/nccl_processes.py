# SPDX-License-Identifier: Apache-2.0
"""Which global rank a process of an NCCL job is, where the source names only communicators and numbers in them.

The number in the largest communicator of a process is its rank: that is the world, once it was seen. So calls are
held back for a while (a bounded number of rows), then they get their rank and leave in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ghtools.stream.errors import InputError
from ghtools.stream.records import Comm, Job, Record

from .batches import Regroup
from .comm_names import group_id
from .logtext import printable

MAX_HELD = 1 << 17  # rows over all processes
MAX_PROCESSES = 1 << 17
MAX_COMMS = 1 << 20  # over all processes

Row = tuple[int, int, int, int, int, Any, int, int]  # t_ns, op, dtype, flags, peer, communicator, bytes, dur_ns


@dataclass
class Group:
    """A communicator as one process sees it."""

    comm: int  # 0 = the source does not say an identity
    size: int
    comm_rank: int
    name: str = ""
    sent: bool = False


@dataclass
class Process:
    """A process and device, with the calls that wait for its rank."""

    host: str
    pid: int
    device: int
    file: str
    groups: dict[Any, Group] = field(default_factory=dict)  # by what the source calls them
    held: list[Row] = field(default_factory=list)
    calls: int = 0
    rank: int = -1
    incarnation: int = 0

    def world(self) -> Group | None:
        """The largest communicator in which its number is known."""
        known = (group for group in self.groups.values() if group.comm_rank >= 0)
        return max(known, key=lambda group: group.size, default=None)


class Processes:
    """All processes of a job. `backend` stands in the records."""

    def __init__(self, job: str, warn: Callable[[str], None]) -> None:
        self._job, self._warn = job, warn
        self._all: dict[Any, Process] = {}
        self._by_rank: dict[int, Process] = {}  # the latest incarnation
        self._members: dict[int, dict[int, int]] = {}  # comm -> number in it -> rank
        self._held = self._comms = 0
        self._warned: set[str] = set()
        self._world = 0
        self._rows = Regroup()
        self.count = 0  # calls

    def get(self, key: Any, host: str, pid: int, device: int, file: str) -> Process:
        """The process of this key. Raises InputError where another file holds the same one, or there are too many."""
        host = printable(host)
        process = self._all.get(key)
        if process is None:
            if len(self._all) >= MAX_PROCESSES:
                raise InputError(f"bad input in {file}", f"over {MAX_PROCESSES} processes")
            process = self._all[key] = Process(host, pid, device, file)
        elif process.file != file:
            raise InputError(
                f"cannot read {file} after {process.file}",
                f"both hold calls of process {pid} on {host}",
                "only one of them",
            )
        return process

    def group(self, process: Process, name: Any, group: Group) -> None:
        """A communicator of this process; the same name again is another one."""
        if name not in process.groups:
            self._comms += 1
            if self._comms > MAX_COMMS:
                raise InputError(f"bad input in {process.file}", f"over {MAX_COMMS} communicators")
        process.groups[name] = group
        self._world = max(self._world, group.size)

    def call(self, process: Process, row: Row) -> Iterator[Record]:
        """A call; it comes back, with others, once its rank is known."""
        self.count += 1
        if process.rank >= 0:
            yield from self._send(process, row)
            return
        process.held.append(row)
        self._held += 1
        if self._held >= MAX_HELD:
            yield from self.decide()

    def decide(self) -> Iterator[Record]:
        """Give a rank to every process that has calls, and let go what is held.

        Raises InputError, after that, where two processes have the same number in the same communicator.
        """
        bad: InputError | None = None
        fresh = [process for process in self._all.values() if process.held]
        for process in fresh:
            try:
                self._rank(process)
            except InputError as error:
                bad = bad or error
        if fresh:
            yield self.job()
        for process in fresh:
            held, process.held = process.held, []
            self._held -= len(held)
            for row in held:
                yield from self._send(process, row)
        if bad:
            raise bad

    def quiet(self) -> Iterator[Record]:
        """The source has nothing more for now."""
        yield from self.decide()
        yield from self._rows.flush()

    def end(self) -> Iterator[Record]:
        """The rest, and the members of the communicators as far as they are known."""
        yield from self.quiet()
        sent: set[int] = set()
        for process in self._all.values():
            for group in process.groups.values():
                comm = self._id(process, group)
                members = self._members.get(comm, {})
                if comm in sent or process.rank < 0 or len(members) != group.size:
                    continue
                sent.add(comm)
                yield Comm(
                    comm=comm, rank=process.rank, comm_rank=group.comm_rank, size=group.size, name=group.name,
                    ranks=[members[number] for number in sorted(members)], backend="nccl",
                )  # fmt: skip

    def job(self) -> Job:
        """The processes whose rank is known."""
        ranks = [
            {
                "rank": process.rank, "local_rank": process.device, "host": process.host, "pid": process.pid,
                "incarnation": process.incarnation,
            }
            for _, process in sorted(self._by_rank.items())
        ]  # fmt: skip
        return Job(job=self._job, world_size=self._world, backend="nccl", ranks=ranks)

    def _rank(self, process: Process) -> None:
        """Raises InputError where another process has this number in the same communicator."""
        if process.rank >= 0:
            return
        world = process.world()
        rank = world.comm_rank if world else -1
        other = self._by_rank.get(rank)
        if other and world:
            theirs = other.world()
            if theirs and world.comm and world.comm == theirs.comm:
                self._held -= len(process.held)
                process.held = []
                why = (
                    f"process {other.pid} on {other.host} and process {process.pid} on {process.host} both are "
                    f"number {rank} of communicator {world.comm:#x}"
                )
                raise InputError(f"cannot read {process.file}", why, "one job at a time")
            if world.size == self._world or (other.host, other.device) == (process.host, process.device):
                process.incarnation = other.incarnation + 1
            else:
                rank = -1
        if rank < 0:
            self.say("the log does not tell all ranks: some are numbered as they appear (INIT lines name them)")
            rank = next(n for n in range(len(self._by_rank) + 1) if n not in self._by_rank)
        elif world and world.size < self._world:
            self.say("some processes never name the largest communicator: their ranks may be those of a smaller group")
        process.rank = rank
        self._by_rank[rank] = process
        for group in process.groups.values():
            self._member(process, group)

    def _member(self, process: Process, group: Group) -> None:
        if group.comm_rank >= 0:
            self._members.setdefault(self._id(process, group), {})[group.comm_rank] = process.rank

    def _id(self, process: Process, group: Group) -> int:
        """Identity of a communicator: the source's; the world is one for all; others are each process's own."""
        if not group.comm:
            if group.size == self._world:
                group.comm = group_id("world", [], group.size)
            else:
                self.say("no commId is named: only the world communicator is known to be the same on all ranks")
                names = [name for name, other in process.groups.items() if other is group]
                group.comm = group_id("own", [], process.host, process.pid, process.device, *names, group.size)
        return group.comm

    def _send(self, process: Process, row: Row) -> Iterator[Record]:
        t_ns, op, dtype, flags, peer, name, size, dur_ns = row
        group = process.groups[name]
        comm = self._id(process, group)
        if not group.sent:
            group.sent = True
            self._member(process, group)
            yield Comm(
                comm=comm,
                rank=process.rank,
                comm_rank=group.comm_rank,
                size=group.size,
                name=group.name,
                backend="nccl",
            )
        values = [t_ns, op, dtype, flags, peer, comm, size, process.calls, dur_ns]
        process.calls += 1
        scalars = {"rank": process.rank, "incarnation": process.incarnation}
        yield from self._rows.add("calls", (process.rank, process.incarnation), scalars, values, -1, 0)

    def say(self, text: str) -> None:
        """A line for the person, once."""
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)
