# SPDX-License-Identifier: Apache-2.0
"""What this machine's own torch records of a real job, read by gh-import."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ghtools.stream.records import FLAG_EXEC, OP_CODE, Calls, Comm, Iters, Job, Suspect
from tests.conftest import BIN, ROOT
from tests.source.feed import Fed, feed

pytestmark = [pytest.mark.system, pytest.mark.slow]
pytest.importorskip("torch", reason="torch is not installed")
RANKS, STEPS = 2, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("profiled")
    script = ROOT / "tests" / "jobs" / "profiled.py"
    job = [BIN / "torchrun", "--standalone", "--nproc-per-node", RANKS, script, made]
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, job)), env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return made


def fed(name: str, paths: list[Path]) -> Fed:
    return feed(name, *[path.read_bytes() for path in paths], names=[str(path) for path in paths])


def test_the_profiler(folder: Path) -> None:
    found = fed("kineto", [folder / f"rank{rank}.json.gz" for rank in range(RANKS)])
    assert found.reason == "done" and not found.said and found.of(Job)[-1].world_size == RANKS
    ends = []
    for rank in range(RANKS):
        runs = [c for c in found.of(Calls) if c.rank == rank and int(c.flags[0]) & FLAG_EXEC]
        op, end = np.concatenate([c.op for c in runs]), np.concatenate([c.t_ns + c.dur_ns for c in runs])
        assert int(min(c.dur_ns.min() for c in runs)) > 0
        assert [int((op == OP_CODE[kind]).sum()) for kind in ("all_gather", "barrier")] == [STEPS, STEPS]
        assert int((op == OP_CODE["all_reduce"]).sum()) == STEPS  # one bucket
        ends.append(end[op == OP_CODE["all_gather"]])
        steps = np.concatenate([i.index for i in found.of(Iters) if i.rank == rank])
        assert len(steps) == STEPS and set(np.diff(steps).tolist()) == {1}
    assert int(np.median(np.abs(ends[0] - ends[1]))) < 20_000_000  # one clock; two cores may be busy
    assert {tuple(comm.ranks) for comm in found.of(Comm)} == {tuple(range(RANKS))}
    assert len({comm.comm for comm in found.of(Comm)}) == 1


@pytest.mark.parametrize("kind", ["json", "pkl"])
def test_the_flight_recorder(folder: Path, kind: str) -> None:
    found = fed("flight-recorder", [folder / f"dump_rank_{rank}.{kind}" for rank in range(RANKS)])
    assert found.reason == "done" and not found.said and not found.of(Suspect)
    for calls in found.of(Calls):
        assert int((calls.op == OP_CODE["barrier"]).sum()) == STEPS + 1  # one was not profiled
    assert {tuple(comm.ranks) for comm in found.of(Comm)} == {tuple(range(RANKS))}
