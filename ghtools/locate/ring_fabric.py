# SPDX-License-Identifier: Apache-2.0
"""Measure: exchanges between pairs of ranks, by tasks over TCP in held ranks (csrc/tasks/link.c).

The ranks are those of a job that stands still, or processes of our own: the same code runs in both.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ghtools.job.pause import CouldNotTell, Held
from ghtools.job.task import ARGS, CLOSE, EXCHANGE, LISTEN, VALUES, Task, TaskResult
from ghtools.stream.errors import GhError

from .ring_judge import Exchanged, Link

CONNECTS_SENDS, BOTH_AT_ONCE = 1, 4  # GH_LINK_WAYS of csrc/tasks/tasks.h
LATENCY, CPU, WALL, FIRST = 0, 1, 2, 3  # enum gh_link_value
MAX_SIZES = ARGS - 11  # that fit the arguments of either kind of exchange
PINGS = 32
SMALL = (1 << 20, 4 << 20)
MANY = 50  # repeats, if there is time
START_S = 5.0  # for an answer to come back, over what the task itself may take


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long that may take."""

    sizes: tuple[int, ...] = (16 << 20, 32 << 20, 64 << 20)
    repeats: int = 3
    both: bool = True  # both directions of a pair at once; else only from the first to the second
    soft_s: float = 5.0  # no transfer of an exchange begins later than this
    hard_s: float = 30.0  # an exchange that takes longer has no result
    most: int = 8  # links that are tested again, alone, the slowest first
    rounds: int = 3
    alone_s: float = 0.3  # that an exchange alone is to take at least: a CPU quota is not seen in less (FIELD.md)
    at_once: bool = False  # what looks slow and its ends with other partners in one stage

    def for_job(self) -> Plan:
        """The same for a job that stands still meanwhile: quicker, with fewer second looks.

        Small sizes come first: over a link that is very slow even one large transfer would take too long. Over a fast
        one there are as many transfers as fit: a CPU quota lets short ones pass.
        """
        small = tuple(size for size in SMALL if size < min(self.sizes))
        sizes = (small + self.sizes)[:MAX_SIZES]
        return replace(self, sizes=sizes, soft_s=0.4, hard_s=min(self.hard_s, 10.0), most=2, alone_s=0.1, at_once=True)


@dataclass(frozen=True)
class End:
    """Where a rank's end of its links is."""

    rank: int
    host: str = ""
    device: str = "cpu"
    interface: str = ""
    address: str = ""


class Fabric(Protocol):
    """Ranks that can exchange data by pairs."""

    by: str  # by what means, for people

    @property
    def ends(self) -> Mapping[int, End]:
        """The ranks and where they are."""

    def type_of(self, link: Link) -> str:
        """nvlink, pcie, network, loopback or unknown."""

    def exchange(self, links: Sequence[Link], plan: Plan) -> list[Exchanged]:
        """Exchange over disjoint links at once. CouldNotTell if a rank has gone."""


class TaskFabric:
    """A fabric of held ranks. `where` is an interface or address for all, or by host; empty = what Gloo uses.

    CouldNotTell if a rank cannot listen, GhError if the interface is not there.
    """

    def __init__(self, held: Held, ranks: Sequence[int], where: str | Mapping[str, str] = "") -> None:
        self.by = "TCP"
        self._held = held
        by_host = {} if isinstance(where, str) else where
        for_all = where if isinstance(where, str) else ""
        names = {rank: by_host.get(held.hosts.get(rank, ""), for_all) for rank in ranks}
        answers = held.run({rank: Task(LISTEN, (), names[rank]) for rank in ranks}, START_S)
        self._ends: dict[int, End] = {}
        self._places: dict[int, str] = {}
        for rank in ranks:
            answer = answers.get(rank)
            words = answer.said.split() if answer is not None and answer.status == 0 else []
            if answer is None or len(words) != 3 or not words[1].isdecimal():
                why = answer.why if answer is not None and answer.status else "no answer"
                if names[rank]:
                    raise GhError(f"rank {rank} cannot use {names[rank]}", why, "--interface with another name")
                raise CouldNotTell(f"rank {rank} cannot listen", why)
            self._ends[rank] = End(rank, held.hosts.get(rank, ""), "cpu", words[2], words[0])
            self._places[rank] = f"{words[0]} {words[1]}"

    @property
    def ends(self) -> Mapping[int, End]:
        """The ranks and where they listen."""
        return self._ends

    def type_of(self, link: Link) -> str:
        """What stays inside a host's network stack is loopback, whatever interface its address is on."""
        one, other = (self._ends[rank] for rank in link)
        return "loopback" if one.address == other.address else "network"

    def exchange(self, links: Sequence[Link], plan: Plan) -> list[Exchanged]:
        """As Fabric.exchange: the second rank of each link waits, the first connects."""
        tasks: dict[int, Task] = {}
        repeats = min(plan.repeats, (VALUES - FIRST) // len(plan.sizes))
        ways = BOTH_AT_ONCE if plan.both else CONNECTS_SENDS
        for one, other in links:
            token = (secrets.randbits(63), secrets.randbits(63))
            limits = (int(plan.soft_s * 1000), int(plan.hard_s * 1000))
            rest = (*token, ways, repeats, PINGS, *limits, len(plan.sizes), *plan.sizes)
            tasks[one] = Task(EXCHANGE, (1, *rest), self._places[other])
            tasks[other] = Task(EXCHANGE, (0, *rest))
        t_ns = time.time_ns()
        results = self._held.run(tasks, plan.hard_s + START_S)
        return [
            exchanged(link, self.type_of(link), results.get(link[0]), results.get(link[1]), plan.sizes, repeats, t_ns)
            for link in links
        ]

    def close(self) -> None:
        """Let the listeners go, if the ranks are still there."""
        with suppress(CouldNotTell):
            self._held.run({rank: Task(CLOSE) for rank in self._ends}, START_S)


def exchanged(
    link: Link,
    kind: str,
    first: TaskResult | None,
    second: TaskResult | None,
    sizes: Sequence[int],
    repeats: int,
    t_ns: int,
) -> Exchanged:
    """One exchange from the results of both ends, which other processes made: what makes no sense is no result."""
    gbps = np.full((2, repeats, len(sizes)), np.nan)
    count = FIRST + repeats * len(sizes)
    busy = [float("nan"), float("nan")]
    latency = float("nan")
    whys = []
    # What arrives at the second rank was sent by the first.
    for at, (rank, result) in enumerate(zip(link, (first, second), strict=True)):
        if result is None:
            whys.append(f"rank {rank} gave no result in time")
            continue
        if result.status:
            whys.append(f"rank {rank}: {result.why}")
        if len(result.values) != count:
            if not result.status:
                whys.append(f"rank {rank}: its result is damaged")
            continue
        took = np.array(result.values[FIRST:], np.float64).reshape(repeats, len(sizes))
        gbps[1 - at] = np.where(took > 0, np.array(sizes) / np.where(took > 0, took, 1), np.nan)
        if result.values[WALL] > 0 <= result.values[CPU]:
            busy[at] = result.values[CPU] / result.values[WALL]
        if result.values[LATENCY] > 0:
            latency = float(result.values[LATENCY])
    return Exchanged(link, kind, gbps, latency, (busy[0], busy[1]), t_ns, "; ".join(whys), sizes=tuple(sizes))
