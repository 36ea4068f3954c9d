# SPDX-License-Identifier: Apache-2.0
"""gh-profile on real jobs, scenario by scenario: run a job under the shim, make a part slow, keep the stream, judge it.

    python -m tests.system.profile_bed list
    python -m tests.system.profile_bed record FOLDER SCENARIO [RUNS]
    python -m tests.system.profile_bed judge FOLDER [SCENARIO] [--explain]
    python -m tests.system.profile_bed table FOLDER

A stream that is kept can be judged again without the job. As the automatic chain does, executions are timed over a
short stretch early and then from three iterations after the fault (a suspicion takes that long); jobs without
a fault are timed all the time, as an operator with `gh-trace --profile` would.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ghtools.job.control import ControlPage
from ghtools.job.paths import rings_in
from ghtools.stream.framing import sections
from ghtools.stream.records import Change, Iters, Suspect
from tests.bed.host import Hosts
from tests.bed.throttle import Throttle
from tests.conftest import BIN, ROOT

JOB = ROOT / "tests" / "jobs" / "mixed.py"
SHIM = ROOT / "ghtools" / "_lib" / "libghtools_shim.so"
BASELINE = (10, 30)  # steps that are timed early on
NOTICED = 3  # iterations until the slow-down is suspected
LEASE_S = 600.0
DEADLINE_S = 150.0


@dataclass(frozen=True)
class Scenario:
    """A job, what is made slow in it, and what must be said: `want` are pairs of cause and ranks."""

    tp: int = 1
    dp: int = 4
    pp: int = 1
    args: str = ""
    hosts: int = 0  # network namespaces; 0 = this host alone
    steps: int = 65
    at: int = 40  # the step at which the fault begins
    throttled: tuple[int, ...] = ()  # ranks under a quota
    share: float = 0.15
    slow_host: int = -1
    rate: str = "100mbit"
    timed: str = "chain"  # chain, always or never
    want: tuple[tuple[str, tuple[int, ...]], ...] = ()
    pattern: str = ""  # cause that must be said of nobody

    @property
    def ranks(self) -> int:
        """World size."""
        return self.tp * self.dp * self.pp


def quota(rank: int, **more: Any) -> Scenario:
    """One rank under a CPU quota."""
    return Scenario(throttled=(rank,), want=(("compute", (rank,)),), **more)


SCENARIOS: dict[str, Scenario] = {
    "dp4": quota(1),
    "tp2dp2": quota(2, tp=2, dp=2),
    "pp2dp2": quota(3, dp=2, pp=2),
    "tp2dp2pp2": quota(5, tp=2, dp=2, pp=2, share=0.08, args="--batch 384 --layers 2"),
    "healthy dp4": Scenario(timed="always"),
    "healthy tp2dp2pp2": Scenario(tp=2, dp=2, pp=2, timed="always", args="--batch 384 --layers 2"),
    "heavier stage": Scenario(dp=2, pp=2, args="--heavier-last-stage", timed="always", pattern="imbalance"),
    "uneven": Scenario(args="--uneven-lengths", timed="always", pattern="imbalance"),
    "loader": Scenario(args="--slow-loader 2 --slow-from 40 --slow-s 0.2", want=(("input", (2,)),)),
    "pauses": Scenario(args="--gc-pause", steps=110, timed="always", pattern="host pause"),
    "all throttled": Scenario(throttled=(0, 1, 2, 3), share=0.25, pattern="common"),
    "link 2 hosts": Scenario(
        tp=2, dp=2, hosts=2, slow_host=1, want=(("communication", (1,)),),
    ),
    "link 3 hosts": Scenario(dp=3, hosts=3, slow_host=1, want=(("communication", (1,)),)),
    "link 4 hosts": Scenario(dp=4, hosts=4, slow_host=1, want=(("communication", (1,)),)),
    "link pp2dp2": Scenario(
        dp=2, pp=2, hosts=2, slow_host=1, rate="40mbit", want=(("communication", (1,)),),
    ),
    "link pp3": Scenario(dp=1, pp=3, hosts=3, slow_host=1, rate="40mbit", want=(("communication", (1,)),)),
    "quota pp2dp2 2 hosts": quota(2, dp=2, pp=2, hosts=2),
    "both 2 hosts": Scenario(
        tp=2, dp=2, hosts=2, slow_host=1, rate="200mbit", throttled=(0,), share=0.07,
        want=(("compute", (0,)), ("communication", (1,))),
    ),
}  # fmt: skip


@dataclass
class Truth:
    """What was done and when, beside the stream."""

    scenario: str
    run: int
    t_ns: int = 0  # when the fault began; 0 = there was none
    step: int = 0
    how: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    code: int = 0


class RunningJob:
    """A job under the shim: its output by line, its ranks' processes, its control page."""

    def __init__(self, what: Scenario, folder: Path, hosts: Hosts | None) -> None:
        self.rings = folder / f"rings-{os.getpid()}-{time.time_ns()}"
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("GHT_", "LD_PRELOAD"))}
        self.env |= {
            "PATH": f"{BIN}:{self.env['PATH']}", "GHT_DIR": str(self.rings), "GHT_JOB": "bed", "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self.lines: list[str] = []
        self.processes: list[subprocess.Popen[str]] = []
        script = [str(JOB), "--tp", str(what.tp), "--dp", str(what.dp), "--pp", str(what.pp)]
        script += ["--steps", str(what.steps), *what.args.split()]
        self._log = (folder / "job.log").open("a")
        log = self._log
        under = self.env | {"LD_PRELOAD": str(SHIM)}
        if hosts is None:
            words = ["torchrun", "--standalone", "--nproc-per-node", str(what.ranks), *script]
            self._start(words, under, log)
            return
        for host in range(hosts.count):
            words = [
                "torchrun", "--nnodes", str(hosts.count), "--node-rank", str(host), "--master-addr", hosts.address(0),
                "--master-port", "29517", "--nproc-per-node", str(what.ranks // hosts.count), *script,
            ]  # fmt: skip
            self._start(hosts.command(host, words), under | {"GLOO_SOCKET_IFNAME": hosts.interface(host)}, log)

    def _start(self, words: list[str], env: dict[str, str], log: Any) -> None:
        self.processes.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=log, text=True))
        os.set_blocking(self.processes[-1].stdout.fileno(), False)  # type: ignore[union-attr]

    @property
    def running(self) -> bool:
        """Whether any launcher still runs."""
        return any(process.poll() is None for process in self.processes)

    @property
    def step(self) -> int:
        """Newest step that was printed, -1 before the first."""
        self._read()
        newest = [line for line in self.lines[-8:] if line.startswith("step ")]
        return max((int(line.split()[1]) for line in newest), default=-1)

    def _read(self) -> None:
        """Take what the job has printed."""
        for process in self.processes:
            assert process.stdout is not None
            while not process.stdout.closed and (line := process.stdout.readline()):
                self.lines.append(line.rstrip("\n"))

    def wait(self, step: int, deadline: float) -> None:
        """Until a step has been printed; RuntimeError if the job ends or the deadline passes before."""
        while self.step < step:
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"the job never came to step {step}; it is at {self.step}")
            time.sleep(0.02)

    def pids(self) -> dict[int, int]:
        """Process of each rank."""
        return {ring.rank: ring.pid for ring in rings_in(self.rings / "bed")}

    def end(self) -> int:
        """Stop what still runs; the worst exit code."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._read()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.close()
        self._log.close()
        return int(max(abs(process.returncode) for process in self.processes))


def record(name: str, folder: Path, run: int = 0) -> Path:
    """Run a scenario once; the stream it left. Beside it NAME.json says what was done."""
    what = SCENARIOS[name]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace(' ', '-')}-{run}.ght"
    truth = Truth(name, run)
    deadline = time.monotonic() + DEADLINE_S
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(what.hosts)) if what.hosts else None
        job = RunningJob(what, folder, hosts)
        stack.callback(job.end)
        out = stack.enter_context(path.open("wb"))
        trace = subprocess.Popen(["gh-trace", "--quiet", "--job", "bed", "--wait-s", "60"], env=job.env, stdout=out)
        stack.callback(trace.kill)
        job.wait(BASELINE[0], deadline)
        page = stack.enter_context(ControlPage.create(job.rings / "bed"))
        if what.timed != "never":
            page.set_profiling(True, LEASE_S)
        if what.throttled or what.slow_host >= 0 or what.want:
            if what.timed == "chain":
                job.wait(BASELINE[1], deadline)
                page.set_profiling(False)
            job.wait(what.at, deadline)
            truth.t_ns, truth.step = time.time_ns(), job.step
            pids = job.pids()
            for rank in what.throttled:
                truth.how.append(f"rank {rank}: {stack.enter_context(Throttle(pids[rank], what.share)).how}")
            if hosts is not None and what.slow_host >= 0:
                hosts.slow_link(what.slow_host, what.rate)
                truth.how.append(f"host {what.slow_host}: {what.rate}")
            if what.timed == "chain":
                job.wait(what.at + NOTICED, deadline)
                page.set_profiling(True, LEASE_S)
        job.wait(what.steps - 1, deadline)
        while job.running and time.monotonic() < deadline:
            time.sleep(0.05)
        truth.code = job.end()
        trace.wait(30)
        truth.losses = [line for line in job.lines if line.startswith("step ")]
    subprocess.run(["rm", "-rf", str(job.rings)], check=False)
    path.with_suffix(".json").write_text(json.dumps(asdict(truth)))
    return path


@dataclass
class Outcome:
    """What gh-profile said of a stream."""

    verdict: str  # right, wrong or inconclusive
    iterations: int  # from the fault to the first name, -1 = none
    said: list[Suspect]
    noticed: int  # from the fault to gh-bocd's confirmed onset of the job, -1 = none
    iter_ms: tuple[float, float]  # median iteration before and after the fault
    explained: str


def judge(path: Path, explain: bool = False) -> Outcome:
    """Run gh-period, gh-bocd and gh-profile over a stream that was kept."""
    truth = Truth(**json.loads(path.with_suffix(".json").read_text()))
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "GHT_KEEP": "1"}
    made = path.with_suffix(".judged")
    words = f"gh-period -q '{path}' | gh-bocd -q | gh-profile {'--explain' if explain else '-q'} > '{made}'"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", words], env=env, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{path}: exit {done.returncode}: {done.stderr}")
    said: list[Suspect] = []
    begins: list[int] = []
    onsets: list[int] = []
    dur: list[tuple[int, int]] = []
    with made.open("rb") as file:
        for section in sections(_Whole(file), print):
            for record in section:
                if isinstance(record, Suspect):
                    said.append(record)
                elif isinstance(record, Iters) and record.rank == 0:
                    begins += record.t_ns.tolist()
                    dur += zip(record.t_ns.tolist(), record.dur_ns.tolist(), strict=True)
                elif isinstance(record, Change) and record.level == "job" and record.type in ("onset", "drift"):
                    onsets += [record.said_t_ns] if record.stage == "confirmed" else []
    made.unlink()

    def iterations(t_ns: int) -> int:
        return sum(truth.t_ns <= begin < t_ns for begin in begins)

    named = [s for s in said if s.verdict == "attributed" and (not truth.t_ns or s.t_ns >= truth.t_ns)]
    before = [d for t, d in dur if not truth.t_ns or t + d < truth.t_ns]
    after = [d for t, d in dur if truth.t_ns and t >= truth.t_ns]
    late = [t for t in onsets if truth.t_ns and t >= truth.t_ns]
    return Outcome(
        verdict_of(SCENARIOS[truth.scenario], said),
        iterations(named[0].t_ns) if named and truth.t_ns else -1,
        said,
        iterations(late[0]) if late else -1,
        (float(np.median(before or [0])) / 1e6, float(np.median(after or [0])) / 1e6),
        done.stderr,
    )


def verdict_of(what: Scenario, said: list[Suspect]) -> str:
    """right: all that is wanted is attributed, nothing else is, and the pattern was said; wrong: something else is."""
    named = {(s.cause, tuple(s.ranks), tuple(s.hosts)) for s in said if s.verdict == "attributed"}
    met = set()
    for cause, ranks, hosts in named:
        match = next((one for one in what.want if _meets(what, one, cause, ranks, hosts)), None)
        if match is None:
            return "wrong"
        met.add(match)
    if met != set(what.want):
        return "inconclusive"
    if what.pattern and not any(s.cause == what.pattern and s.verdict == "cleared" for s in said):
        return "inconclusive"
    return "right"


def _meets(
    what: Scenario, one: tuple[str, tuple[int, ...]], cause: str, ranks: tuple[int, ...], hosts: tuple[str, ...]
) -> bool:
    """A slow link is named if the host is in what was said, and no other host is blamed alone."""
    if cause != one[0]:
        return False
    if cause != "communication":
        return ranks == one[1]
    return f"node{what.slow_host}" in hosts


class _Whole:
    """A file as a framing.Source."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read1(self, size: int, /) -> bytes:
        """Some bytes."""
        data: bytes = self._file.read(size)
        return data


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["list", "record", "judge", "table"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("scenario", nargs="?", default="")
    parser.add_argument("runs", type=int, nargs="?", default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--explain", action="store_true")
    options = parser.parse_args()
    if options.what == "list":
        print("\n".join(SCENARIOS))
        return
    if options.what == "record":
        for run in range(options.first, options.first + options.runs):
            show(record(options.scenario, options.folder, run), options.explain)
        return
    if options.what == "table":
        table(options.folder)
        return
    for path in sorted(options.folder.glob("*.ght")):
        if path.with_suffix(".json").exists() and path.stem.startswith(options.scenario.replace(" ", "-")):
            show(path, options.explain)


def table(folder: Path) -> None:
    """All streams of a folder as a Markdown table, by scenario."""
    found: dict[str, list[Outcome]] = {}
    for path in sorted(folder.rglob("*.ght")):
        if path.with_suffix(".json").exists():
            found.setdefault(json.loads(path.with_suffix(".json").read_text())["scenario"], []).append(judge(path))
    print(
        "| scenario | runs | right | wrong | inconclusive | iterations from the fault to the name | ms before | after |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in (name for name in SCENARIOS if name in found):
        runs = found[name]
        count = [sum(run.verdict == verdict for run in runs) for verdict in ("right", "wrong", "inconclusive")]
        named = " ".join(str(run.iterations) for run in runs if run.iterations >= 0) or "-"
        before, after = (float(np.median([run.iter_ms[side] for run in runs])) for side in (0, 1))
        print(f"| {name} | {len(runs)} | {' | '.join(map(str, count))} | {named} | {before:.0f} | {after:.0f} |")


def show(path: Path, explain: bool) -> None:
    """One line for a stream, and what was said of it."""
    found = judge(path, explain)
    print(
        f"{path.stem}: {found.verdict}; named {found.iterations}, confirmed {found.noticed} iterations after the "
        f"fault; {found.iter_ms[0]:.0f} -> {found.iter_ms[1]:.0f} ms",
        flush=True,
    )
    if explain:
        print(found.explained, file=sys.stderr)
    for suspect in found.said:
        print(f"    {suspect.verdict} {suspect.what} {suspect.ranks} {suspect.hosts} {suspect.cause}: {suspect.text}")


if __name__ == "__main__":
    main()
