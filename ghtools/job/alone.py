# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes of our own, side by side on this host: tests without a job (`Held` of job/pause.py)."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from ghtools.job.pause import CouldNotTell
from ghtools.job.task import Task, TaskResult, unpack_result
from ghtools.stream.errors import GhError

MAX_PROCESSES = 512
START_S = 60.0
END_S = 0.5
LOOK_S = 0.2  # between looks at a wish to stop
MAX_LINE = 1 << 16


class Alone:
    """One process a rank; a context manager that starts and ends them.

    One process is started, which forks one a rank: sixteen take 0.3 s, as many interpreters 5 s (2 CPUs). They end with
    this one, however that ends. A rank that dies gives no result, or with `strict` ends the test (CouldNotTell);
    `stopping` is asked while results are awaited, and ends it too. GhError for over 512 ranks.
    """

    def __init__(
        self, ranks: Sequence[int], strict: bool = False, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        if len(ranks) > MAX_PROCESSES:
            raise GhError(f"cannot start {len(ranks)} processes", f"the most is {MAX_PROCESSES}", "fewer ranks")
        self._ranks, self._strict, self._stopping = sorted(ranks), strict, stopping
        self._lines: dict[int, _Lines] = {}
        self._main: subprocess.Popen[bytes] | None = None
        self._pids: dict[int, int] = {}
        self._number = 0

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return list(self._ranks)

    @property
    def hosts(self) -> Mapping[int, str]:
        """This host, for each."""
        return dict.fromkeys(self._ranks, socket.gethostname())

    @property
    def pids(self) -> Mapping[int, int]:
        """Process ids."""
        return dict(self._pids)

    def __enter__(self) -> Alone:
        theirs: list[socket.socket] = []
        try:
            for rank in self._ranks:
                mine, other = socket.socketpair()
                self._lines[rank] = _Lines(mine)
                theirs.append(other)
            words = [f"{rank}:{other.fileno()}" for rank, other in zip(self._ranks, theirs, strict=True)]
            self._main = subprocess.Popen(
                [sys.executable, "-m", "ghtools.job.alone_ranks", *words],
                pass_fds=[other.fileno() for other in theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                # Threads of a numerics library would be lost in the forks.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
            for other in theirs:
                other.close()
            found = self._gather(set(self._ranks), 0, time.monotonic() + START_S)
            if missing := sorted(set(self._ranks) - set(found)):
                raise CouldNotTell("the test could not begin", f"the process of rank {missing[0]} did not start")
            self._pids = {rank: answer["pid"] for rank, answer in found.items()}
        except BaseException:
            self.__exit__(None, None, None)
            raise
        finally:
            for other in theirs:
                other.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines.values():
            line.close()
        if self._main is not None:
            with suppress(subprocess.TimeoutExpired):
                self._main.wait(END_S)  # the ranks end with their sockets, unless a task keeps them
            if self._main.poll() is None:
                for pid in self._pids.values():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    self._main.wait(END_S)  # it waits for them, so that none is left as a zombie
            if self._main.poll() is None:
                os.killpg(self._main.pid, signal.SIGKILL)  # its own session
                self._main.wait()

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """As Held.run. ValueError for a rank that is none of ours."""
        if strange := sorted(set(tasks) - set(self._ranks)):
            raise ValueError(f"ranks {strange} are not held")
        self._number += 1
        for rank, task in tasks.items():
            words = [self._number, task.kind, list(task.args), task.text, timeout_s]
            with suppress(OSError):  # it has gone, which reading tells
                self._lines[rank].socket.sendall(json.dumps(words).encode() + b"\n")
        found = self._gather(set(tasks), self._number, time.monotonic() + timeout_s + LOOK_S)
        return {
            rank: unpack_result(item["status"], len(item["values"]), item["values"], item["said"].encode())
            for rank, item in found.items()
        }

    def _gather(self, wanted: set[int], number: int, deadline: float) -> dict[int, Any]:
        """Answers with this number; fewer than wanted after the deadline, or if ranks have gone."""
        found: dict[int, Any] = {}
        with selectors.DefaultSelector() as ready:
            for rank in wanted:
                ready.register(self._lines[rank].socket, selectors.EVENT_READ, rank)
            while wanted - found.keys() and (left := deadline - time.monotonic()) > 0:
                if self._stopping():
                    raise CouldNotTell("the test was broken off", "a signal asked for it")
                for key, _ in ready.select(min(left, LOOK_S)):
                    rank = key.data
                    answers = self._lines[rank].read()
                    if answers is None:
                        if self._strict:
                            raise CouldNotTell("the test was broken off", f"rank {rank} has gone")
                        ready.unregister(key.fileobj)
                        wanted = wanted - {rank}
                        continue
                    for answer in answers:
                        if answer["number"] == number:
                            found[rank] = answer
        return found


class _Lines:
    """JSON lines from a socket."""

    def __init__(self, one: socket.socket) -> None:
        self.socket = one
        self._rest = b""

    def read(self) -> list[Any] | None:
        """Lines that have come, None at the end."""
        with suppress(ConnectionResetError):
            if data := self.socket.recv(MAX_LINE):
                *whole, self._rest = (self._rest + data).split(b"\n")
                return [json.loads(line) for line in whole]
        return None

    def close(self) -> None:
        self.socket.close()
