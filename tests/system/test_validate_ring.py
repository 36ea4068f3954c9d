# SPDX-License-Identifier: Apache-2.0
"""gh-validate-ring on this machine: healthy ranks, a rank under a quota, a slow NIC between namespaces, a launcher."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ghtools.stream.framing import sections
from ghtools.stream.records import Finding, Job, Link, Record
from tests.bed import host
from tests.bed.throttle import Throttle

pytestmark = [pytest.mark.system, pytest.mark.slow]
COMMAND = str(Path(sys.executable).parent / "gh-validate-ring")
SMALL = ["--sizes", "2M,4M"]


def records(stream: bytes) -> list[Record]:
    found: list[Record] = []
    for section in sections(io.BytesIO(stream), lambda error: pytest.fail(str(error))):
        found += list(section)
    return found


def findings(stream: bytes) -> list[tuple[str, str, list[int]]]:
    return [(one.verdict, one.what, one.ranks) for one in records(stream) if isinstance(one, Finding)]


def run(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([COMMAND, *words], capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("ranks", "topology", "links", "passes"),
    [(16, "ring", 16, 2), (15, "ring", 15, 3), (16, "both", None, 6), (15, "tree", None, 4)],
)
def test_healthy_ranks(ranks: int, topology: str, links: int | None, passes: int) -> None:
    done = run("--ranks", f"0-{ranks - 1}", "--topology", topology, *SMALL)
    assert done.returncode == 0, done.stderr.decode()
    made = records(done.stdout)
    first = [one for one in made if isinstance(one, Link) and one.facts["phase"] == "pass"]
    pairs = {(one.step, frozenset(one.ranks)) for one in first}
    said = re.search(rb"ranks in (\d) passes", done.stderr)
    assert said and int(said[1]) <= passes
    assert {step for step, _ in pairs} == set(range(int(said[1])))
    for step in range(passes):
        members = [rank for at, pair in pairs if at == step for rank in pair]
        assert len(members) == len(set(members))
    if links:
        assert len(pairs) == links
        assert {pair for _, pair in pairs} == {frozenset((r, (r + 1) % ranks)) for r in range(ranks)}
    assert {rank for one in first for rank in one.ranks} == set(range(ranks))
    assert {one.type for one in first} == {"loopback"}
    (job,) = [one for one in made if isinstance(one, Job)]
    assert len({rank["pid"] for rank in job.ranks}) == ranks
    assert [one[0] for one in findings(done.stdout)] == ["cleared"]


@pytest.mark.parametrize(
    ("ranks", "topology", "victim"), [(16, "ring", 5), pytest.param(8, "both", 2, marks=pytest.mark.long)]
)
def test_a_rank_under_a_quota_is_named(ranks: int, topology: str, victim: int) -> None:
    words = [COMMAND, "--ranks", f"0-{ranks - 1}", "--topology", topology, "--sizes", "8M,16M", "-v"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        first = process.stderr.readline().decode()
        found = re.search(rf"\b{victim}: (\d+)", first)
        assert found, first
        with Throttle(int(found[1]), 0.03):
            out, said = process.communicate(timeout=200)
    assert process.returncode == 1, said.decode()
    named = [(what, who) for verdict, what, who in findings(out) if verdict == "confirmed"]
    assert named == [("rank", [victim])], said.decode()


@pytest.mark.skipif(bool(host.unable()), reason=host.unable() or "")
@pytest.mark.long
@pytest.mark.parametrize("slow", [-1, 2])
def test_hosts(slow: int, tmp_path: Path) -> None:
    """Six ranks on as many hosts; the NIC of one at a fraction of what the others do."""
    with host.Hosts(6) as hosts:
        if slow >= 0:
            hosts.slow_link(slow, "60mbit")
        processes = []
        for rank in range(6):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "6", "GLOO_SOCKET_IFNAME": hosts.interface(rank)}
            words = hosts.command(rank, [COMMAND, "--gather", str(tmp_path), "--sizes", "1M,2M"])
            processes.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        done = [process.communicate(timeout=100) for process in processes]
        codes = [process.returncode for process in processes]
        said = done[0][1].decode()
        assert codes == [int(slow >= 0), 0, 0, 0, 0, 0], said
        assert not any(out for out, _ in done[1:])
        made = [one for one in records(done[0][0]) if isinstance(one, Link)]
        assert {one.type for one in made} == {"network"}
        assert {name for one in made for name in one.facts["interfaces"]} == {hosts.interface(n) for n in range(6)}
        named = [one for one in records(done[0][0]) if isinstance(one, Finding)]
        if slow >= 0:
            assert [(one.what, one.ranks, one.hosts) for one in named] == [("rank", [slow], [f"node{slow}"])], said
        else:
            assert [one.verdict for one in named] == ["cleared"]


def test_torchrun() -> None:
    """By torch.distributed over gloo: rank 0 writes, all exchange."""
    pytest.importorskip("torch", reason="torch is not installed")
    torchrun = str(Path(sys.executable).parent / "torchrun")
    words = ["--standalone", "--nproc-per-node", "4", "--no-python", COMMAND, "--backend", "gloo", "--sizes", "1M,4M"]
    done = subprocess.run([torchrun, *words], capture_output=True, timeout=200, check=False)
    # Four ranks on a busy machine may be too few to tell; torchrun makes its own code of ours.
    made = records(done.stdout)
    links = [one for one in made if isinstance(one, Link) and one.facts["phase"] == "pass"]
    assert {frozenset(one.ranks) for one in links} == {frozenset(pair) for pair in ((0, 1), (1, 2), (2, 3), (3, 0))}
    assert {one.facts["by"] for one in links} == {"gloo"}
    assert len(links) == 4 * 2 * 2 * 3, done.stderr.decode()
    assert not [one for one in findings(done.stdout) if one[0] == "confirmed"], done.stderr.decode()
