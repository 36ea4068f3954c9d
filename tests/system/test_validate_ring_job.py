# SPDX-License-Identifier: Apache-2.0
"""gh-validate-ring inside a real job: by --job and as a filter; the job goes on."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ghtools.job import paths
from ghtools.job.native import SHIM
from ghtools.stream.framing import encode, sections
from ghtools.stream.records import Change, End, Finding, Head, Link, Record, Suspect, Unknown
from tests.bed.throttle import Throttle
from tests.conftest import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]
Env = dict[str, str]
COMMAND = [str(Path(sys.executable).parent / "gh-validate-ring"), "--sizes", "1M,4M"]
RANKS = 4
SLOW = 2


@pytest.fixture
def job(clean_env: Env, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """A 4-rank job under the shim; its ranks' process ids."""
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("GHT_DIR", clean_env["GHT_DIR"])
    script = [str(ROOT / "tests/jobs/mixed.py"), "--steps", "100000", "--dp", str(RANKS), "--batch", "256"]
    env = {**clean_env, "LD_PRELOAD": str(SHIM), "GHT_JOB": "ring", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        ["torchrun", "--standalone", "--nproc-per-node", str(RANKS), *script], env=env, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            rings = paths.rings_in(paths.job_path("ring")) if paths.job_path("ring").exists() else []
            if {ring.rank for ring in rings} == set(range(RANKS)):
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


def listening(pids: dict[int, int]) -> int:
    """Sockets of the ranks."""
    count = 0
    for pid in pids.values():
        count += sum("socket:" in str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return count


def test_the_links_of_a_job(job: dict[int, int], clean_env: Env) -> None:
    before = listening(job)
    done = subprocess.run([*COMMAND, "--job", "ring"], env=clean_env, capture_output=True, timeout=120, check=False)
    assert done.returncode in (0, 5), done.stderr  # four busy ranks on two CPUs may be too few to tell
    made = records(done.stdout)
    pairs = {frozenset(one.ranks) for one in made if isinstance(one, Link) and one.facts["phase"] == "pass"}
    assert pairs == {frozenset((r, (r + 1) % RANKS)) for r in range(RANKS)}
    assert not [one for one in made if isinstance(one, Finding) and one.verdict == "confirmed"], done.stderr
    assert b"the job stood for" in done.stderr
    assert listening(job) == before


def test_a_reader_that_is_stuck_does_not_hold_the_job(job: dict[int, int], clean_env: Env) -> None:
    """What is written does not fit the pipe, and nobody reads it."""
    words = [*COMMAND, "--job", "ring", "--sizes", "1M"]
    with subprocess.Popen(words, env=clean_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        stood = next(line for line in process.stderr if b"the job stood for" in line)  # which is said when it goes on
        assert process.poll() is None, "all of it fitted the pipe"
        assert float(stood.split()[-2]) < 20
        made = records(process.stdout.read())
    assert process.returncode in (0, 5) and isinstance(made[-1], Finding)


@pytest.mark.long
def test_a_slow_rank_of_a_job(job: dict[int, int], clean_env: Env) -> None:
    """As a filter: a suspected link is tested, once; the rank whose CPU is throttled is slow to all its partners."""
    suspect = Suspect(what="link", ranks=[1, 2], cause="communication", verdict="attributed")
    given: list[Record] = [
        Head(tool="test", job="ring"), Change(level="job", episode=1, stage="confirmed"), suspect, suspect,
        Unknown(extra={"kind": "x"}), End(),
    ]  # fmt: skip
    with Throttle(job[SLOW], 0.05):
        time.sleep(2)
        done = subprocess.run(
            [*COMMAND, "--sizes", "4M,8M", "--suspects", "-"],
            env=clean_env, input=b"".join(map(encode, given)), capture_output=True, timeout=200, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = records(done.stdout)
    assert [one.kind for one in made if one.kind in ("change", "suspect", "")] == ["change", "suspect", "suspect", ""]
    confirmed = [(one.what, one.ranks) for one in made if isinstance(one, Finding) and one.verdict == "confirmed"]
    assert confirmed == [("rank", [SLOW])], done.stderr
    assert done.stderr.count(b"the job stood for") == 1


def test_a_job_that_is_not_there_is_a_finding_of_the_filter(clean_env: Env) -> None:
    suspect = Suspect(what="link", ranks=[0, 1], cause="communication", verdict="attributed")
    stream = b"".join(map(encode, [Head(tool="test", job="no-such-job"), suspect, End()]))
    done = subprocess.run(
        [*COMMAND, "--suspects", "-"], env=clean_env, input=stream, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (finding,) = [record for record in records(done.stdout) if isinstance(record, Finding)]
    assert finding.verdict == "could not tell" and "no-such-job" in finding.text
