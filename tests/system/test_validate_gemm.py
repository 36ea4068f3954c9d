# SPDX-License-Identifier: Apache-2.0
"""gh-validate-gemm on this machine: a real CPU quota, a real hog on one CPU, a launcher's ranks, a history.

Other load on the machine moves all ranks alike; so what is expected is computed from what the ranks really got.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from ghtools.job.alone import Alone
from ghtools.locate.gemm_judge import judge
from ghtools.locate.gemm_test import Plan, measure
from ghtools.stream.framing import sections
from ghtools.stream.records import Finding, Gemm, Record
from tests.bed.throttle import Throttle

pytestmark = pytest.mark.system
COMMAND = [str(Path(sys.executable).parent / "gh-validate-gemm")]
GEMM_ONLY = Plan(tests=("gemm",))
SMALL = ["--window-ms", "100", "--size", "128"]


def records(stream: bytes) -> list[Record]:
    found = []
    for section in sections(io.BytesIO(stream), lambda error: pytest.fail(str(error))):
        found += list(section)
    return found


def test_a_cpu_quota_is_confirmed_with_its_ratio() -> None:
    with Alone(range(4)) as held:
        for _ in range(6):  # other load may come between the two measurements: then it is not half of what it would get
            free = measure(held, held.ranks, GEMM_ONLY)
            share = median(one.share("cpu_ns") for one in free)
            with Throttle(held.pids[2], share / 2) as throttle:
                measured = measure(held, held.ranks, GEMM_ONLY)
            others = median(one.share("cpu_ns") for one in measured if one.rank != 2)
            finding = judge(measured, {}, 0)[0]
            assert finding.verdict != "confirmed" or finding.ranks == [2], finding
            if finding.verdict == "confirmed" and others > 0.75 * share:
                break
    assert finding.verdict == "confirmed", finding
    if "cgroup" not in throttle.how:
        pytest.skip(f"confirmed, but throttled by {throttle.how}: no quota to compare with")
    assert finding.ratio == pytest.approx(others / (share / 2), rel=0.2), [one.rates for one in measured]
    assert finding.evidence["why"] == "throttled" and "throttled by its cgroup (quota" in finding.text
    mine = measured[2]
    assert mine.quota == pytest.approx(share / 2, rel=0.01) and mine.throttled > 0.2
    assert all(one.quota != mine.quota for one in measured if one.rank != 2)


# Where the system gives each session its own share (autogroup), it is the session that needs precedence.
HOG = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.nice(-15)
if os.path.exists("/proc/self/autogroup"):
    open("/proc/self/autogroup", "w").write("-15")
print("up", flush=True)
while True:
    pass
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_hog_on_its_cpu_is_seen_as_contention() -> None:
    """Rank 0 shares a CPU with two hogs; the three others have another CPU.

    The hogs have precedence: the system moves whatever else runs on this machine to where there is less to do, so that
    as many more of equal rank would be no hog.
    """
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with Alone(range(4)) as held:
        for rank, pid in held.pids.items():
            os.sched_setaffinity(pid, {first if rank == 0 else second})
        hogs = [
            subprocess.Popen([sys.executable, "-c", HOG, str(first)], stdout=subprocess.PIPE, start_new_session=True)
            for _ in range(2)
        ]
        try:
            if not all(hog.stdout and hog.stdout.readline() for hog in hogs):
                pytest.skip("no right to give the hogs precedence")
            for _ in range(5):  # other load may come and go: "could not tell" is right then, a wrong name never
                measured = measure(held, held.ranks, GEMM_ONLY)
                finding = judge(measured, {}, 0)[0]
                assert finding.verdict != "confirmed" or finding.ranks == [0], [one.rates for one in measured]
                if finding.verdict == "confirmed":
                    break
        finally:
            for hog in hogs:
                hog.kill()
                hog.communicate()
    assert finding.verdict == "confirmed", [one.rates for one in measured]
    assert finding.evidence["why"] == "contended" and "involuntary switches" in finding.text


def test_alone_all_are_tested_and_the_stream_is_whole() -> None:
    done = subprocess.run([*COMMAND, "--ranks", "0-2,5", *SMALL], capture_output=True, timeout=120, check=False)
    made = records(done.stdout)
    assert done.returncode in (0, 1, 5), done.stderr
    gemms = [record for record in made if isinstance(record, Gemm)]
    for rank in (0, 1, 2, 5):
        for test in ("gemm", "bandwidth"):  # six repeats where three could not tell
            numbers = [gemm.repeat for gemm in gemms if (gemm.rank, gemm.test) == (rank, test)]
            assert numbers in ([0, 1, 2], [0, 1, 2, 3, 4, 5])
    assert all(gemm.status == "ok" and gemm.rate > 0 and gemm.dur_ns > 0 and gemm.host for gemm in gemms)
    assert {"cpu_share", "waited_share", "forced", "cpus", "host_busy_cpus"} <= set(gemms[0].facts)
    findings = [record for record in made if isinstance(record, Finding)]
    assert sorted(finding.ranks[0] for finding in findings) == [0, 1, 2, 5]
    slow = any(finding.verdict == "confirmed" for finding in findings)
    unknown = any(finding.verdict == "could not tell" for finding in findings)
    assert done.returncode == (1 if slow else 5 if unknown else 0)
    assert done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"gh-validate-gemm: ")


def test_a_lone_rank_needs_a_history_and_is_judged_by_it(tmp_path: Path) -> None:
    history = tmp_path / "history"
    command = [*COMMAND, "--ranks", "0", "--baseline", str(history), *SMALL]
    first = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert first.returncode == 5 and b"no history" in first.stderr
    second = subprocess.run(command, capture_output=True, timeout=120, check=False)
    (finding,) = [record for record in records(second.stdout) if isinstance(record, Finding)]
    assert {test["against"] for test in finding.evidence["tests"]} == {"its own history"}
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [len(line["rates"]) for line in lines] == [1 if finding.verdict == "confirmed" else 2] * 2
    faster = [{**line, "rates": [20 * rate for rate in line["rates"]]} for line in lines]
    history.write_text("".join(json.dumps(line) + "\n" for line in faster))
    third = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert third.returncode == 1, third.stderr
    assert b"slower than its own history" in third.stderr


def launched(rank: int, world: int, place: Path, *more: str) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI_"))}
    env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    return subprocess.Popen(
        [*COMMAND, "--gather", str(place), *SMALL, *more], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_ranks_of_a_launcher_meet_in_a_directory(tmp_path: Path) -> None:
    """Two runs, one after another, in the same directory, with what a killed run left there."""
    (tmp_path / "ght-round").write_text('{"round": "0123456789abcdef"}')
    (tmp_path / "ght-ask-0123456789abcdef-0").write_text('{"words": {"1": "old"}, "tasks": {}, "timeout_s": 1}')
    (tmp_path / "ght-here-0123456789abcdef-1").write_text("{")
    (tmp_path / "mine.txt").write_text("kept")
    for _ in range(2):
        processes = [launched(rank, 3, tmp_path) for rank in (2, 1, 0)]
        outputs = [process.communicate(timeout=120) for process in processes]
        assert [process.returncode for process in processes[:2]] == [0, 0], outputs
        assert processes[2].returncode in (0, 1, 5), outputs
        assert [out for out, _ in outputs[:2]] == [b"", b""]
        made = records(outputs[2][0])
        assert {record.rank for record in made if isinstance(record, Gemm) and record.status == "ok"} == {0, 1, 2}
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert {path.name.split("-")[1].split(".")[0] for path in tmp_path.glob("ght-*")} <= {"round", "over"}


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--ranks", "0-"], 2, "cannot read the ranks"),
        (["--ranks", "0-600"], 2, "the most is 512"),
        (["--job", "no-such-job"], 4, "no-such-job"),
        (["--devices", "x"], 2, "cannot read the ranks"),
        (["--gather", "."], 2, "no launcher says"),
        (["--backend", "gloo"], 2, "no launcher has started"),
        (["--backend", "mpi"], 2, "it is not known"),
        (["--ranks", "0", "--baseline", "/dev/null"], 3, "it is no file"),
        (["--ranks", "0", "--repeats", "2"], 2, "repeats"),
    ],
)
def test_what_cannot_be_is_one_line_and_its_code(options: list[str], code: int, says: str) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "SLURM_PROCID", "PMI_RANK")}
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_torchrun() -> None:
    """Ranks of a launcher that meet over torch.distributed: rank 0 writes, all are tested at once."""
    pytest.importorskip("torch", reason="torch is not installed")
    torchrun = str(Path(sys.executable).parent / "torchrun")
    words = [
        "--standalone",
        "--nproc-per-node",
        "3",
        "--no-python",
        *COMMAND,
        "--backend",
        "gloo",
        "--window-ms",
        "100",
    ]
    done = subprocess.run([torchrun, *words], capture_output=True, timeout=200, check=False)
    streams = [list(section) for section in sections(io.BytesIO(done.stdout), lambda error: pytest.fail(str(error)))]
    assert len(streams) == 1, done.stderr.decode()  # one rank writes
    made = streams[0]
    gemms = [record for record in made if isinstance(record, Gemm)]
    assert {(one.rank, one.test, one.status) for one in gemms} == {
        (rank, test, "ok") for rank in range(3) for test in ("gemm", "bandwidth")
    }, done.stderr.decode()
    multiplied = [[one for one in gemms if (one.rank, one.test) == (rank, "gemm")] for rank in range(3)]
    begins = [min(one.t_ns for one in mine) for mine in multiplied]
    ends = [max(one.t_ns + one.dur_ns for one in mine) for mine in multiplied]
    assert max(begins) < min(ends)  # so they contend
    assert {tuple(one.ranks) for one in made if isinstance(one, Finding)} == {(0,), (1,), (2,)}


def test_gpus_that_are_not_here() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([*COMMAND, "--devices", "gpu"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4 and "torch sees none" in done.stderr
