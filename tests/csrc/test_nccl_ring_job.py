# SPDX-License-Identifier: Apache-2.0
"""From held ranks of a job on NCCL's ABI to the name of the slow link: shim, pause, NcclFabric, RingTest.

The libraries under the shim are the tests' own: they move the data between the processes, at a rate that one pair does
not have. Everything above them is what a job with GPUs has.
"""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ghtools.job.budget import Bounded
from ghtools.job.pause import CouldNotTell, HeldRanks, pause
from ghtools.job.ring import RingReader
from ghtools.locate.passes import ring
from ghtools.locate.ring_fabric import Plan
from ghtools.locate.ring_nccl import NcclFabric, nccl_or_tcp
from ghtools.locate.ring_test import RingTest
from ghtools.stream.errors import Exit
from ghtools.stream.framing import read_records
from ghtools.stream.records import Finding
from tests.conftest import BIN
from tests.csrc.test_cuda_job import boundary, ended, start

PLAN = Plan(sizes=(1 << 20, 2 << 20), repeats=3).for_job()


@contextmanager
def held(tmp_path: Path, env: dict[str, str], **more: str) -> Iterator[HeldRanks]:
    """Four ranks that stand at a boundary; they must end well, and NCCL's calls in their rings must be their own."""
    channels = tmp_path / "channels"
    channels.mkdir()
    env = {**env, "FAKE_NCCL_DIR": str(channels), "FAKE_NCCL_RATE": "200", **more}
    ranks = start(tmp_path, env, 80, "1.0")
    try:
        job, stops = boundary(env)
        with pause(job, stops) as made:
            yield made
        assert ended(ranks)
        for file in job.rings:
            with RingReader(file.path) as reader:
                records, lost = reader.drain()
                assert reader.live().calls == len(records) + lost == 80 * 4
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def launched(tmp_path: Path) -> list[int]:
    return [int(np.fromfile(path, np.uint64, 3)[2]) for path in sorted((tmp_path / "channels").glob("count-*"))]


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["", "2-3"])
def test_the_slow_link_is_named(slow: str, tmp_path: Path, clean_env: dict[str, str]) -> None:
    said: list[str] = []
    more = {"FAKE_NCCL_SLOW": f"{slow}=40"} if slow else {}
    with held(tmp_path, clean_env, **more) as ranks:
        fabric = nccl_or_tcp(ranks, [0, 1, 2, 3], "lo", said.append)
        assert isinstance(fabric, NcclFabric), said
        test = RingTest(fabric, ring(4), PLAN, "a ring", said.append, said.append)
        made = list(test.run())
        fabric.close()
    assert all(one.ok and one.latency_ns > 0 for one in test.seen)
    found = [record for record in made if isinstance(record, Finding)]
    assert (test.code, [f.ranks for f in found if f.verdict == "confirmed"]) == (
        (Exit.SLOW, [[2, 3]]) if slow else (Exit.OK, [])
    ), said
    assert all("over NCCL" in finding.by for finding in found)
    assert min(launched(tmp_path)) > 0


@pytest.mark.slow
def test_the_command_names_it(tmp_path: Path, clean_env: dict[str, str]) -> None:
    """As a user has it: the boundary is found, the job held, the link named, the job goes on."""
    (tmp_path / "channels").mkdir()
    fakes = {"FAKE_NCCL_DIR": str(tmp_path / "channels"), "FAKE_NCCL_RATE": "400", "FAKE_NCCL_SLOW": "1-2=60"}
    ranks = start(tmp_path, {**clean_env, **fakes}, 450, "1.0")
    boundary(clean_env)
    done = subprocess.run(
        [BIN / "gh-validate-ring", "--job", "j", "--backend", "nccl", "--sizes", "1M,2M", "--interface", "lo"],
        env=clean_env, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.SLOW, done.stderr
    found = [r for r in read_records(io.BytesIO(done.stdout)) if isinstance(r, Finding) and r.verdict == "confirmed"]
    assert [(f.ranks, f.by) for f in found] == [([1, 2], "gh-validate-ring over NCCL")]
    assert ended(ranks)


@pytest.mark.slow
def test_a_rank_that_cannot_is_said_and_all_go_over_tcp(tmp_path: Path, clean_env: dict[str, str]) -> None:
    said: list[str] = []
    with held(tmp_path, clean_env) as ranks:
        fabric = nccl_or_tcp(ranks, [0], "lo", said.append)  # a communicator of one has no other end
        assert fabric.by == "TCP" and "no communicator of NCCL" in said[0]
        fabric.close()
    assert launched(tmp_path) == []


@pytest.mark.slow
def test_a_failure_breaks_the_test_off_and_the_job_is_let_go(tmp_path: Path, clean_env: dict[str, str]) -> None:
    with held(tmp_path, clean_env, FAKE_NCCL_CORRUPT_AT="72") as ranks:
        # After the warm-up and the pings, 1 and 66, the last of the five of the first size.
        fabric = nccl_or_tcp(Bounded(ranks, 4.0), [0, 1, 2, 3], "lo", print)
        with pytest.raises(CouldNotTell, match="comparing what has come with what was sent"):
            list(RingTest(fabric, ring(4), PLAN, "a ring", print, print).run())
