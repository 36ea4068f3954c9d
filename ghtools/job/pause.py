# SPDX-License-Identifier: Apache-2.0
"""Stop all ranks of a job on this host at one boundary, have them run tasks there, let them go on (DESIGN section 5).

Every way out lets the job go on: the end of the `with` block, an exception, the death of this process (the lease), a
rank that does not come (the deadline), and in the shim itself a bound on how long any tool may hold a rank.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from ghtools.job.control import ControlPage
from ghtools.job.mail import Mailbox, PauseState
from ghtools.job.paths import CONTROL_NAME, JobDir, RingFile
from ghtools.job.ring import CommInfo, RingReader
from ghtools.job.task import Task, TaskResult
from ghtools.stream.errors import Exit, GhError

LEASE_S = 10.0
DEADLINE_S = 5.0
DRAIN_S = 2.0
LEAVE_S = 2.0  # ranks have let go by then, if they run at all
POLL_S = 0.001
_GOING = (PauseState.NONE, PauseState.LEFT)


class CouldNotTell(GhError):
    """The test did not come about; the job goes on. Exit 5. `again`: it cost the job nothing and may do at once."""

    def __init__(self, what: str, why: str = "", try_: str = "", again: bool = False) -> None:
        super().__init__(what, why, try_, Exit.UNKNOWN)
        self.again = again


class Held(Protocol):
    """Ranks that stand still and take tasks."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that are held."""

    @property
    def hosts(self) -> Mapping[int, str]:
        """Host name by rank."""

    @property
    def pids(self) -> Mapping[int, int]:
        """Process id by rank, on its own host."""

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """Run tasks at once, one a rank. A rank without a result is missing. CouldNotTell if a rank has gone."""


@dataclass
class _Rank:
    rank: int
    reader: RingReader
    mail: Mailbox


class HeldRanks:
    """The ranks of one host in a pause; made by `pause`."""

    def __init__(self, ranks: list[_Rank], number: int) -> None:
        self._ranks, self._number = {rank.rank: rank for rank in ranks}, number
        self.broken: str = ""

    @property
    def since_ns(self) -> int:
        """When the first of them stood (CLOCK_MONOTONIC)."""
        return min(rank.mail.answer(self._number).arrived_ns for rank in self._ranks.values())

    @property
    def ranks(self) -> list[int]:
        return sorted(self._ranks)

    @property
    def hosts(self) -> dict[int, str]:
        return {number: rank.reader.info.host for number, rank in self._ranks.items()}

    @property
    def pids(self) -> dict[int, int]:
        return {number: rank.reader.info.pid for number, rank in self._ranks.items()}

    @property
    def comms(self) -> dict[int, list[CommInfo]]:
        """The communicators that each of them has made."""
        return {number: rank.reader.comms() for number, rank in self._ranks.items()}

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """As Held.run. ValueError for a rank that is not held."""
        if strange := sorted(set(tasks) - set(self._ranks)):
            raise ValueError(f"ranks {strange} are not held")
        self._check()
        given = {number: self._ranks[number].mail.give(task) for number, task in tasks.items()}
        done: dict[int, TaskResult] = {}
        deadline = time.monotonic() + timeout_s
        while given.keys() - done.keys() and time.monotonic() < deadline:
            for number in given.keys() - done.keys():
                result = self._ranks[number].mail.result(given[number])
                if result is not None:
                    done[number] = result
            if given.keys() - done.keys():
                self._check()
                time.sleep(POLL_S)
        return done

    def _check(self) -> None:
        """A rank that has died or gone on ends the test for all."""
        for number, rank in self._ranks.items():
            if rank.reader.state() != "running":
                self.broken = f"rank {number} has gone"
            elif rank.mail.answer(self._number).state != PauseState.DRAINED:
                self.broken = f"rank {number} went on before the test was over"
        if self.broken:
            raise CouldNotTell("the test was broken off", self.broken)


@contextmanager
def pause(
    job: JobDir,
    stops: Mapping[int, int],
    come_s: float = DEADLINE_S,
    deadline_s: float = DEADLINE_S,
    lease_s: float = LEASE_S,
    drain_s: float = DRAIN_S,
) -> Iterator[HeldRanks]:
    """Hold every rank of `stops` before the call with its number there, until the block is left.

    `stops` must name all ranks of the job, with calls that begin the same iteration: else some would wait for others
    and not arrive. The first rank must come within `come_s`, the others within `deadline_s` after it, with their work
    done; else all of them go on, and CouldNotTell is raised, as it is if a rank does not run here or another test holds
    the job. MissingError if a mailbox cannot be opened.
    """
    newest = newest_rings(job)
    if missing := sorted(set(stops) - set(newest)):
        raise CouldNotTell("cannot hold the job", f"ranks {missing} do not run here")
    with ExitStack() as stack:
        stack.enter_context(_alone(job))
        page = stack.enter_context(ControlPage.open(job.path))
        ranks = [_open(stack, newest[number]) for number in sorted(stops)]
        number = max(rank.mail.number for rank in ranks) + 1
        held = HeldRanks(ranks, number)
        ended = threading.Event()
        renewer = threading.Thread(target=_renew, args=(ranks, page, lease_s, ended), name="pause lease", daemon=True)
        try:
            page.set_pausing(True, lease_s)  # first: whoever can see a request looks at it
            until = time.monotonic_ns() + int(lease_s * 1e9)
            for rank in ranks:
                rank.mail.ask(number, stops[rank.rank], until, int(drain_s * 1e9))
            renewer.start()
            _arrive(ranks, number, come_s, deadline_s)
            yield held
        finally:
            ended.set()
            for rank in ranks:
                rank.mail.release(number)
            if renewer.ident is not None:
                renewer.join()
            page.set_pausing(False)
            _leave(ranks, number)


def newest_rings(job: JobDir) -> dict[int, RingFile]:
    """The newest ring of each rank whose process runs."""
    return {ring.rank: ring for ring in sorted(job.rings, key=lambda ring: ring.made_ns)}


def _open(stack: ExitStack, ring: RingFile) -> _Rank:
    reader = stack.enter_context(RingReader(ring.path, start="now"))
    mail = Mailbox(ring.path)
    stack.callback(mail.close)
    return _Rank(ring.rank, reader, mail)


@contextmanager
def _alone(job: JobDir) -> Iterator[None]:
    """One test at a time: a lock on the control page that ends with its holder."""
    fd = os.open(job.path / CONTROL_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CouldNotTell(
                "cannot hold the job", "another test holds it", "again in some seconds", again=True
            ) from None
        yield
    finally:
        os.close(fd)


def _renew(ranks: list[_Rank], page: ControlPage, lease_s: float, ended: threading.Event) -> None:
    while not ended.wait(lease_s / 4):
        page.set_pausing(True, lease_s)
        for rank in ranks:
            rank.mail.renew(time.monotonic_ns() + int(lease_s * 1e9))


def _arrive(ranks: list[_Rank], number: int, come_s: float, deadline_s: float) -> None:
    """Wait until all stand with nothing under way."""
    deadline, came = time.monotonic() + come_s, False
    while True:
        answers = {rank.rank: rank.mail.answer(number).state for rank in ranks}
        if not came and any(answers.values()):
            deadline, came = time.monotonic() + deadline_s, True
        if all(state == PauseState.DRAINED for state in answers.values()):
            return
        for state, why in (
            (PauseState.REFUSED, "had already begun the iteration"),
            (PauseState.UNDRAINED, "still had communication under way"),
            (PauseState.LEFT, "went on by itself"),
        ):
            if these := [rank for rank, at in answers.items() if at == state]:
                refused = state == PauseState.REFUSED
                raise CouldNotTell("the job could not be held", f"{_ranks(these)} {why}", "again", again=refused)
        for rank in ranks:
            if rank.reader.state() != "running":
                raise CouldNotTell("the job could not be held", f"rank {rank.rank} has gone")
        if time.monotonic() > deadline:
            late = [rank for rank, state in answers.items() if state == PauseState.NONE]
            stuck = [rank for rank, state in answers.items() if state == PauseState.ARRIVED]
            why = f"{_ranks(late)} did not come" if late else f"{_ranks(stuck)} still had communication under way"
            within_s = deadline_s if came else come_s
            # Where none has come the job lost nothing: it has become slower than its last iterations were.
            raise CouldNotTell("the job could not be held", f"{why} within {within_s:.3g} s", again=not came)
        time.sleep(POLL_S)


def _leave(ranks: list[_Rank], number: int) -> None:
    """Wait, not for long, until the ranks that stood go on, so that the next pause finds none of this one."""
    deadline = time.monotonic() + LEAVE_S
    while time.monotonic() < deadline:
        if all(rank.mail.answer(number).state in (*_GOING, PauseState.REFUSED) for rank in ranks):
            return
        time.sleep(POLL_S)


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"
