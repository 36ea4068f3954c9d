# SPDX-License-Identifier: Apache-2.0
"""Real torch jobs under gh-run: whatever happens beside them, they end as they would have."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]
pytest.importorskip("torch", reason="torch is not installed")
Env = dict[str, str]
TRAIN = str(ROOT / "tests" / "demo" / "train.py")


def torchrun(steps: int, ranks: int = 2) -> list[str]:
    return ["torchrun", "--nproc-per-node", str(ranks), TRAIN, "--steps", str(steps), "--batch", "2", "--length", "16"]


def stages_of(pid: int) -> dict[str, int]:
    """The chain's processes: children of gh-run that are not the job."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        name = next((Path(word).name for word in words[:2] if Path(word).name.startswith("gh-")), "")
        if int(stat[1]) == pid and name:
            found[name] = int(entry.name)
    return found


def losses(text: str) -> list[str]:
    """What the job printed, less the times in it."""
    return [line.rpartition(" s")[0].rpartition(" ")[0] for line in text.splitlines() if line.startswith("step ")]


def wait_for_step(process: subprocess.Popen[str], step: int) -> list[str]:
    """Read the job's output until it is at a step."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith(f"step {step} "):
            return lines
    raise AssertionError(f"the job never came to step {step}: {''.join(lines)}")


@pytest.fixture(scope="module")
def plain_losses() -> list[str]:
    """What the job prints without ghtools."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GHT_", "LD_PRELOAD"))}
    from tests.conftest import BIN

    env["PATH"] = f"{BIN}:{env['PATH']}"
    done = subprocess.run(
        torchrun(60), env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=True
    )
    return losses(done.stdout)


def test_a_watched_job_computes_the_same(clean_env: Env, plain_losses: list[str], tmp_path: Path) -> None:
    out = tmp_path / "job.ght"
    done = subprocess.run(
        ["gh-run", "--out", str(out), "--", *torchrun(60)], env=clean_env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == plain_losses
    assert "watching job" in done.stderr
    assert "iteration found" in done.stderr
    assert "job ended (exit 0)" in done.stderr
    assert subprocess.run(["gh-show", str(out)], env=clean_env, capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "stage",
    ["gh-trace", "gh-period", "gh-bocd", "gh-profile", "gh-validate-gemm", "gh-validate-ring", "gh-alert"],
)
def test_killing_a_stage_leaves_the_job_alone(clean_env: Env, plain_losses: list[str], stage: str) -> None:
    process = subprocess.Popen(
        ["gh-run", "--", *torchrun(60)], env=clean_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = wait_for_step(process, 20)
    os.kill(stages_of(process.pid)[stage], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert losses("".join(lines) + out) == plain_losses
    assert f"{stage} ended (signal 9); the job goes on unwatched" in err


def test_a_full_ring_directory_leaves_the_job_alone(clean_env: Env, plain_losses: list[str], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    try:
        (place / "fill").write_bytes(b"\0" * 60_000)
        done = subprocess.run(
            ["gh-run", "--", *torchrun(60)],
            env=clean_env | {"GHT_DIR": str(place)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == plain_losses
    assert "no communication call was seen" in done.stderr


def test_the_chain_from_another_terminal(clean_env: Env) -> None:
    job = subprocess.Popen(
        ["gh-run", "--pipe", "gh-trace", "--", *torchrun(150)],
        env=clean_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for_step(job, 10)
    done = subprocess.run(
        ["bash", "-c", "gh-trace | gh-bocd --keep | gh-alert"],
        env=clean_env,
        capture_output=True,
        timeout=120,
    )
    job.communicate(timeout=60)
    assert (job.returncode, done.returncode) == (0, 0), done.stderr
    shown = subprocess.run(
        ["gh-show", "--json", "--kinds", "iters"], env=clean_env, input=done.stdout, capture_output=True, timeout=60
    )
    assert shown.stdout.count(b'"kind"') > 150  # iterations of two ranks were found


def test_attach_and_list(clean_env: Env) -> None:
    job = subprocess.Popen(
        ["gh-run", "--job", "j7", "--pipe", "gh-trace", "--", *torchrun(100)],
        env=clean_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for_step(job, 10)
    listed = subprocess.run(["gh-trace", "--list"], env=clean_env, capture_output=True, text=True, timeout=30).stdout
    assert [line.split()[:3] for line in listed.splitlines()[1:]] == [["j7", "running", "2"]]
    second = subprocess.run(["gh-run", "--attach", "j7"], env=clean_env, capture_output=True, text=True, timeout=120)
    job.communicate(timeout=60)
    assert second.returncode == 0
    assert "watching job j7: 2 ranks, gloo" in second.stderr


def test_a_reader_that_stops_reading_slows_nothing(clean_env: Env, plain_losses: list[str]) -> None:
    done = subprocess.run(
        ["gh-run", "--pipe", "gh-trace | sleep 10", "--", *torchrun(60)],
        env=clean_env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == plain_losses
