# SPDX-License-Identifier: Apache-2.0
"""Hold a job that runs on several hosts, by asking each of them over Redis (issue 4, More than one host).

Every host runs `gh-trace --serve URL` (gh-run --bus does). Where the ranks stand is told by each host on the clock of
the Redis server; the boundary is chosen here. If one host cannot hold its ranks, all are let go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ghtools.job.control_bus import ask
from ghtools.job.control_messages import DONE, MAX_LEASE_S, Reply, request
from ghtools.job.pause import DEADLINE_S, CouldNotTell
from ghtools.job.task import Task, TaskResult, unpack_result
from ghtools.stream.bus_link import BusUrl
from ghtools.stream.errors import GhError

from .boundary import Boundary, Place, meet
from .collect import Bounds
from .cut import Known, unpack
from .host_pause import AGAIN, LEASE_S, SENT_ITERS, redis_clock_ns
from .in_job import AGAIN_S, ATTEMPTS, COME_FACTOR

FIND_S = 20.0
GATHER_S = 3.0  # for hosts that nobody has named
NOTICE_S = 1.0  # for a request to reach every host
_INT64 = range(-(1 << 63), 1 << 63)


class BusHeld:
    """Held (job/pause.py) over several hosts."""

    def __init__(self, url: BusUrl, job: str, host_of: Mapping[int, str], pids: Mapping[int, int]) -> None:
        self._url, self._job = url, job
        self.hosts, self.pids = dict(host_of), dict(pids)
        self.lost = ""

    @property
    def ranks(self) -> list[int]:
        """The ranks that are held."""
        return sorted(self.hosts)

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """As Held.run."""
        if self.lost:
            raise CouldNotTell("the test was broken off", self.lost)
        packed = {str(rank): [task.kind, list(task.args), task.text] for rank, task in tasks.items()}
        by_host: dict[str, dict[str, Any]] = {}
        for rank, item in packed.items():
            by_host.setdefault(self.hosts[int(rank)], {})[rank] = item
        replies = _at_once(self._url, self._job, "task", by_host, "tasks", timeout_s + DEADLINE_S, timeout_s=timeout_s)
        done: dict[int, TaskResult] = {}
        for reply in replies:
            if reply.state != DONE:
                raise CouldNotTell("the test was broken off", f"{reply.host}: {reply.why or reply.state}")
            results = reply.data.get("results", {})
            for rank, item in results.items() if isinstance(results, dict) else ():
                if str(rank).isdigit() and int(rank) in tasks:
                    done[int(rank)] = _result(item)
        return done


@contextmanager
def stopped_over_bus(
    url: BusUrl, job: str, say: Callable[[str], None], hosts: Iterable[str] = (), find_s: float = FIND_S
) -> Iterator[BusHeld]:
    """All ranks of a job on all its hosts, standing at a boundary while the block runs.

    `hosts`: who must answer; empty: whoever does within a few seconds. CouldNotTell if the job cannot be held.
    """
    names = tuple(hosts)
    held: BusHeld | None = None
    for left in reversed(range(ATTEMPTS)):
        places, host_of, known = _places(url, job, names, find_s)
        names = tuple(sorted(set(host_of.values())))
        where = meet(places, redis_clock_ns(url), NOTICE_S, known if sorted(known) == sorted(places) else None)
        if where is None:
            raise CouldNotTell(f"cannot hold job {job}", "there is no point at which all its ranks can stop together")
        how = "" if where.matched else "; their calls could not be matched, so they may not all come"
        say(f"holding job {job}: {len(places)} ranks on {len(names)} hosts, in about {where.in_s:.1f} s{how}")
        try:
            held = _hold(url, job, where, host_of)
            break
        except CouldNotTell as error:
            if not (left and error.again):  # another wait for ranks that do not come would harm the job
                raise
            say(f"{error}; once more")
            time.sleep(AGAIN_S)
    assert held is not None
    began, ended = time.monotonic(), threading.Event()
    renewer = threading.Thread(target=_renew, args=(url, job, names, held, ended), name="pause lease", daemon=True)
    renewer.start()
    try:
        yield held
    finally:
        ended.set()
        renewer.join()
        ask(url, job, request("release", job, LEASE_S, hosts=names), DEADLINE_S, names)
        say(f"the job stood for {time.monotonic() - began:.2f} s")


def _places(
    url: BusUrl, job: str, names: tuple[str, ...], find_s: float
) -> tuple[dict[int, Place], dict[int, str], dict[int, Known]]:
    """Where all ranks stand, on which hosts they are, and what is known of their calls."""
    lease_s = find_s if names else GATHER_S
    replies = ask(url, job, request("where", job, lease_s, hosts=names), lease_s + (1.0 if names else 0.0), names)
    places: dict[int, Place] = {}
    host_of: dict[int, str] = {}
    known: dict[int, Known] = {}
    for reply in replies:
        if reply.state != DONE:
            raise CouldNotTell(f"cannot hold job {job}", f"{reply.host}: {reply.why or reply.state}")
        for rank, place in unpack_places(reply.data.get("places")).items():
            places[rank], host_of[rank] = place, reply.host
        known |= unpack(reply.data.get("calls"))
    if not places:
        raise CouldNotTell(f"cannot hold job {job}", "no host answers", "gh-trace --serve URL on each host")
    if sorted(places) != list(range(len(places))):
        missing = sorted(set(range(max(places) + 1)) - set(places))
        raise CouldNotTell(f"cannot hold job {job}", f"the hosts of ranks {missing} do not answer")
    return places, host_of, known


def _hold(url: BusUrl, job: str, where: Boundary, host_of: Mapping[int, str]) -> BusHeld:
    """Ask every host to hold its ranks; all or none."""
    by_host: dict[str, dict[str, Any]] = {}
    for rank, seq in where.stops.items():
        by_host.setdefault(host_of[rank], {})[str(rank)] = seq
    come_s = DEADLINE_S + COME_FACTOR * where.in_s
    deadline_s = DEADLINE_S + 2 * where.iteration_s
    wait_s = come_s + deadline_s + DEADLINE_S
    replies = _at_once(url, job, "hold", by_host, "stops", wait_s, come_s=come_s, deadline_s=deadline_s)
    pids: dict[int, int] = {}
    for reply in replies:
        given = reply.data.get("pids", {})
        for rank, pid in given.items() if isinstance(given, dict) else ():
            if str(rank).isdigit() and type(pid) is int:
                pids[int(rank)] = pid
    if failed := [reply for reply in replies if reply.state != DONE]:
        names = tuple(by_host)
        ask(url, job, request("release", job, LEASE_S, hosts=names), DEADLINE_S, names)
        # Where the ranks of one host stood and waited in vain for others, a second try would cost the job as much.
        again = all(reply.facts.get(AGAIN) is True for reply in failed)
        why = f"{failed[0].host}: {failed[0].why or failed[0].state}"
        raise CouldNotTell("the job could not be held", why, again=again)
    return BusHeld(url, job, host_of, pids)


def _at_once(
    url: BusUrl, job: str, verb: str, by_host: Mapping[str, dict[str, Any]], name: str, wait_s: float, **args: Any
) -> list[Reply]:
    """Ask each host for its own part, all at the same time."""
    replies: list[Reply] = []
    failed: list[GhError] = []

    def one(host: str, part: dict[str, Any]) -> None:
        words: dict[str, Any] = {name: part, **args}
        asked = request(verb, job, min(MAX_LEASE_S, wait_s), hosts=(host,), **words)
        try:
            replies.extend(ask(url, job, asked, wait_s, (host,)))
        except GhError as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in by_host.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise CouldNotTell("the hosts could not be asked", str(failed[0]))
    return replies


def _renew(url: BusUrl, job: str, names: tuple[str, ...], held: BusHeld, ended: threading.Event) -> None:
    while not ended.wait(LEASE_S / 4):
        try:
            replies = ask(url, job, request("renew", job, LEASE_S, hosts=names), LEASE_S / 2, names)
        except GhError as error:
            held.lost = str(error)
            return
        if gone := [reply.host for reply in replies if reply.state not in (DONE, "could not tell")]:
            held.lost = f"{gone[0]} no longer holds its ranks"
            return


def unpack_places(given: object) -> dict[int, Place]:
    """Places from plain values that another host sent; what is no place is left out."""
    made: dict[int, Place] = {}
    for rank, item in given.items() if isinstance(given, dict) else ():
        if not (str(rank).isdigit() and len(str(rank)) < 7 and isinstance(item, dict)):
            continue
        rows, calls = item.get("rows"), item.get("calls")
        if not isinstance(rows, list) or not 0 < len(rows) <= SENT_ITERS or type(calls) is not int or calls <= 0:
            continue
        if not all(
            isinstance(row, list) and len(row) == 5 and all(type(n) is int and n in _INT64 for n in row) for row in rows
        ):
            continue
        table = np.array(rows, np.int64)
        made[int(rank)] = Place(
            Bounds(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.uint8), table[:, 4]), calls
        )
    return made


def _result(item: object) -> TaskResult:
    if isinstance(item, list) and len(item) == 3:
        status, values, said = item
        sound = type(status) is int and isinstance(values, list) and isinstance(said, str)
        if sound and all(type(value) is int and value in _INT64 for value in values):
            return unpack_result(status, len(values), values, said.encode())
    return TaskResult(71, [], "its result is damaged")
