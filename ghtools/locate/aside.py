# SPDX-License-Identifier: Apache-2.0
"""One test at a time beside a stream, so that what the stream tells goes on while the job is looked for and held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from ghtools.stream.records import Record

Test = Callable[[], list[Record]]
Submit = Callable[[Test], "Future[list[Record]]"]


def beside(test: Test) -> Future[list[Record]]:
    """Run a test in a thread of its own. It dies with the process: a job that is held then goes on by its lease."""
    future: Future[list[Record]] = Future()

    def run() -> None:
        try:
            future.set_result(test())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="test", daemon=True).start()
    return future


class Aside:
    """Runs tests by `submit`, and gives their records when they are there."""

    def __init__(self, submit: Submit = beside) -> None:
        self._submit = submit
        self._running: Future[list[Record]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a test runs, or has results that nobody took."""
        return self._running is not None

    def start(self, test: Test) -> None:
        """Begin a test; nothing else may be running."""
        self._running = self._submit(test)

    def ready(self) -> list[Record]:
        """The records of a test that has ended; empty while it runs."""
        return self.wait() if self._running is not None and self._running.done() else []

    def wait(self) -> list[Record]:
        """The records of the test that runs, when it has ended; empty if none does."""
        running, self._running = self._running, None
        return running.result() if running is not None else []
