# SPDX-License-Identifier: Apache-2.0
"""gh-run names the slow rank of a real job by itself; gh-trace has executions timed, here and from afar."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ghtools.job.auto_profile_bus import BusAsker
from ghtools.job.control import ControlPage
from ghtools.job.paths import rings_in
from ghtools.job.ring import RingReader
from ghtools.stream.bus_link import bus_url
from ghtools.stream.framing import read_records
from ghtools.stream.records import FLAG_EXEC, Alert, Calls, Iters, Job, Record, Suspect
from tests.bed.redis_server import RedisServer, free_port
from tests.bed.throttle import Throttle
from tests.conftest import ROOT
from tests.csrc.conftest import Fakes, fakes, shim_env

__all__ = ["fakes", "shim_env"]
pytestmark = [pytest.mark.system, pytest.mark.slow]
Env = dict[str, str]
TRAIN = str(ROOT / "tests" / "demo" / "train.py")


def torchrun(steps: int, ranks: int) -> list[str]:
    """A job whose batches take a while to come, so that other load on the machine does not slow it much."""
    pytest.importorskip("torch", reason="torch is not installed")
    words = ["torchrun", "--nproc-per-node", str(ranks), TRAIN, "--steps", str(steps)]
    return [*words, "--batch", "8", "--load-ms", "120"]


def wait_for(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"step {step} "):
            return
    raise AssertionError(f"the job never came to step {step}")


def records(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        yield from read_records(file)


@pytest.mark.timeout(240)
def test_the_slow_rank_of_a_real_job_is_named(clean_env: Env, tmp_path: Path) -> None:
    out = tmp_path / "job.ght"
    command = ["gh-run", "--job", "n", "--out", str(out), "--", *torchrun(118, 4)]
    process = subprocess.Popen(command, env=clean_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(process, 80)
    pid = next(ring.pid for ring in rings_in(Path(clean_env["GHT_DIR"]) / "n") if ring.rank == 1)
    with Throttle(pid, 0.04):
        _, said = process.communicate(timeout=180)
    assert process.returncode == 0, said
    made = list(records(out))
    named = [r for r in made if isinstance(r, Suspect) and r.verdict == "attributed"]
    assert named[0].cause == "compute"
    assert {(s.what, *s.ranks) for s in named} == {("rank", 1)}, said
    alerts = [r for r in made if isinstance(r, Alert) and r.state == "named"]
    assert [one.suspects[0]["ranks"] for one in alerts] == [[1], [1]], said  # named, and then tested
    assert [one.suspects[0]["verdict"] for one in alerts] == ["attributed", "confirmed"]
    assert alerts[1].suspects[0]["by"] == "gemm" and alerts[1].suspects[0]["why"] == "throttled"
    assert said.count("the job stood for") == 1
    lines = said.splitlines()
    assert any("rank 1 " in line and ": compute " in line and "attributed" in line for line in lines), said
    assert any(line.startswith("ghtools: episode: ") and "; rank 1 " in line for line in lines), said
    # Executions were timed in stretches, not all the time.
    begins = [int(t) for r in made if isinstance(r, Iters) and r.rank == 0 for t in r.t_ns]
    timed = [int(t) for r in made if isinstance(r, Calls) and r.rank == 0 for t in r.t_ns[(r.flags & FLAG_EXEC) != 0]]
    iterations = {sum(begin <= t for begin in begins) for t in timed}
    assert 30 <= len(iterations) < 70


@pytest.mark.timeout(280)
@pytest.mark.long
def test_a_slow_rank_of_another_host_is_named(clean_env: Env, tmp_path: Path) -> None:
    """Host 0 sees the job get slow, has all hosts time executions over Redis, and names a rank of host 1."""
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    outs = [tmp_path / f"out{node}.ght" for node in range(2)]
    hosts: list[subprocess.Popen[str]] = []
    try:
        meet = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        for node in range(2):
            env = clean_env | {"GHT_REDIS_URL": server.url, "GHT_DIR": str(tmp_path / f"rings{node}")}
            job = torchrun(110, 2)
            job[1:1] = [*meet, "--node-rank", str(node)]
            watch = ["gh-run", "--bus", "-", "--job", "b", "--out", str(outs[node]), "--", *job]
            hosts.append(
                subprocess.Popen(watch, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )  # fmt: skip
        wait_for_step(hosts[0], 70)
        pid = next(ring.pid for ring in rings_in(tmp_path / "rings1" / "b") if ring.rank == 3)
        with Throttle(pid, 0.04):
            said = [host.communicate(timeout=200)[1] for host in hosts]
        assert [host.returncode for host in hosts] == [0, 0], said
        alerts = [r for r in records(outs[0]) if isinstance(r, Alert) and r.state == "named"]
        assert alerts and all(alert.suspects[0]["ranks"] == [3] for alert in alerts), said
        timed = {r.rank for r in records(outs[0]) if isinstance(r, Calls) and (r.flags & FLAG_EXEC).any()}
        assert timed == {0, 1, 2, 3}, "host 1 was asked, too"
    finally:
        for host in hosts:
            if host.poll() is None:
                host.kill()
                host.communicate()
        server.close()


@pytest.mark.timeout(180)
@pytest.mark.long
def test_gh_trace_times_a_number_of_iterations(clean_env: Env, tmp_path: Path) -> None:
    out = tmp_path / "trace.ght"
    command = ["gh-run", "--job", "p", "--pipe", "gh-trace", "--", *torchrun(90, 2)]
    job = subprocess.Popen(command, env=clean_env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    wait_for_step(job, 10)
    with out.open("wb") as file:
        trace = subprocess.Popen(
            ["gh-trace", "--profile", "20"], env=clean_env, stdout=file, stderr=subprocess.PIPE, text=True
        )
        page = Path(clean_env["GHT_DIR"]) / "p"
        wait_for(lambda: ControlPage.open(page).read().profiling, "executions are asked for")
        wait_for(lambda: not ControlPage.open(page).read().profiling, "and no longer")
        _, said = trace.communicate(timeout=120)
    job.communicate(timeout=60)
    assert (job.returncode, trace.returncode) == (0, 0), said
    assert "executions are timed from now on, for 20 iterations" in said
    assert "executions are no longer timed: it ended after 2" in said
    made = [r for r in records(out) if isinstance(r, Calls)]
    assert {r.rank for r in made if (r.flags & FLAG_EXEC).any()} == {0, 1}
    runs = [int(t) for r in made for t in r.t_ns[(r.flags & FLAG_EXEC) != 0]]
    calls = [int(t) for r in made for t in r.t_ns[(r.flags & FLAG_EXEC) == 0]]
    assert runs and max(calls) - max(runs) > 2e9, "the job went on untimed"


def test_gh_trace_that_dies_leaves_nothing_on(fakes: Fakes, shim_env: Env) -> None:
    with subprocess.Popen(
        [str(fakes.driver), "hold", "10"], env=shim_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin and child.stdout and child.stdout.readline() == b"ready\n"
        folder = Path(shim_env["GHT_DIR"]) / "t"
        env = {key: value for key, value in shim_env.items() if key != "LD_PRELOAD"}
        trace = subprocess.Popen(
            ["gh-trace", "--profile", "1000"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with ControlPage.open(folder) as page, RingReader(rings_in(folder)[0].path) as ring:
            wait_for(lambda: page.read().profiling, "executions are asked for")
            child.stdin.write(b"x")
            child.stdin.flush()
            wait_for(lambda: ring.live().profiling, "the rank times them")
            trace.kill()
            trace.communicate()
            assert 0 < page.read().profiling_left_s <= 10
            wait_for(lambda: not page.read().profiling, "the lease runs out", 15)
            child.stdin.write(b"x")
            child.stdin.flush()
            wait_for(lambda: not ring.live().profiling, "the rank has let go")
        child.stdin.close()


def test_a_host_is_asked_from_afar(fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    """What gh-run --bus on host 0 does when the job gets slow, and gh-trace --serve on every host."""
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    try:
        with subprocess.Popen(
            [str(fakes.driver), "hold", "10"], env=shim_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdin and child.stdout and child.stdout.readline() == b"ready\n"
            env = {key: value for key, value in shim_env.items() if key != "LD_PRELOAD"}
            env["GHT_REDIS_URL"] = server.url
            trace = subprocess.Popen(
                ["gh-trace", "--serve", "-"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=False
            )
            said: list[str] = []
            asker = BusAsker(bus_url(server.url), "t", said.append)
            asker.feed(Job(ranks=[{"rank": 0, "host": "elsewhere"}]))
            with ControlPage.open(Path(shim_env["GHT_DIR"]) / "t") as page:
                asker(30.0)
                wait_for(lambda: page.read().profiling, "the request arrives")
                asker(0.0)
                wait_for(lambda: not page.read().profiling, "it is taken back")
            asker.close()
            assert said == []
            child.stdin.close()
            child.wait(20)
            _, err = trace.communicate(timeout=60)
            assert trace.returncode == 0 and b"Traceback" not in err
    finally:
        server.close()


def test_what_cannot_be_timed_is_refused(clean_env: Env) -> None:
    for words in (["--once", "--profile", "3"], ["--attach", "1", "--profile", "3"]):
        done = subprocess.run(["gh-trace", *words], env=clean_env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "sees calls only" in done.stderr
