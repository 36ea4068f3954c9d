# SPDX-License-Identifier: Apache-2.0
"""A job on two hosts (network namespaces, rings of their own) is held as one, over a real Redis."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ghtools.job.native import SHIM
from ghtools.job.pause import CouldNotTell
from ghtools.job.task import GEMM, Task
from ghtools.locate.bus_pause import stopped_over_bus
from ghtools.stream.bus_link import BusUrl, bus_url
from ghtools.stream.framing import sections
from ghtools.stream.records import Finding
from tests.bed.host import Hosts, unable
from tests.bed.redis_server import RedisServer
from tests.conftest import BIN, ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]
STEPS = 100_000  # it is ended
WORK = Task(GEMM, (128, 1, 1, 50_000_000, 0))


@dataclass
class Bed:
    """A running job on node0 and node1, each of which is served: a pipeline stage of 2 ranks each."""

    url: BusUrl
    redis: RedisServer
    hosts: Hosts
    env: dict[str, str]  # of host 0
    job: list[subprocess.Popen[str]]
    served: list[subprocess.Popen[bytes]]
    steps: Path

    def step(self) -> int:
        """The newest step that rank 0 has done."""
        return self.steps.read_text().count("\n") if self.steps.exists() else 0


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """One job for all tests of this file; the last one takes a part of it down."""
    pytest.importorskip("torch", reason="torch is not installed")
    if why := unable():
        pytest.skip(why)
    tmp_path = tmp_path_factory.mktemp("bed")
    clean_env = {key: value for key, value in os.environ.items() if not key.startswith(("GHT_", "LD_PRELOAD"))}
    clean_env["PATH"] = f"{BIN}:{clean_env['PATH']}"
    socket = f"/tmp/ght-test-{os.getpid()}.sock"  # namespaces share files, so Redis needs no network
    with ExitStack() as stack:
        stack.callback(lambda: Path(socket).unlink(missing_ok=True))
        redis = RedisServer(tmp_path, options=("--unixsocket", socket))
        stack.callback(redis.close)
        hosts = stack.enter_context(Hosts(2))
        made = Bed(bus_url(f"unix://{socket}"), redis, hosts, {}, [], [], tmp_path / "times.0")
        for host in range(2):
            env = {**clean_env, "GHT_DIR": str(tmp_path / f"rings{host}"), "GHT_JOB": "two", "OMP_NUM_THREADS": "1"}
            env |= {"GLOO_SOCKET_IFNAME": hosts.interface(host)}
            made.env = made.env or env
            train = [str(ROOT / "tests/jobs/mixed.py"), "--dp", "2", "--pp", "2"]
            train += ["--batch", "256", "--steps", str(STEPS)]
            words = ["torchrun", "--nnodes", "2", "--node-rank", str(host), "--master-addr", hosts.address(0)]
            words += ["--master-port", "29531", "--nproc-per-node", "2", *train, "--times", str(tmp_path / "times")]
            with open(tmp_path / f"log{host}", "w") as log:
                made.job.append(
                    subprocess.Popen(
                        hosts.command(host, words),
                        env={**env, "LD_PRELOAD": str(SHIM)},
                        stdout=log,
                        stderr=log,
                        text=True,
                    )
                )
                serve = hosts.command(host, ["gh-trace", "--serve", made.url.text, "--wait-s", "60"])
                made.served.append(subprocess.Popen(serve, env=env, stdout=subprocess.DEVNULL, stderr=log))
            stack.callback(made.served[-1].wait)
            stack.callback(made.served[-1].kill)
        for process in made.job:
            stack.callback(process.wait)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 90
        while made.step() < 20:
            assert time.monotonic() < deadline, (tmp_path / "log0").read_text()
            time.sleep(0.1)
        yield made


def test_ranks_of_all_hosts_stand_at_one_boundary_and_go_on(bed: Bed) -> None:
    said: list[str] = []
    for _ in range(3):
        with stopped_over_bus(bed.url, "two", said.append) as held:
            assert held.ranks == [0, 1, 2, 3]
            assert held.hosts == {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
            at = bed.step()
            results = held.run(dict.fromkeys(range(4), WORK), 10.0)
            assert {rank: result.status for rank, result in results.items()} == dict.fromkeys(range(4), 0)
            assert all(results[rank].values[0] == 1 for rank in range(4))  # one repeat
            assert bed.step() <= at + 1  # the step of the held call has been noted by then
        began = bed.step()
        deadline = time.monotonic() + 30
        while bed.step() < began + 3:
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
    assert not any("could not be matched" in line for line in said), said


@pytest.mark.long
def test_the_link_between_two_hosts_against_its_history(bed: Bed, tmp_path: Path) -> None:
    """There is no other link to compare it with; healthy runs are the history."""
    words = ["gh-validate-ring", "--job", "two", "--bus", bed.url.text, "--baseline", str(tmp_path / "links")]

    def run() -> tuple[int, list[Finding]]:
        done = subprocess.run(words, env=bed.env, capture_output=True, timeout=90, check=False)
        assert b"the job stood for" in done.stderr, done.stderr
        records = [record for section in sections(io.BytesIO(done.stdout), print) for record in section]
        return done.returncode, [record for record in records if isinstance(record, Finding)]

    assert run()[0] == 5
    for _ in range(2):
        code, found = run()
        assert code == 0, [one.text for one in found]
    bed.hosts.slow_link(1, "300mbit")
    try:
        code, found = run()
    finally:
        bed.hosts.heal_link(1)
    slow = [one for one in found if one.verdict == "confirmed"]
    assert code == 1 and [(one.what, one.hosts) for one in slow] == [("link", ["node0", "node1"])], found
    assert slow[0].ratio > 5


def test_without_redis_the_job_goes_on_within_the_lease(bed: Bed) -> None:
    with pytest.raises(CouldNotTell), stopped_over_bus(bed.url, "two", print) as held:
        at = bed.step()
        bed.redis.kill()
        deadline = time.monotonic() + 40
        while bed.step() < at + 3:  # nobody tells the ranks to go on
            assert time.monotonic() < deadline
            time.sleep(0.1)
        bed.redis.start()
        held.run(dict.fromkeys(range(4), WORK), 5.0)


def test_the_death_of_a_hosts_tracer_ends_the_test_and_its_ranks_go_on_within_the_lease(bed: Bed) -> None:
    with pytest.raises(CouldNotTell), stopped_over_bus(bed.url, "two", print) as held:
        at = bed.step()
        bed.served[1].kill()
        held.run(dict.fromkeys(range(4), WORK), 2.0)
    deadline = time.monotonic() + 30
    while bed.step() < at + 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
