# SPDX-License-Identifier: Apache-2.0
"""gh-trace: the communication calls of a running job, as a stream."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ghtools import __version__
from ghtools.stream.errors import Exit, GhError, MissingError

from ._cli import Page, Quiet, Voice, command, output, stop

if TYPE_CHECKING:
    from ghtools.stream.records import Record

PAGE = Page(
    writes="job comm calls",
    forwards=False,
    exits="0 2 4",
    examples="""
    gh-trace --list
    gh-trace | gh-bocd | gh-alert
    gh-trace --once > now.ght
    gh-trace --attach $(pgrep -f train.py) | gh-period | gh-show
""",
    overhead="""
Reading takes nothing from the job: the rings are shared memory, looked at twenty times a second. With --attach each
communication call of the job costs the kernel's uprobe, 2 to 3 microseconds (tests/bench/bench_attach.py measures it).

While executions are timed (--profile) a collective of Gloo costs the job's threads about 0.1 microseconds more and
takes a second record of the ring, so the ring holds half as many calls (tests/bench/bench_profile.py measures it).

With NCCL two CUDA events are recorded around each launch and a thread of the shim asks for them every millisecond:
0.2 to 0.3 microseconds more a call and 1.6 % of a core, with a driver that does next to nothing (bench_shim.py there).
It was not tried on a GPU: real events cost more, and with CUDA_DEVICE_MAX_CONNECTIONS=1 they can keep computation from
overlapping while it lasts. GHT_PROFILE_EVERY=N, equal on all ranks, times one in N collectives of each communicator.
""",
    caveats="""
A ring holds 65,536 calls a rank (GHT_RING_SLOTS), fewer where space is short; a reader that falls further behind
loses calls, which are counted in `lost` and in the end record.

The times are those at which the host entered a call. On a GPU that is when the work was enqueued, not when it ran.
Of NCCL's calls those captured into a CUDA graph are not timed, nor are its replays seen; several calls that share a
launch are marked dur-invalid unless the library runs them as one.

--attach needs root or CAP_BPF with CAP_PERFMON, and sees calls from then on. What a Gloo group is called and who is in
it is read from the process's memory at its first call, so a group first used just before the process ends stays
unnamed; NCCL's communicators say nothing to outsiders.
""",
    see="gh-run gh-period gh-bocd gh-doctor",
)
POLL_S = 0.05
PROFILE_LEASE_S = 10.0
NO_ITERATION_S = 60.0


@command("gh-trace", PAGE)
def main(
    pids: Annotated[
        list[int] | None,
        typer.Argument(metavar="PID...", help="With --attach: more processes.", show_default=False),
    ] = None,
    job: Annotated[
        str,
        typer.Option(
            metavar="ID", envvar="GHT_JOB", help="The job to follow; default: the newest that runs.", show_default=False
        ),
    ] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the jobs on this host and end.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Read what is there and end.")] = False,
    wait_s: Annotated[float, typer.Option(metavar="S", help="Wait this long for the job to appear.")] = 0.0,
    attach: Annotated[
        list[int] | None,
        typer.Option(
            metavar="PID...",
            help="Trace these processes (or their children) without the shim, by uprobes.",
            show_default=False,
        ),
    ] = None,
    until_pid: Annotated[
        int,
        typer.Option(
            metavar="PID",
            envvar="GHT_UNTIL_PID",
            help="End when this process has ended, not when the ranks have.",
            show_default=False,
        ),
    ] = 0,
    profile: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Time executions for N iterations from now, for gh-profile.", show_default=False
        ),
    ] = 0,
    serve: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Do what is asked of this host over Redis while it runs; - takes the URL from $GHT_REDIS_URL.",
            show_default=False,
        ),
    ] = "",
    quiet: Quiet = False,
) -> Exit:
    """Follow a running job: its ranks, communicators and calls as records, until it ends.

    The job must run under the shim (gh-run, or LD_PRELOAD), or be traced with --attach. Reading never slows
    the job: what is not read in time is overwritten and counted as lost.

    With --profile the shim also times how long each collective ran, on every rank of this host, and the stream has
    an execution beside the call. Iterations are counted as gh-period finds them, on the rank that has done fewest;
    where none can be made out within a minute, that is the end of it. It also ends with gh-trace, at the latest when
    its lease of ten seconds runs out.
    """
    from ghtools.job.paths import jobs
    from ghtools.source.live import LiveSource, job_path_of, list_lines
    from ghtools.view.text import aligned

    say = Voice("gh-trace")
    if list_:
        rows = list_lines(jobs())
        print("\n".join(aligned([["JOB", "STATE", "RANKS", "AGE_S", "PLACE"], *rows], "llrr")) if rows else "no jobs")
        return Exit.OK
    if profile and (attach or once):
        raise GhError(
            "cannot time executions", f"--{'attach' if attach else 'once'} sees calls only", "gh-trace --profile N"
        )
    if attach:
        return _attach([*attach, *(pids or [])], say, quiet)
    if pids:
        raise GhError(
            f"cannot trace process {pids[0]}", "its job is found by itself", f"--attach {pids[0]}, or --job ID"
        )
    alive = _alive(until_pid) if until_pid else None
    deadline = time.monotonic() + wait_s

    def wait() -> bool:
        _sleep(POLL_S)
        return not stop.requested and (alive() if alive else time.monotonic() < deadline)

    try:
        found = job_path_of(job, wait)
    except MissingError:
        if not until_pid:
            raise
        return _pump(job, list, lambda: True, lambda: 0)  # it made no communicator: an empty stream
    until = (lambda: not alive()) if alive else None
    source = LiveSource(found.path, time.monotonic, time.time_ns, until, say)
    if not quiet:
        say(f"following job {found.job}: {len(found.ranks)} ranks on this host")
    with ExitStack() as stack:
        stack.callback(source.close)
        if serve:
            from ghtools.job.serve_page import PageServer, given_url
            from ghtools.locate.host_pause import HostPause

            url = given_url(serve)
            tests = HostPause(url, found.job)
            stack.callback(tests.close)
            stack.callback(PageServer(url, found.path, say, tests.apply).close)
        poll = source.poll
        if profile:
            window = _Profiling(found.path, profile, say)
            stack.callback(window.end)
            poll = window.around(source.poll)
        return _pump(found.job, poll, lambda: source.done or once, lambda: source.lost)


class _Profiling:
    """Executions timed for a number of iterations, or as long as this process lives."""

    def __init__(self, job_dir: Path, iters: int, say: Voice) -> None:
        from ghtools.detect.count_iters import IterationCount
        from ghtools.job.control import ControlPage

        self._page = ControlPage.create(job_dir)
        self._iters, self._say = iters, say
        self._count: IterationCount | None = IterationCount(time.time_ns())
        self._began = self._renewed = time.monotonic()
        self._page.set_profiling(True, PROFILE_LEASE_S)
        say(f"executions are timed from now on, for {iters} iteration{'s' * (iters > 1)}")

    def around(self, poll: Callable[[], list[Record]]) -> Callable[[], list[Record]]:
        """The same poll, looking at what it gives."""

        def look() -> list[Record]:
            records = poll()
            if self._count is not None:
                for record in records:
                    self._count.feed(record)
                self._go_on(self._count.done, time.monotonic())
            return records

        return look

    def _go_on(self, done: int, now: float) -> None:
        if done >= self._iters:
            self.end(f"after {done} iterations")
        elif not done and now - self._began > NO_ITERATION_S:
            self.end(f"after {NO_ITERATION_S:.0f} s, since no iteration could be made out")
        elif now - self._renewed > PROFILE_LEASE_S / 3:
            self._page.set_profiling(True, PROFILE_LEASE_S)
            self._renewed = now

    def end(self, why: str = "with gh-trace") -> None:
        """Stop, once."""
        if self._count is not None:
            self._count = None
            self._page.set_profiling(False)
            self._page.close()
            self._say(f"executions are no longer timed: it ended {why}")


def _pump(job: str, poll: Callable[[], list[Record]], done: Callable[[], bool], lost: Callable[[], int]) -> Exit:
    """Write what `poll` gives until `done` or a signal; the reader's going away ends it too."""
    from ghtools.stream.records import End, Head

    writer = output()
    writer.write(Head(tool="gh-trace", version=__version__, host=socket.gethostname(), job=job, t_ns=time.time_ns()))
    while True:
        for record in poll():
            writer.write(record)
        if done() or stop.requested:
            break
        _sleep(POLL_S)
    writer.write(End(lost=lost(), reason="stopped" if stop.requested else "done"))
    return Exit.OK


def _sleep(seconds: float) -> None:
    """Sleep; a signal or the closing of stdout's reader ends it early."""
    watch = select.poll()
    watch.register(stop.fd, select.POLLIN)
    watch.register(sys.stdout.fileno(), 0)  # POLLERR alone: nobody reads any more
    for fd, _ in watch.poll(seconds * 1000):
        if fd != stop.fd:
            raise BrokenPipeError


def _alive(pid: int) -> Callable[[], bool]:
    """Whether the process that has this pid now still runs (another one may get its number later)."""
    from ghtools.job.process import process_start_ticks

    born = process_start_ticks(pid)
    return lambda: born is not None and process_start_ticks(pid) == born


def _attach(pids: list[int], say: Voice, quiet: bool) -> Exit:
    """Trace processes that run without the shim."""
    from ghtools.source.uprobe import UprobeSource

    if any(pid <= 0 for pid in pids):
        raise GhError("cannot attach", "a pid is a positive number", "pgrep -f train.py")
    source = UprobeSource(pids, warn=say)
    if not quiet:
        say(f"tracing {', '.join(map(str, pids))} by uprobes")
    try:
        return _pump(source.job, lambda: source.poll(0.0), lambda: source.done, lambda: source.lost)
    finally:
        source.close()
