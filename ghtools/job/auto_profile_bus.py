# SPDX-License-Identifier: Apache-2.0
"""The same request to all hosts of a job, over the bus (gh-run --bus on host 0)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ghtools.stream.bus_link import BusUrl
from ghtools.stream.errors import GhError
from ghtools.stream.records import Job, Record

from .control_bus import ask
from .control_messages import MAX_HOSTS, request

TIMEOUT_S = 3.0


class BusAsker:
    """A thread that asks; of several requests that wait only the newest is made, and nothing waits for Redis."""

    def __init__(self, url: BusUrl, job: str, say: Callable[[str], None]) -> None:
        self._url, self._job, self._say = url, job, say
        self._hosts: tuple[str, ...] = ()
        self._wanted: tuple[float, float] | None = None  # lease, made at
        self._changed = threading.Condition()
        self._ended = self._failed = False
        self._thread = threading.Thread(target=self._run, name="profile bus", daemon=True)
        self._thread.start()

    def feed(self, record: Record) -> None:
        """Learn the hosts, whose answers are waited for."""
        if isinstance(record, Job):
            hosts = (rank.get("host") for rank in record.ranks)
            known = {host for host in hosts if isinstance(host, str) and host} | set(self._hosts)
            self._hosts = tuple(sorted(known))[:MAX_HOSTS]

    def __call__(self, lease_s: float) -> None:
        """Time executions on all hosts for so long, or stop (0)."""
        with self._changed:
            self._wanted = (lease_s, time.monotonic())
            self._changed.notify()

    def close(self) -> None:
        """End the thread; what was asked for runs out."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(TIMEOUT_S + 1)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._wanted is not None)
                if self._wanted is None:
                    return
                (lease_s, made), self._wanted = self._wanted, None
            left_s = lease_s - (time.monotonic() - made)
            if lease_s and left_s <= 0:
                continue
            try:
                # The newest request counts on every host, whoever asked before: its epoch is the time.
                asked = request("profile", self._job, left_s if lease_s else 1.0, epoch=time.time_ns(), on=lease_s > 0)
                ask(self._url, self._job, asked, TIMEOUT_S, self._hosts)
                self._failed = False
            except GhError as error:
                if not self._failed:
                    self._failed = True
                    self._say(f"executions are not timed on the other hosts: {error}")
