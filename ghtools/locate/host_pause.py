# SPDX-License-Identifier: Apache-2.0
"""This host's part in a pause of a job that has several hosts: requests of the bus to its own ranks (gh-trace --serve).

Nothing that comes over the bus is believed: numbers are checked, tasks are the few that csrc/tasks/tasks.h knows, and
the ranks are those of the job that is served. Whoever holds the job must ask again within LEASE_S, else they go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ghtools.job.control_messages import DONE, FAILED, REFUSED, Reply, Request
from ghtools.job.paths import jobs
from ghtools.job.pause import CouldNotTell, HeldRanks, pause
from ghtools.job.task import Task, TaskResult
from ghtools.source.live import choose_job
from ghtools.stream.bus_link import BusUrl, connect

from .boundary import Place
from .cut import pack
from .in_job import find_places

LEASE_S = 10.0  # without a word from the asker
AGAIN = "again"  # in the facts of an answer: the try cost the job nothing, and another may do
SENT_ITERS = 16  # of each rank
MOST_S = 120.0  # that anything may take
_INT64 = range(-(1 << 63), 1 << 63)


class HostPause:
    """Answers the verbs where, hold, task, renew and release of job/control_messages.py."""

    def __init__(self, url: BusUrl, job: str) -> None:
        self._url, self._job = url, job
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._held: HeldRanks | None = None
        self._timer: threading.Timer | None = None
        self._until = 0.0  # monotonic

    def apply(self, asked: Request) -> Reply:
        """Do what is asked. GhError (its text goes back) if it cannot be done."""
        with self._lock:
            verbs = {"where": self._where, "hold": self._hold, "task": self._task}
            if asked.what in verbs:
                return verbs[asked.what](asked)
            if asked.what == "renew":
                self._renew()
                return Reply(DONE if self._held else FAILED, "" if self._held else "nothing is held")
            if asked.what == "release":
                self._let_go()
                return Reply(DONE)
        return Reply(REFUSED, "this host cannot do that")

    def close(self) -> None:
        """Let the ranks go on."""
        with self._lock:
            self._let_go()

    def _where(self, asked: Request) -> Reply:
        job = choose_job(jobs(), self._job)
        try:
            places, known = find_places(job, min(asked.lease_s, MOST_S), whole=False)
        except CouldNotTell as error:
            return Reply(FAILED, str(error))
        behind_ns = redis_clock_ns(self._url) - time.time_ns()
        since = {rank: int(place.bounds.seq[-SENT_ITERS:].min()) for rank, place in places.items()}
        calls = pack(known, since) if known is not None else None
        return Reply(DONE, data={"places": pack_places(places, behind_ns), "calls": calls or {}})

    def _hold(self, asked: Request) -> Reply:
        if self._held is not None:
            return Reply(REFUSED, "it is held already", {AGAIN: True})
        stops = {int(rank): seq for rank, seq in asked.args.get("stops", {}).items() if str(rank).isdigit()}
        if not stops or not all(type(seq) is int and seq in _INT64 for seq in stops.values()):
            return Reply(REFUSED, "the request names no calls")
        job = choose_job(jobs(), self._job)
        come_s, deadline_s = (
            min(MOST_S, max(0.1, float(asked.args.get(name, 5.0)))) for name in ("come_s", "deadline_s")
        )
        mine = {rank: seq for rank, seq in stops.items() if rank in job.ranks}
        if not mine:
            return Reply(REFUSED, "none of these ranks is here")
        try:
            self._held = self._stack.enter_context(pause(job, mine, come_s, deadline_s))
        except CouldNotTell as error:
            return Reply(FAILED, str(error), {AGAIN: error.again})
        self._renew()
        pids = {str(rank): pid for rank, pid in self._held.pids.items()}
        return Reply(DONE, data={"pids": pids})

    def _task(self, asked: Request) -> Reply:
        if self._held is None:
            return Reply(REFUSED, "nothing is held")
        try:
            tasks = unpack_tasks(asked.args.get("tasks", {}), self._held.ranks)
        except ValueError as error:
            return Reply(REFUSED, str(error))
        timeout_s = min(MOST_S, float(asked.args.get("timeout_s", 10.0)))
        self._renew(timeout_s)
        try:
            results = self._held.run(tasks, timeout_s)
        except CouldNotTell as error:
            self._let_go()
            return Reply(FAILED, str(error))
        self._renew()
        return Reply(DONE, data={"results": {str(rank): pack_result(one) for rank, one in results.items()}})

    def _renew(self, more_s: float = 0.0) -> None:
        """Hold for LEASE_S and `more_s` from now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held is not None:
            self._until = time.monotonic() + LEASE_S + more_s
            self._timer = threading.Timer(LEASE_S + more_s, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        with self._lock:
            if time.monotonic() >= self._until:  # it may have been renewed while this waited for the lock
                self._let_go()

    def _let_go(self) -> None:
        self._held = None
        self._renew()
        self._stack.close()


def redis_clock_ns(url: BusUrl) -> int:
    """The clock of the Redis server now, ns: the one clock that all hosts can read, good to a round trip."""
    client = connect(url)
    try:
        before = time.monotonic_ns()
        seconds, micros = client.time()
        return int(seconds) * 10**9 + int(micros) * 1000 + (time.monotonic_ns() - before) // 2
    finally:
        client.close()


def pack_places(places: Mapping[int, Place], behind_ns: int) -> dict[str, Any]:
    """Places as plain values, their times moved by `behind_ns`."""
    made = {}
    for rank, place in places.items():
        b = place.bounds
        rows = zip(b.index, b.t_ns + behind_ns, b.dur_ns, b.phase, b.seq, strict=True)
        made[str(rank)] = {"calls": place.calls, "rows": [[int(n) for n in row] for row in rows][-SENT_ITERS:]}
    return made


def unpack_tasks(given: Mapping[str, Any], ranks: list[int]) -> dict[int, Task]:
    """Tasks by rank from plain values; ValueError if they are none."""
    made = {}
    for rank, item in given.items():
        if not (str(rank).isdigit() and int(rank) in ranks):
            raise ValueError("a task is for a rank that is not held here")
        if not (isinstance(item, list) and len(item) == 3 and isinstance(item[1], list)):
            raise ValueError("a task is a kind, arguments and a text")
        kind, args, text = item
        if type(kind) is not int or not isinstance(text, str) or not all(type(arg) is int for arg in args):
            raise ValueError("a task is a kind, arguments and a text")
        made[int(rank)] = Task(kind, tuple(args), text)
    if not made:
        raise ValueError("there is no task")
    return made


def pack_result(result: TaskResult) -> list[Any]:
    """A result as plain values."""
    return [result.status, result.values, result.said]
