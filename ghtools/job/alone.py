# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes of our own, side by side on this host: tests without a job (`Held` of job/pause.py)."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from ghtools.job import worker
from ghtools.job.pause import CouldNotTell
from ghtools.job.task import Task, TaskResult, unpack_result
from ghtools.stream.errors import GhError

READY_S = 60.0
MAX_PROCESSES = 256
MAX_LINE = 1 << 16
END_S = 2.0


class Alone:
    """One process a rank, started at once; a context manager that ends them."""

    def __init__(self, ranks: Sequence[int]) -> None:
        if len(ranks) > MAX_PROCESSES:
            raise GhError(f"cannot start {len(ranks)} processes", f"the most is {MAX_PROCESSES}", "fewer ranks")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._unread: dict[int, bytes] = {}
        try:
            for rank in ranks:
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-m", "ghtools.job.worker"],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            ready = self._lines(set(self._processes), READY_S)
            if missing := sorted(set(self._processes) - set(ready)):
                raise CouldNotTell("the test could not begin", f"the process of rank {missing[0]} did not start")
        except BaseException:
            self.close()
            raise

    @property
    def ranks(self) -> list[int]:
        return sorted(self._processes)

    @property
    def hosts(self) -> dict[int, str]:
        return dict.fromkeys(self._processes, socket.gethostname())

    @property
    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in self._processes.items()}

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """As Held.run; a process that has died gives no result."""
        for rank, task in tasks.items():
            pipe = self._processes[rank].stdin
            assert pipe is not None
            with suppress(BrokenPipeError):  # it has died: no answer will come
                pipe.write(worker.request(task, timeout_s))
        results = {}
        for rank, line in self._lines(set(tasks), timeout_s + 1).items():  # a task gives up by itself, and says so
            item = json.loads(line)
            said = item["said"].encode()
            results[rank] = unpack_result(item["status"], len(item["values"]), item["values"], said)
        return results

    def _lines(self, ranks: set[int], timeout_s: float) -> dict[int, bytes]:
        """One line of each process, as far as they come in time."""
        deadline, lines = time.monotonic() + timeout_s, {}
        fds = {}
        for rank in ranks:
            pipe = self._processes[rank].stdout
            assert pipe is not None
            fds[pipe.fileno()] = rank
        while fds and (left := deadline - time.monotonic()) > 0:
            for fd in select.select(list(fds), [], [], left)[0]:
                rank = fds[fd]
                data = os.read(fd, MAX_LINE)
                text = self._unread.pop(rank, b"") + data
                if b"\n" in text:
                    lines[rank], self._unread[rank] = text.split(b"\n", 1)
                if not data or b"\n" in text:
                    del fds[fd]
                else:
                    self._unread[rank] = text
        return lines

    def close(self) -> None:
        """End the processes: they go when their input ends, and are killed if they do not."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        deadline = time.monotonic() + END_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
