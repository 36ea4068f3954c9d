# SPDX-License-Identifier: Apache-2.0
"""gh-validate-gemm inside a real job, one rank of which has a CPU quota: by --job, and as a filter."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from ghtools.job import paths
from ghtools.job.native import SHIM
from ghtools.stream.framing import encode, sections
from ghtools.stream.records import Change, End, Finding, Gemm, Head, Record, Suspect, Unknown
from tests.bed.throttle import Throttle
from tests.conftest import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]
Env = dict[str, str]
COMMAND = [str(Path(sys.executable).parent / "gh-validate-gemm")]
SLOW = 2
SHARE = 0.12


@pytest.fixture
def job(clean_env: Env, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """A 4-rank job under the shim; its ranks' process ids."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("GHT_DIR", clean_env["GHT_DIR"])
    script = [str(ROOT / "tests/jobs/mixed.py"), "--steps", "100000", "--dp", "4", "--batch", "256"]
    env = {**clean_env, "LD_PRELOAD": str(SHIM), "GHT_JOB": "gemm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["torchrun", "--standalone", "--nproc-per-node", "4", *script], env=env, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            rings = paths.rings_in(paths.job_path("gemm")) if paths.job_path("gemm").exists() else []
            if {ring.rank for ring in rings} == {0, 1, 2, 3}:
                break
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(5)
        yield {ring.rank: ring.pid for ring in rings}
        assert process.poll() is None, "the job ended"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def records(stream: bytes) -> list[Record]:
    found: list[Record] = []
    for section in sections(io.BytesIO(stream), lambda error: pytest.fail(str(error))):
        found += list(section)
    return found


def test_a_throttled_rank_of_a_job_is_confirmed(job: dict[int, int], clean_env: Env) -> None:
    with Throttle(job[SLOW], SHARE) as throttle:
        time.sleep(2)
        done = subprocess.run([*COMMAND, "--job", "gemm"], env=clean_env, capture_output=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    made = records(done.stdout)
    slow = [record for record in made if isinstance(record, Finding) and record.verdict == "confirmed"]
    assert [finding.ranks for finding in slow] == [[SLOW]], done.stderr
    if "cgroup" in throttle.how:
        assert slow[0].evidence["why"] == "throttled"
        gemms = [record for record in made if isinstance(record, Gemm) and record.test == "gemm"]
        others = median(gemm.facts["cpu_share"] for gemm in gemms if gemm.rank != SLOW)
        (ratio,) = (test["ratio"] for test in slow[0].evidence["tests"] if test["test"] == "gemm")
        assert ratio == pytest.approx(others / SHARE, rel=0.2)
        assert {gemm.facts.get("quota_cpus", 0) for gemm in gemms if gemm.rank == SLOW} == {SHARE}
    assert b"the job stood for" in done.stderr


def test_as_a_filter_it_tests_whom_it_is_told_and_forwards_all(job: dict[int, int], clean_env: Env) -> None:
    suspect = Suspect(what="rank", ranks=[SLOW], cause="compute", verdict="attributed")
    given: list[Record] = [
        Head(tool="test", job="gemm"), Change(stage="confirmed"), suspect, suspect, Unknown(extra={"kind": "x"}), End(),
    ]  # fmt: skip
    with Throttle(job[SLOW], SHARE):
        time.sleep(2)
        done = subprocess.run(
            [*COMMAND, "--suspects", "-"],
            env=clean_env, input=b"".join(map(encode, given)), capture_output=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = records(done.stdout)
    assert [record.kind for record in made if record.kind in ("change", "suspect", "")] == [
        "change", "suspect", "suspect", "",
    ]  # fmt: skip
    findings = [record for record in made if isinstance(record, Finding)]
    assert [(finding.ranks, finding.verdict) for finding in findings] == [([SLOW], "confirmed")], done.stderr
    assert {record.rank for record in made if isinstance(record, Gemm)} == {0, 1, 2, 3}


def test_a_job_that_is_not_there_is_a_finding_of_the_filter(clean_env: Env) -> None:
    suspect = Suspect(what="rank", ranks=[1], cause="compute", verdict="attributed")
    stream = b"".join(map(encode, [Head(tool="test", job="no-such-job"), suspect, End()]))
    done = subprocess.run(
        [*COMMAND, "--suspects", "-"], env=clean_env, input=stream, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (finding,) = [record for record in records(done.stdout) if isinstance(record, Finding)]
    assert finding.verdict == "could not tell" and "no-such-job" in finding.text
