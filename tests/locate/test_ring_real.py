# SPDX-License-Identifier: Apache-2.0
"""Processes of our own that exchange over loopback: real sockets, small sizes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ghtools.job.alone import Alone
from ghtools.job.pause import CouldNotTell
from ghtools.job.task import EXCHANGE, LISTEN, Task, TaskResult
from ghtools.locate.ring_fabric import Plan, TaskFabric, exchanged
from ghtools.stream.errors import GhError

PLAN = Plan(sizes=(1 << 18, 1 << 20), repeats=2)


@pytest.fixture(scope="module")
def held() -> Iterator[Alone]:
    with Alone([0, 1, 2, 7]) as made:
        yield made


def test_they_are_processes_of_their_own(held: Alone) -> None:
    assert held.ranks == [0, 1, 2, 7]
    pids = set(held.pids.values())
    assert len(pids) == 4 and os.getpid() not in pids
    assert all(os.getpgid(pid) != os.getpgid(0) for pid in pids)


def test_exchange(held: Alone) -> None:
    fabric = TaskFabric(held, held.ranks, "lo")
    assert {end.interface for end in fabric.ends.values()} == {"lo"}
    made = fabric.exchange([(0, 1), (2, 7)], PLAN)
    for one in made:
        assert (one.why, one.type, one.gbps.shape) == ("", "loopback", (2, 2, 2))
        assert np.isfinite(one.gbps).all() and (one.gbps > 0).all()
        assert one.latency_ns > 0
        assert all(0 < share <= 1.01 for share in one.busy)
    only = fabric.exchange([(1, 2)], Plan(sizes=(1 << 18,), repeats=1, both=False))[0]
    assert np.isfinite(only.gbps[0]).all() and np.isnan(only.gbps[1]).all()
    fabric.close()


def test_a_host_without_the_interface(held: Alone) -> None:
    with pytest.raises(GhError, match="cannot use nosuch0"):
        TaskFabric(held, held.ranks, "nosuch0")
    assert TaskFabric(held, [0, 1], {"elsewhere": "nosuch0"}).ends.keys() == {0, 1}


def test_a_rank_that_is_not_held(held: Alone) -> None:
    with pytest.raises(ValueError, match="not held"):
        held.run({5: Task(LISTEN)}, 1)


def test_a_partner_that_does_not_come_is_no_result(held: Alone) -> None:
    fabric = TaskFabric(held, held.ranks, "lo")
    results = held.run({0: Task(EXCHANGE, (0, 1, 2, 4, 1, 0, 100, 100, 1, 1000))}, 5)
    one = exchanged((0, 1), "loopback", results.get(0), None, (1000,), 1, 0)
    assert not one.ok
    assert "rank 0: waiting for a connection" in one.why and "rank 1 gave no result" in one.why
    fabric.close()


@pytest.mark.parametrize("values", [[], [1, 2, 3], [0] * 300, [-1, -1, -1, 5]])
def test_damaged_results_are_no_results(values: list[int]) -> None:
    good = TaskResult(0, [100, 50, 100, 1000, 2000])
    one = exchanged((0, 1), "network", good, TaskResult(0, values), (1 << 10, 1 << 20), 1, 0)
    assert "rank 1: its result is damaged" in one.why
    assert np.isnan(one.gbps[0]).all()
    assert np.isfinite(one.gbps[1]).all()  # what arrived at rank 0 stands


def test_absurd_times_are_no_results() -> None:
    bad = TaskResult(0, [-5, -1, 0, 0, -7])
    one = exchanged((0, 1), "network", bad, bad, (1 << 10, 1 << 20), 1, 0)
    assert not one.ok
    assert np.isnan(one.latency_ns) and np.isnan(one.busy).all()


def test_a_rank_that_dies_is_said_and_the_others_end() -> None:
    with Alone([0, 1, 2], strict=True) as held:
        pids = dict(held.pids)
        fabric = TaskFabric(held, held.ranks, "lo")
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(CouldNotTell, match="rank 1 has gone"):
            for _ in range(3):
                fabric.exchange([(0, 1)], Plan(sizes=(1000,), repeats=1, hard_s=1))
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids.values())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_too_many() -> None:
    with pytest.raises(GhError, match="cannot start 513 processes"):
        Alone(range(513))
