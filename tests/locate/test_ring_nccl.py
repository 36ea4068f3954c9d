# SPDX-License-Identifier: Apache-2.0
"""Which communicator is used, what a failure means, and when it is TCP after all. Real exchanges: tests/csrc."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

import pytest

from ghtools.job.budget import Bounded
from ghtools.job.pause import CouldNotTell
from ghtools.job.ring import CommInfo
from ghtools.job.task import LISTEN, NCCL_EXCHANGE, Task, TaskResult
from ghtools.locate.ring_fabric import Plan
from ghtools.locate.ring_nccl import NcclFabric, choose, harm, nccl_or_tcp
from ghtools.stream.errors import GhError

WORLD, PAIR = (1 << 64) - 7, 5


def comm(
    number: int, size: int, comm_rank: int, made_ns: int = 0, backend: str = "nccl", dead: bool = False
) -> CommInfo:
    return CommInfo(number, 0, size, comm_rank, "", backend, made_ns, dead)


def four(number: int = WORLD, **more: object) -> dict[int, list[CommInfo]]:
    return {rank: [comm(number, 4, rank, **more)] for rank in range(4)}  # type: ignore[arg-type]


def test_the_smallest_that_has_all_of_them() -> None:
    comms = four()
    comms[2].append(comm(PAIR, 2, 0))
    comms[3].append(comm(PAIR, 2, 1))
    world, pair = choose(comms, [0, 1, 2, 3]), choose(comms, [2, 3])
    assert world and (world.comm, dict(world.numbers)) == (WORLD, {0: 0, 1: 1, 2: 2, 3: 3})
    assert pair and (pair.comm, dict(pair.numbers)) == (PAIR, {2: 0, 3: 1})
    whole = choose({rank: [*four(9, made_ns=2)[rank], *four(8, made_ns=1)[rank]] for rank in range(4)}, range(4))
    assert whole and whole.comm == 8  # the older one


@pytest.mark.parametrize(
    "comms",
    [
        {},
        four(backend="gloo"),
        four(dead=True),
        {**four(), 2: []},
        {**four(), 2: [comm(WORLD, 4, 3)]},  # two with one number
        {**four(), 2: [comm(WORLD, 5, 2)]},
        {**four(), 2: [comm(WORLD, 4, -1)]},
        {**four(), 2: [comm(WORLD, 4, 4)]},
        {**four(), 2: [comm(WORLD, 4, 2), comm(WORLD, 4, 2)]},  # members in one process
    ],
)
def test_what_is_no_communicator_of_all(comms: Mapping[int, Sequence[CommInfo]]) -> None:
    assert choose(comms, [0, 1, 2, 3]) is None


def test_one_rank_has_no_other_end() -> None:
    assert choose(four(), [1]) is None


GOOD = TaskResult(0)


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ({0: GOOD, 1: GOOD}, ""),
        ({0: TaskResult(errno.ENODEV), 1: TaskResult(errno.ETIMEDOUT)}, ""),
        ({0: TaskResult(errno.EREMOTEIO), 1: TaskResult(errno.ENOMEM)}, ""),
        ({0: GOOD}, "rank 1: no result in time"),
        ({0: TaskResult(errno.ECONNRESET, [], "reset"), 1: TaskResult(errno.EBADMSG, [], "wrong")}, "rank 1: wrong"),
        ({0: TaskResult(errno.ETIMEDOUT, [], "late"), 1: TaskResult(errno.ETIMEDOUT)}, "rank 0: late"),
        ({0: TaskResult(errno.ENOMEM), 1: TaskResult(errno.EIO, [], "broken")}, "rank 1: broken"),
    ],
)
def test_what_a_failure_means(results: dict[int, TaskResult], why: str) -> None:
    assert harm([0, 1], results) == why


class Held:
    """Two ranks that answer what the test wants; it stands for ranks of a job with GPUs."""

    def __init__(self, comms: Mapping[int, Sequence[CommInfo]], answers: Mapping[int, TaskResult]) -> None:
        self.ranks, self.hosts, self.pids = [0, 1], {0: "a", 1: "b"}, {0: 1, 1: 2}
        self.comms, self.answers = comms, answers
        self.asked: list[dict[int, Task]] = []

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        self.asked.append(dict(tasks))
        kinds = {task.kind for task in tasks.values()}
        if kinds == {LISTEN}:
            return {rank: TaskResult(0, [], f"127.0.0.1 {700 + rank} lo") for rank in tasks}
        if kinds == {NCCL_EXCHANGE}:
            return {rank: self.answers[rank] for rank in tasks if rank in self.answers}
        return {rank: TaskResult(errno.ENOSYS) for rank in tasks}


COMMS = {0: [comm(WORLD, 2, 1)], 1: [comm(WORLD, 2, 0)]}


@pytest.mark.parametrize(
    ("comms", "answers", "why"),
    [
        ({}, {}, "is not known here"),
        ({0: [], 1: []}, {}, "no communicator of NCCL has all these ranks"),
        (COMMS, {0: GOOD, 1: TaskResult(errno.ENOSYS, [], "no CUDA")}, "rank 1: no CUDA"),
        (COMMS, {0: GOOD}, "rank 1: no answer"),
    ],
)
def test_tcp_after_all(comms: dict[int, list[CommInfo]], answers: dict[int, TaskResult], why: str) -> None:
    said: list[str] = []
    fabric = nccl_or_tcp(Held(comms, answers), [0, 1], "", said.append)
    assert (fabric.by, len(said)) == ("TCP", 1) and why in said[0]


def test_what_both_ends_are_told() -> None:
    held = Held(COMMS, {0: TaskResult(0, [9, 1, 2, 1000]), 1: TaskResult(0, [-1, 1, 2, 2000])})
    fabric = nccl_or_tcp(Bounded(held, 60.0), [0, 1], "", pytest.fail)
    assert isinstance(fabric, NcclFabric) and fabric.type_of((0, 1)) == "network"
    (made,) = fabric.exchange([(0, 1)], Plan(sizes=(4000,), repeats=1))
    assert made.gbps.ravel().tolist() == [2.0, 4.0] and made.latency_ns == 9
    tasks = held.asked[-1]
    assert tasks[0].text == "127.0.0.1 701" and tasks[1].text == ""
    assert (tasks[0].args[0], tasks[1].args[0]) == (1, 0)
    assert tasks[0].args[1:8] == tasks[1].args[1:8]
    assert tasks[0].args[8:] == (-7, 0, 1, 4000) and tasks[1].args[8:] == (-7, 1, 1, 4000)


def test_nothing_more_after_a_failure() -> None:
    held = Held(COMMS, {0: GOOD, 1: GOOD})
    fabric = nccl_or_tcp(held, [0, 1], "", pytest.fail)
    held.answers = {0: TaskResult(errno.EIO, [], "it broke"), 1: TaskResult(errno.ECONNRESET)}
    with pytest.raises(CouldNotTell, match="rank 0: it broke"):
        fabric.exchange([(0, 1)], Plan(sizes=(4000,), repeats=1))


def test_limits() -> None:
    held = Held(COMMS, {0: GOOD, 1: GOOD})
    fabric = nccl_or_tcp(Bounded(held, 0.4), [0, 1], "", pytest.fail)
    asked = len(held.asked)
    (none,) = fabric.exchange([(0, 1)], Plan(sizes=(4000,), repeats=1))
    assert not none.ok and none.why == "there was no time left" and len(held.asked) == asked
    with pytest.raises(GhError, match="over 256 MB"):
        fabric.exchange([(0, 1)], Plan(sizes=((256 << 20) + 1,), repeats=1))
