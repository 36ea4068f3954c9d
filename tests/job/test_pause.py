# SPDX-License-Identifier: Apache-2.0
"""Holding a job at a call: it stops there, runs tasks, and goes on whatever becomes of anybody."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ghtools.job import paths
from ghtools.job.mail import Mailbox, PauseState
from ghtools.job.pause import CouldNotTell, pause
from ghtools.job.ring import RingReader
from ghtools.job.task import Task
from ghtools.stream.errors import Exit
from ghtools.stream.records import FLAG_PAUSED
from tests.csrc.conftest import Fakes

Env = dict[str, str]
MADE = 10  # calls that a rank has made: the next one has this number


class Rank:
    """A process that makes a call for each byte it is sent."""

    def __init__(self, fakes: Fakes, env: Env, rank: int) -> None:
        env = {**env, "RANK": str(rank), "WORLD_SIZE": "2"}
        command = [str(fakes.driver), "hold", str(MADE)]
        self.child = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.said(10.0) == b"ready\n"

    def ask(self, n: int = 1) -> None:
        assert self.child.stdin
        self.child.stdin.write(b"x" * n)

    def said(self, timeout_s: float) -> bytes | None:
        """The next line, None if there is none in time."""
        assert self.child.stdout
        if not select.select([self.child.stdout], [], [], timeout_s)[0]:
            return None
        return os.read(self.child.stdout.fileno(), 4096)


@contextmanager
def job_of(fakes: Fakes, env: Env, n: int) -> Iterator[list[Rank]]:
    """n ranks, all of which have made MADE calls."""
    with ExitStack() as stack:
        ranks = []
        for number in range(n):
            ranks.append(Rank(fakes, env, number))
            stack.callback(ranks[-1].child.communicate)
            stack.callback(ranks[-1].child.kill)
        yield ranks


def the_job(env: Env) -> paths.JobDir:
    (job,) = paths.jobs(Path(env["GHT_DIR"]))
    return job


def mailbox(env: Env, rank: int = 0) -> Mailbox:
    return Mailbox(next(ring.path for ring in the_job(env).rings if ring.rank == rank))


@contextmanager
def coming(env: Env, *ranks: Rank, n: int = 1) -> Iterator[None]:
    """Ranks that make n more calls once the next pause has been asked for."""
    mails = [(rank, mailbox(env, number)) for number, rank in enumerate(ranks)]
    before = [mail.number for _, mail in mails]

    def wait() -> None:
        for (rank, mail), number in zip(mails, before, strict=True):
            while mail.number == number:
                time.sleep(0.001)
            rank.ask(n)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        for _, mail in mails:
            mail.close()


def test_stops_before_the_call_runs_tasks_and_goes_on(fakes: Fakes, shim_env: Env) -> None:
    with job_of(fakes, shim_env, 1) as (rank,):
        with coming(shim_env, rank, n=2), pause(the_job(shim_env), {0: MADE + 1}) as held:
            assert held.ranks == [0]
            assert held.pids == {0: rank.child.pid}
            assert rank.said(0.2) == b"called\n"  # the call before it
            assert rank.said(0.2) is None
            assert held.run({0: Task(99)}, 5.0)[0].status == errno.ENOSYS
            assert rank.said(0.1) is None
        assert rank.said(5.0) == b"called\n"
        rank.ask()
        assert rank.said(5.0) == b"called\n"
        with RingReader(the_job(shim_env).rings[0].path) as reader:
            flags = reader.drain()[0]["flags"]
        assert [n for n, flag in enumerate(flags) if flag & FLAG_PAUSED] == [MADE + 1]


def test_a_rank_that_has_made_the_call_refuses_and_does_not_stop(fakes: Fakes, shim_env: Env) -> None:
    with job_of(fakes, shim_env, 1) as (rank,):
        already = pytest.raises(CouldNotTell, match="rank 0 had already begun")
        with already, coming(shim_env, rank), pause(the_job(shim_env), {0: MADE - 1}):
            raise AssertionError("it was held")
        assert rank.said(5.0) == b"called\n"


def test_who_does_not_come_lets_the_others_go(fakes: Fakes, shim_env: Env) -> None:
    with job_of(fakes, shim_env, 2) as (one, other):
        other.child.send_signal(signal.SIGSTOP)
        both = {0: MADE, 1: MADE}
        late = pytest.raises(CouldNotTell, match="rank 1 did not come")
        with late as caught, coming(shim_env, one, other), pause(the_job(shim_env), both, deadline_s=0.5):
            raise AssertionError("it was held")
        assert caught.value.code == Exit.UNKNOWN
        assert one.said(5.0) == b"called\n"
        other.child.send_signal(signal.SIGCONT)
        assert other.said(5.0) == b"called\n"  # the pause is over when it comes


def test_the_death_of_a_rank_ends_the_test_and_frees_the_others(fakes: Fakes, shim_env: Env) -> None:
    with job_of(fakes, shim_env, 2) as (one, other):
        both = {0: MADE, 1: MADE}
        gone = pytest.raises(CouldNotTell, match="rank 1 has gone")
        with gone, coming(shim_env, one, other), pause(the_job(shim_env), both) as held:
            other.child.kill()
            other.child.wait()
            for _ in range(100):
                held.run({0: Task(99)}, 5.0)
                time.sleep(0.02)  # the state of a process is asked for now and then
        assert one.said(5.0) == b"called\n"


def test_the_death_of_the_tool_frees_the_job_when_the_lease_is_over(fakes: Fakes, shim_env: Env) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from ghtools.job import paths\n"
        "from ghtools.job.pause import pause\n"
        "(job,) = paths.jobs(Path(sys.argv[1]))\n"
        f"with pause(job, {{0: {MADE}}}, lease_s=1.0):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with job_of(fakes, shim_env, 1) as (rank,):
        command = [sys.executable, "-c", code, shim_env["GHT_DIR"]]
        with coming(shim_env, rank):
            tool = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert tool.stdout and tool.stdout.readline() == "held\n"
            assert rank.said(1.5) is None  # the lease is renewed
        finally:
            tool.kill()
            tool.communicate()
        assert rank.said(10.0) == b"called\n"
        with coming(shim_env, rank), pause(the_job(shim_env), {0: MADE + 1}):  # nothing is in the way of the next one
            pass


def test_a_lease_that_nobody_renews_runs_out(fakes: Fakes, shim_env: Env) -> None:
    from ghtools.job.control import ControlPage

    with job_of(fakes, shim_env, 1) as (rank,), ControlPage.open(the_job(shim_env).path) as page:
        mail = mailbox(shim_env)
        mail.ask(1, MADE, time.monotonic_ns() + 300_000_000, 0)
        page.set_pausing(True, 5.0)
        rank.ask()
        assert rank.said(0.1) is None
        assert rank.said(5.0) == b"called\n"
        assert mail.answer(1).state == PauseState.LEFT
        assert mail.answer(1).left_ns - mail.answer(1).arrived_ns < 5_000_000_000
        mail.close()


def test_one_test_at_a_time(fakes: Fakes, shim_env: Env) -> None:
    with job_of(fakes, shim_env, 1) as (rank,):
        with coming(shim_env, rank), pause(the_job(shim_env), {0: MADE}):
            with pytest.raises(CouldNotTell, match="another test"), pause(the_job(shim_env), {0: MADE + 1}):
                raise AssertionError("it was held twice")
            assert rank.said(0.2) is None
        assert rank.said(5.0) == b"called\n"


def test_a_hundred_pauses_leave_nothing_behind(fakes: Fakes, shim_env: Env) -> None:
    with job_of(fakes, shim_env, 2) as ranks:
        job = the_job(shim_env)

        def kept() -> tuple[list[str], list[int]]:
            pids = [os.getpid(), *(rank.child.pid for rank in ranks)]
            fds = [sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) for pid in pids]
            return sorted(path.name for path in job.path.iterdir()), fds

        before = kept()
        for n in range(100):
            with coming(shim_env, *ranks), pause(job, {0: MADE + n, 1: MADE + n}):
                pass
            for rank in ranks:
                assert rank.said(5.0) == b"called\n"
        assert kept() == before
        maps = [Path(f"/proc/{rank.child.pid}/maps").read_text().count("\n") for rank in ranks]
        assert max(maps) < 200


def test_a_damaged_mailbox_stops_nobody(fakes: Fakes, shim_env: Env) -> None:
    from ghtools.job.control import ControlPage
    from ghtools.job.layout import MAIL_AT, PAGE

    with job_of(fakes, shim_env, 1) as (rank,), ControlPage.open(the_job(shim_env).path) as page:
        with open(the_job(shim_env).rings[0].path, "r+b") as file:
            file.seek(MAIL_AT)
            file.write(b"\xff" * PAGE)
        page.set_pausing(True, 2.0)
        rank.ask()
        assert rank.said(5.0) == b"called\n"
