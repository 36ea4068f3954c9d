# SPDX-License-Identifier: Apache-2.0
"""A real job that is held at boundaries ends with the losses, to the last bit, of one that is not."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from ghtools.job.native import SHIM
from ghtools.job.pause import CouldNotTell
from ghtools.job.task import GEMM, Task
from ghtools.locate.in_job import stopped
from ghtools.stream.errors import MissingError
from tests.conftest import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]
Env = dict[str, str]


def start(env: Env, out: Path, *options: str) -> subprocess.Popen[str]:
    """A 4-rank job under the shim, named as the file `out`, to which it writes the loss of each step."""
    script = [str(ROOT / "tests/jobs/mixed.py"), *options]
    command = ["torchrun", "--standalone", "--nproc-per-node", "4", *script]
    env = {**env, "LD_PRELOAD": str(SHIM), "GHT_JOB": out.name, "OMP_NUM_THREADS": "1"}
    with open(out, "a") as file:  # each line goes to the end, whoever writes
        return subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.PIPE, text=True)


def losses(out: Path) -> list[tuple[str, ...]]:
    """Step, replica and loss as printed, sorted; the lines of several ranks may run into one another."""
    return sorted(re.findall(r"step (\d+) replica (\d+) loss (\d+\.\d+(?:e-?\d+)?)", out.read_text()))


@pytest.mark.parametrize(
    ("layout", "steps", "slots"),
    [("--dp 4", 200, 65536), pytest.param("--tp 2 --pp 2", 70, 512, marks=pytest.mark.long)],
)
def test_losses_are_those_of_a_job_that_was_never_held(
    layout: str, steps: int, slots: int, clean_env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few slots the first calls are long gone when the job is held."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("GHT_DIR", clean_env["GHT_DIR"])
    options = [*layout.split(), "--batch", "256", "--steps", str(steps)]
    plain = start(clean_env, tmp_path / "plain", *options)
    _, err = plain.communicate(timeout=120)
    assert plain.returncode == 0, err
    job = start(clean_env | {"GHT_RING_SLOTS": str(slots)}, tmp_path / "held", *options)
    said: list[str] = []
    held = 0
    try:
        while job.poll() is None:
            try:
                with stopped("held", said.append, find_s=20.0) as ranks:
                    assert ranks.ranks == [0, 1, 2, 3]
                    done = ranks.run(dict.fromkeys(range(4), Task(GEMM, (128, 1, 1, 50_000_000, 0))), 10.0)
                    assert [done[rank].status for rank in range(4)] == [0] * 4
                    held += 1
            except MissingError:
                time.sleep(0.1)  # it has not begun yet
            except CouldNotTell as error:
                said.append(str(error))
                if "it has ended" in str(error):
                    break
    finally:
        _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    assert held >= 2, said
    assert not any("could not be matched" in line for line in said), said
    assert losses(tmp_path / "held") == losses(tmp_path / "plain")
    assert len(losses(tmp_path / "plain")) >= steps
