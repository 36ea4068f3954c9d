# SPDX-License-Identifier: Apache-2.0
"""gh-run: start a command, watch it, raise the alarm."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ghtools import __version__
from ghtools.stream.errors import GhError

from ._cli import Page, Quiet, Voice, command

if TYPE_CHECKING:
    from ghtools.job.auto_profile_bus import BusAsker
    from ghtools.job.chain import Stage
    from ghtools.stream.records import Record

PAGE = Page(
    exits="2 4",
    exits_text="The exit code of the command, 128 + n if signal n ended it. Where no command could be started:",
    examples="""
Watch a job, keep its stream and draw it at the end:

    gh-run --out job.ght --plot job.png -- torchrun --nproc-per-node 8 train.py

Other stages, and where alerts go:

    gh-run --pipe 'gh-trace | gh-bocd | gh-alert --prom /var/lib/node_exporter/gh.prom' -- srun ./train

Watch a job of two hosts as one (the same on the other host, with --node-rank 1):

    export GHT_REDIS_URL=rediss://user:password@redis.example:6380
    gh-run --bus - --job j7 -- torchrun --nnodes 2 --node-rank 0 --master-addr node01 --nproc-per-node 8 train.py

Never hold the job for a test of what is suspected:

    gh-run --validate never -- torchrun --nproc-per-node 8 train.py

Watch a job that runs already:

    gh-run --attach 3f2a
""",
    overhead="""
The shim costs tens of nanoseconds a communication call (`make bench` prints it for your machine). The chain runs in
processes of its own at a lower priority (nice 5): gh-trace looks at the rings twenty times a second, the others
work when records come. `gh-doctor --overhead` measures what the shim costs a job that runs.

Executions are timed for 12 iterations of the healthy job, 12 from a suspicion on, 30 from a confirmed onset on and 12
after the relief; for that time a collective of Gloo costs about 0.1 microseconds more. Unless --validate never, the job
stands still for some seconds, under five as a rule, while a suspect is tested, once an episode and at most once a
minute for its ranks and once for its links; its results are what they would have been.
""",
    caveats="""
What LD_PRELOAD cannot reach is not seen: a statically linked NCCL, a library opened with RTLD_DEEPBIND, a program
that is setuid. gh-doctor says so. Replays of a CUDA graph make no library call and are not seen either.

On several hosts, run it on each one: each watches its own ranks, or with --bus host 0 (torchrun's --node-rank,
SLURM_NODEID, NODE_RANK) watches all of them and the others what they can see alone. The job needs an id that is the
same on all hosts. While Redis is away, host 0 hears nothing, not even of its own ranks; all of it comes later. A host 0
that is started again reads what Redis still has and says its alerts again.
""",
    see="gh-trace gh-period gh-bocd gh-profile gh-alert gh-validate-gemm gh-validate-ring gh-plot gh-doctor",
)
CHAIN = "gh-trace | gh-period | gh-bocd | gh-profile | gh-alert"


@command("gh-run", PAGE, allow_interspersed_args=False)
def main(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...", help="The command to run and its arguments, after --.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.ght", help="Keep the whole stream in this file.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the iteration times when the job has ended.", show_default=False),
    ] = None,
    pipe: Annotated[str, typer.Option(metavar="CHAIN", help="Stages to run beside the job, joined by bars.")] = CHAIN,
    attach: Annotated[
        str, typer.Option(metavar="JOB", help="Watch this running job instead of starting one.", show_default=False)
    ] = "",
    job: Annotated[
        str, typer.Option(metavar="ID", help="Id of the job; default: $GHT_JOB, else a new one.", show_default=False)
    ] = "",
    bus: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Join the hosts of the job through Redis; - takes the URL from $GHT_REDIS_URL.",
            show_default=False,
        ),
    ] = "",
    validate: Annotated[
        str,
        typer.Option(
            metavar="auto|never",
            help="auto, the default with gh-profile in the chain: hold the job for some seconds to test whom "
            "it suspects, once an episode.",
            show_default=False,
        ),
    ] = "",
    quiet: Quiet = False,
) -> int:
    """Run a command and watch it: alerts on stderr, a summary at the end.

    The command keeps its stdin, stdout, stderr, signals and exit code; only LD_PRELOAD and GHT_JOB are added to
    its environment. The chain runs beside it in processes of its own: if one dies, the job goes on.

    With gh-profile in the chain, executions are timed for a stretch of the healthy job and again for 30 iterations
    when the job gets slow, so that the slow rank or link can be named; it is then tested while the job stands still
    (gh-validate-gemm, gh-validate-ring), and the alert says how sure it is.

        gh-run -- torchrun --nproc-per-node 8 train.py
    """
    from ghtools.job.chain import Chain, parse_chain, preload, spawn_job, with_tests
    from ghtools.job.native import SHIM
    from ghtools.job.supervise import block_signals, supervise

    if bool(run) == bool(attach):
        raise GhError(
            "nothing to run" if not run else "both a command and --attach",
            "gh-run needs one of them",
            "gh-run -- COMMAND...",
        )
    if validate not in ("", "auto", "never"):
        raise GhError(f"--validate {validate} is not known", try_="auto or never")
    say = Voice("ghtools")
    stages = parse_chain(pipe)
    url, node = "", 0
    if bus:
        from ghtools.job.bus_chain import bus_job, bus_stages, node_rank
        from ghtools.stream.bus_link import bus_url, connect

        url = os.environ.get("GHT_REDIS_URL", "") if bus == "-" else bus
        connect(bus_url(url))  # says what is wrong with it; Redis itself may come later
        job = attach or bus_job(job, os.environ)
        node = node_rank(os.environ, run or [])
        stages = bus_stages(stages, f"ght:{job}", node)
    job = attach or job or os.environ.get("GHT_JOB", "") or _new_id()
    validate = validate or ("auto" if any(stage[0] == "gh-profile" for stage in stages) else "never")
    if validate == "auto" and not node:  # one host asks for all
        stages = with_tests(stages, job, ["--bus", "-"] if bus else [])
    block_signals()
    environment = dict(os.environ)
    pid = None
    if run:
        if not SHIM.exists():
            say(f"the shim is not built ({SHIM} is missing): the job runs, unwatched; try `make shim`")
            os.execvp(run[0], run)
        pid = spawn_job(run, preload(environment, SHIM, job))
        environment["GHT_UNTIL_PID"] = str(pid)
    environment |= {"GHT_JOB": job, "GHT_KEEP": "1", "GHT_QUIET": "1"} | (
        {"GHT_REDIS_URL": url, "GHT_BUS": "-"} if url else {}
    )
    watch: _Watch | None = None
    chain = None
    try:
        chain = Chain(stages, environment)
        watch = _Watch(chain.fd, out, plot, say, quiet)
        if any(stage[0] == "gh-profile" for stage in stages):
            watch.profile_by_itself(job, url if bus and not node else "")
        watch.start()
    except (GhError, OSError) as error:
        say(f"the job runs unwatched: {error}")

    def stage_died(stage: Stage, after_job: bool) -> None:
        status = stage.status or 0
        how = f"signal {status - 128}" if status > 128 else f"exit {status}"
        say(f"{stage.name} ended ({how}); {'its summary may be short' if after_job else 'the job goes on unwatched'}")

    how = ["not ours"]
    code = supervise(pid, chain, stage_died, lambda status: how.__setitem__(0, f"exit {status}"))
    if watch is not None:
        watch.join(timeout=5.0)
        watch.finish(how[0])
    if pid is not None:
        _clear_away(job)
    say.flush()
    sys.stdout.flush()
    return code


def _new_id() -> str:
    """A short job id whose directory no other job has, living or dead."""
    from ghtools.job.paths import job_path

    while job_path(name := secrets.token_hex(2)).exists():
        pass
    return name


def _clear_away(job: str) -> None:
    """Give back the memory of the job's rings, and of jobs that crashed more than a day ago."""
    from ghtools.job.paths import clean_stale, jobs, remove_job

    for found in jobs():
        if found.job == job and not found.alive and found.uid == os.geteuid():
            remove_job(found)
    clean_stale(min_age_s=86_400)


class _Watch(threading.Thread):
    """Reads the chain's records: keeps them, says what they mean, and draws them at the end."""

    def __init__(self, fd: int, out: Path | None, plot: Path | None, say: Voice, quiet: bool) -> None:
        super().__init__(name="gh-run reader", daemon=True)
        from ghtools.view.plot_data import PlotData
        from ghtools.view.summary import Summary

        self._source = os.fdopen(fd, "rb")
        self._out = os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") if out else None
        self._out_path, self._plot_path = out, plot
        self._say, self._quiet = say, quiet
        self._summary = Summary(__version__)
        self._data = PlotData()
        self._profile: Callable[[Record], None] | None = None
        self._done: list[Callable[[], None]] = []

    def profile_by_itself(self, job: str, url: str) -> None:
        """Have executions timed when the records say that it is worth it: here, and with a `url` on all hosts."""
        from ghtools.job.auto_profile import AutoProfile, LocalPage
        from ghtools.job.paths import job_path, jobs, safe_job_id

        auto = AutoProfile(time.monotonic)
        place = next((found.path for found in jobs() if found.job == safe_job_id(job)), job_path(job))
        local = LocalPage(place, self._say)
        self._done.append(local.close)
        everywhere: BusAsker | None = None
        if url:
            from ghtools.job.auto_profile_bus import BusAsker
            from ghtools.stream.bus_link import bus_url

            everywhere = BusAsker(bus_url(url), safe_job_id(job), self._say)
            self._done.append(everywhere.close)

        def take(record: Record) -> None:
            if everywhere is not None:
                everywhere.feed(record)
            if (lease_s := auto.feed(record)) is not None:
                local(lease_s)
                if everywhere is not None:
                    everywhere(lease_s)

        self._profile = take

    def run(self) -> None:
        from ghtools.stream.framing import sections
        from ghtools.stream.writer import Writer

        writer = Writer(self._out) if self._out else None

        def take(record: Record) -> None:
            if writer:
                writer.write(record)
            if self._plot_path:
                self._data.add(record)
            for line in self._summary.feed(record):
                if not self._quiet:
                    self._say(line)
            if self._profile is not None:
                self._profile(record)

        try:
            for section in sections(self._source, lambda error: None):
                take(section.head)
                for record in section:
                    take(record)
                if section.end:
                    take(section.end)
        except GhError as error:
            self._say(f"the chain's output ended: {error}")
        except OSError as error:
            self._say(f"cannot keep the stream: {error.strerror or error}; the job goes on")
        finally:
            for done in self._done:
                done()
            while self._source.read1(1 << 16):  # never let a stage wait for a reader that has stopped
                pass

    def finish(self, how: str) -> None:
        """The picture and the summary."""
        extras = []
        if self._plot_path:
            from ghtools.view import plot

            try:
                self._data.finish()
                plot.check(self._plot_path)
                plot.save(self._data, self._plot_path)
                extras.append(f"picture {self._plot_path}")
            except (GhError, OSError) as error:
                self._say(f"no picture: {error}")
        if self._out:
            self._out.close()
            extras.append(f"stream {self._out_path}")
        for line in self._summary.episode_lines():
            self._say(line)
        self._say(self._summary.final(how, extras))
