# SPDX-License-Identifier: Apache-2.0
"""From NCCL's calls on four ranks to the name of the late one: shim, ring, gh-trace, gh-profile.

The libraries under the shim are the tests' own and talk to nobody, so the ranks themselves say how long each
collective lasts. Everything above them is what a job with GPUs has.
"""

from __future__ import annotations

import io
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ghtools.job.control import ControlPage
from ghtools.job.native import SHIM
from ghtools.job.paths import make_job_dir
from ghtools.stream.framing import read_records
from ghtools.stream.records import FLAG_DUR_INVALID, FLAG_EXEC, Calls, Suspect
from tests.conftest import BIN
from tests.csrc.build import HERE, cc

ITERATIONS, COLLECTIVES, WORK_MS = 40, 4, 6


@pytest.mark.slow
@pytest.mark.parametrize(("late", "named"), [(2.0, [2]), (1.0, [])])
def test_the_late_rank_is_named(late: float, named: list[int], tmp_path: Path, clean_env: dict[str, str]) -> None:
    cuda = cc(tmp_path / "libcuda.so.1", [HERE / "fakecuda.c"], "-Wl,-soname,libcuda.so.1")
    nccl = cc(tmp_path / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2")
    program = cc(tmp_path / "cuda_rank", [HERE / "cuda_rank.c"], str(cuda), str(nccl), f"-Wl,-rpath,{tmp_path}")
    with ControlPage.create(make_job_dir("j", Path(clean_env["GHT_DIR"]))) as page:
        page.set_profiling(True, 600.0)
    env = {**clean_env, "GHT_JOB": "j", "WORLD_SIZE": "4", "FAKE_CUDA_REAL": "1", "LD_PRELOAD": str(SHIM)}
    command = [str(program), str(ITERATIONS), str(WORK_MS), str(late), "2"]
    ranks = [subprocess.Popen(command, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(4)]
    assert [rank.wait(timeout=60) for rank in ranks] == [0] * 4
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
