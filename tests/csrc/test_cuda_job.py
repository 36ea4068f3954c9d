# SPDX-License-Identifier: Apache-2.0
"""From NCCL's calls on four ranks to the name of the late one: shim, ring, gh-trace, gh-profile; and held in a pause.

The libraries under the shim are the tests' own and talk to nobody, so the ranks themselves say how long each
collective lasts. Everything above them is what a job with GPUs has.
"""

from __future__ import annotations

import io
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ghtools.job.control import ControlPage
from ghtools.job.native import SHIM
from ghtools.job.paths import JobDir, jobs, make_job_dir
from ghtools.job.pause import CouldNotTell, pause
from ghtools.job.ring import RingReader
from ghtools.stream.framing import read_records
from ghtools.stream.records import FLAG_DUR_INVALID, FLAG_EXEC, FLAG_PAUSED, Calls, Suspect
from tests.conftest import BIN
from tests.csrc.build import HERE, cc

ITERATIONS, COLLECTIVES, WORK_MS = 40, 4, 6
Ranks = list[subprocess.Popen[bytes]]


def start(folder: Path, env: dict[str, str], iterations: int, *more: str) -> Ranks:
    """Four ranks of job `j`; `more`: how late rank 2 is, and ms of transfer."""
    cuda = cc(folder / "libcuda.so.1", [HERE / "fakecuda.c"], "-Wl,-soname,libcuda.so.1")
    nccl = cc(folder / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2")
    program = cc(folder / "cuda_rank", [HERE / "cuda_rank.c"], str(cuda), str(nccl), f"-Wl,-rpath,{folder}")
    command = [str(program), str(iterations), str(WORK_MS), more[0], "2", *more[1:]]
    env = {**env, "GHT_JOB": "j", "WORLD_SIZE": "4", "FAKE_CUDA_REAL": "1", "LD_PRELOAD": str(SHIM)}
    return [subprocess.Popen(command, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(4)]


def ended(ranks: Ranks) -> bool:
    """All of them, and well."""
    return [rank.wait(timeout=60) for rank in ranks] == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("late", "named"), [(2.0, [2]), (1.0, [])])
def test_the_late_rank_is_named(late: float, named: list[int], tmp_path: Path, clean_env: dict[str, str]) -> None:
    with ControlPage.create(make_job_dir("j", Path(clean_env["GHT_DIR"]))) as page:
        page.set_profiling(True, 600.0)
    assert ended(start(tmp_path, clean_env, ITERATIONS, str(late)))
    calls = subprocess.run(
        [BIN / "gh-trace", "--job", "j", "--once", "-q"], env=clean_env, stdout=subprocess.PIPE, check=True
    ).stdout
    timed = Counter[int]()
    for record in read_records(io.BytesIO(calls)):
        if isinstance(record, Calls):
            timed[record.rank] += int(np.sum((record.flags & (FLAG_EXEC | FLAG_DUR_INVALID)) == FLAG_EXEC))
    assert len(timed) == 4 and min(timed.values()) > ITERATIONS * COLLECTIVES / 2
    judged = subprocess.run(
        [BIN / "gh-profile", "-q"], env=clean_env, input=calls, stdout=subprocess.PIPE, check=True
    ).stdout
    suspects = [r for r in read_records(io.BytesIO(judged)) if isinstance(r, Suspect)]
    attributed = [s for s in suspects if s.verdict == "attributed"]
    assert [s.ranks for s in attributed] == ([named] if named else [])
    assert all(s.what == "rank" and s.cause == "compute" for s in attributed)


def boundary(env: dict[str, str]) -> tuple[JobDir, dict[int, int]]:
    """The job once all its ranks make calls, and the first call of an iteration some way ahead."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = jobs(Path(env["GHT_DIR"]))
        if found and len(found[0].rings) == 4:
            made = []
            for file in found[0].rings:
                with RingReader(file.path) as ring:
                    made.append(ring.live().calls)
            if min(made) > 4 * COLLECTIVES:
                return found[0], dict.fromkeys(range(4), (max(made) // COLLECTIVES + 8) * COLLECTIVES)
        time.sleep(0.01)
    raise AssertionError("the ranks did not begin")


@pytest.mark.slow
def test_ranks_are_held_with_their_streams_done(tmp_path: Path, clean_env: dict[str, str]) -> None:
    ranks = start(tmp_path, clean_env, 80, "2.0")
    job, stops = boundary(clean_env)
    with pause(job, stops) as held:
        assert held.ranks == [0, 1, 2, 3]
    assert ended(ranks)
    for file in job.rings:
        with RingReader(file.path) as ring:
            records, _ = ring.drain()
        assert list(records["seq"][records["flags"] & FLAG_PAUSED != 0]) == [stops[file.rank]]


@pytest.mark.slow
def test_a_stream_that_is_far_behind_is_not_said_to_be_done(tmp_path: Path, clean_env: dict[str, str]) -> None:
    ranks = start(tmp_path, clean_env, 80, "1.0", "100")
    job, stops = boundary(clean_env)
    with pytest.raises(CouldNotTell, match="still had communication under way"), pause(job, stops, drain_s=0.2):
        pass
    assert ended(ranks)
