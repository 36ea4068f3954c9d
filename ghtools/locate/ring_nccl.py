# SPDX-License-Identifier: Apache-2.0
"""Measure: exchanges between held ranks from GPU to GPU, by NCCL on a communicator of the job (csrc/shim).

What can go wrong costs the job: a send without its receive keeps a GPU for ever. So both ends agree before each step,
and after the first failure of which that cannot be ruled out, nothing more is exchanged by anybody.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ghtools.job.budget import comms_of, left_s
from ghtools.job.pause import CouldNotTell, Held
from ghtools.job.ring import CommInfo
from ghtools.job.task import GPU_GEMM, NCCL_EXCHANGE, VALUES, Task, TaskResult
from ghtools.stream.errors import GhError

from .ring_fabric import BOTH_AT_ONCE, CONNECTS_SENDS, FIRST, MAX_SIZES, PINGS, START_S, Plan, TaskFabric, exchanged
from .ring_judge import Exchanged, Link
from .ring_torch import type_of_gpus

MOST_BYTES = 256 << 20  # GH_NCCL_MOST of csrc/tasks/tasks.h
SPARE_S = 0.3  # of the time that is left: for the results to come back
SHORTEST_S = 0.5  # an exchange that has less is not begun
# Of these the task says that nothing was put on a stream.
HARMLESS = (errno.ENOSYS, errno.ENODEV, errno.EBUSY, errno.ENOMEM, errno.EREMOTEIO)
# What is told of the other end says less than what that end tells.
SECOND_HAND = (errno.EREMOTEIO, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT)


@dataclass(frozen=True)
class Group:
    """A communicator that contains all ranks that are tested: its identity, and each rank's number in it."""

    comm: int
    numbers: Mapping[int, int]


def choose(comms: Mapping[int, Sequence[CommInfo]], ranks: Sequence[int]) -> Group | None:
    """The smallest NCCL communicator that is alive and has all of `ranks`, of several the oldest; None if none has."""
    found: dict[int, dict[int, CommInfo]] = {}
    doubtful: set[int] = set()
    for rank in ranks:
        for comm in comms.get(rank, ()):
            if comm.backend != "nccl" or comm.dead or not 0 <= comm.comm_rank < comm.size:
                continue
            seen = found.setdefault(comm.id, {})
            if rank in seen:  # several handles with one identity: nobody can tell which is meant
                doubtful.add(comm.id)
            seen[rank] = comm
    whole = [
        (max(c.size for c in members.values()), min(c.made_ns for c in members.values()), number)
        for number, members in found.items()
        if number not in doubtful
        and len(members) == len(ranks) == len({c.comm_rank for c in members.values()})
        and len({c.size for c in members.values()}) == 1
    ]
    if not whole or len(ranks) < 2:
        return None
    _, _, chosen = min(whole)
    return Group(chosen, {rank: info.comm_rank for rank, info in found[chosen].items()})


class NcclFabric(TaskFabric):
    """A fabric of held ranks over a communicator of theirs. They meet over TCP, as `where` says (TaskFabric).

    Raises what TaskFabric raises.
    """

    def __init__(self, held: Held, group: Group, where: str | Mapping[str, str] = "") -> None:
        super().__init__(held, sorted(group.numbers), where)
        self.by = "NCCL"
        self._group = group
        which = Task(GPU_GEMM)  # without repeats it says which device it is, and does nothing
        for rank, result in held.run(dict.fromkeys(group.numbers, which), START_S).items():
            words = result.said.split()  # PCI bus id, UUID, name
            known = result.status == 0 and len(words) >= 2
            self._ends[rank] = replace(self._ends[rank], device=words[1] if known else "gpu")

    def type_of(self, link: Link) -> str:
        """Between GPUs of one host: nvlink or pcie if NVML says so, else unknown."""
        one, other = (self._ends[rank] for rank in link)
        return "network" if one.host != other.host else type_of_gpus(one, other)

    def why_not(self) -> str:
        """Why the ranks cannot exchange by NCCL, as far as each can tell beforehand; empty if they can."""
        tasks = {
            rank: Task(NCCL_EXCHANGE, (0,) * 8 + (_signed(self._group.comm), self._other(rank), 0))
            for rank in self._group.numbers
        }
        results = self._held.run(tasks, START_S)
        for rank in sorted(tasks):
            result = results.get(rank)
            if result is None or result.status:
                return f"rank {rank}: {result.why if result else 'no answer'}"
        return ""

    def exchange(self, links: Sequence[Link], plan: Plan) -> list[Exchanged]:
        """As Fabric.exchange. CouldNotTell after a failure that may have left something on a GPU, too."""
        if any(size > MOST_BYTES for size in plan.sizes) or len(plan.sizes) > MAX_SIZES:
            raise GhError("cannot exchange that by NCCL", "a size is over 256 MB", "--sizes 16M,32M,64M")
        hard_s, t_ns = min(plan.hard_s, left_s(self._held) - SPARE_S), time.time_ns()
        if hard_s < SHORTEST_S:  # nothing is begun
            none = np.full((2, 0, len(plan.sizes)), np.nan)
            return [
                Exchanged(link, self.type_of(link), none, t_ns=t_ns, why="there was no time left") for link in links
            ]
        tasks: dict[int, Task] = {}
        repeats = min(plan.repeats, (VALUES - FIRST) // len(plan.sizes))
        ways = BOTH_AT_ONCE if plan.both else CONNECTS_SENDS
        numbers = self._group.numbers
        for one, other in links:
            token = (secrets.randbits(63), secrets.randbits(63))
            limits = (int(min(plan.soft_s, hard_s) * 1000), int(hard_s * 1000))
            first = (*token, ways, repeats, PINGS, *limits, _signed(self._group.comm))
            last = (len(plan.sizes), *plan.sizes)
            tasks[one] = Task(NCCL_EXCHANGE, (1, *first, numbers[other], *last), self._places[other])
            tasks[other] = Task(NCCL_EXCHANGE, (0, *first, numbers[one], *last))
        results = self._held.run(tasks, hard_s + START_S)
        if why := harm(tasks, results):
            raise CouldNotTell("the test by NCCL was broken off", why)
        return [
            exchanged(link, self.type_of(link), results.get(link[0]), results.get(link[1]), plan.sizes, repeats, t_ns)
            for link in links
        ]

    def _other(self, rank: int) -> int:
        return next(number for other, number in self._group.numbers.items() if other != rank)


def harm(ranks: Sequence[int] | Mapping[int, Task], results: Mapping[int, TaskResult]) -> str:
    """What failed such that something may still be under way, of all ranks the one that knows best; empty if nothing.

    An end that was only told of trouble is harmless if all trouble is.
    """
    bad = {rank: results.get(rank) for rank in ranks if rank not in results or results[rank].status}
    at_first_hand = {rank: one for rank, one in bad.items() if one is None or one.status not in SECOND_HAND}
    if all(one is not None and one.status in HARMLESS for one in (at_first_hand or bad).values()):
        return ""
    rank, one = next(
        (rank, one) for rank, one in (at_first_hand or bad).items() if one is None or one.status not in HARMLESS
    )
    return f"rank {rank}: {one.why if one else 'no result in time'}"


def nccl_or_tcp(
    held: Held, ranks: Sequence[int], where: str | Mapping[str, str], say: Callable[[str], None]
) -> TaskFabric:
    """A fabric by NCCL where the ranks can, else one over TCP; `say` hears why."""
    comms = comms_of(held)
    group = choose(comms, ranks)
    if group is None:
        why = (
            "no communicator of NCCL has all these ranks" if comms else "what communicators they have is not known here"
        )
    else:
        fabric = NcclFabric(held, group, where)
        if not (why := fabric.why_not()):
            return fabric
        fabric.close()
    say(f"not by NCCL but over TCP: {why}")
    return TaskFabric(held, ranks, where)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
