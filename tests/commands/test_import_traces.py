# SPDX-License-Identifier: Apache-2.0
"""gh-import as a process on traces and dumps: exit codes, one line a fault, memory of a large trace."""

from __future__ import annotations

import io
import json
import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from ghtools.stream.framing import read_records
from ghtools.stream.records import Calls, Suspect

BENCH = Path(__file__).resolve().parents[1] / "bench" / "bench_import_kineto.py"


def gh_import(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = Path(sys.executable).parent / "gh-import"
    return subprocess.run([command, *map(str, arguments)], capture_output=True, timeout=120, check=False)


def calls(done: subprocess.CompletedProcess[bytes]) -> dict[int, int]:
    """Calls of each rank in what was written."""
    found: dict[int, int] = {}
    for record in read_records(io.BytesIO(done.stdout)):
        if isinstance(record, Calls):
            found[record.rank] = found.get(record.rank, 0) + len(record.t_ns)
    return found


def trace(rank: int) -> str:
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ts": 5, "dur": 3}
    return json.dumps({"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": [kernel]})


def test_bad_files_among_good_ones(tmp_path: Path) -> None:
    """A directory, a missing file, a cut one and a double: a line each, exit 3, the good ones are read."""
    for name, text in (("a", trace(0)), ("b", trace(0)), ("c", trace(1)[:-1]), ("d", trace(3))):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "e.json").mkdir()
    names = [tmp_path / f"{name}.json" for name in "abcedf"]
    done = gh_import("kineto", *names)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 3 and calls(done) == {0: 1, 1: 1, 3: 1}
    assert len(lines) == 4
    for name, why in (("b", "rank 0, which"), ("c", "not whole"), ("e", "directory"), ("f", "no such file")):
        assert sum(f"{name}.json" in line and why in line for line in lines) == 1


def test_a_malicious_pickle_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/done",)

    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": [Evil()]}))
    done = gh_import("flight-recorder", tmp_path / "rank_0")
    assert done.returncode == 3 and not (tmp_path / "done").exists()
    [line] = done.stderr.decode().splitlines()
    assert "posix.system" in line and "refused" in line


def test_a_stalled_job_exits_0_with_a_suspect(tmp_path: Path) -> None:
    """Importing is not judging the job's health by exit code: that is for those who test it."""
    entry = {"record_id": 1, "pg_id": 0, "process_group": ["0", ""], "collective_seq_id": 2, "op_id": 2}
    entry |= {"state": "started", "profiling_name": "nccl:all_reduce", "time_created_ns": 5}
    for rank, entries in enumerate(([entry], [])):
        status = {"0": {"last_enqueued_collective": 2 - rank, "last_completed_collective": 1}}
        config = {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
        text = json.dumps({"entries": entries, "pg_config": config, "pg_status": status})
        (tmp_path / f"r_{rank}.json").write_text(text)
    done = gh_import("flight-recorder", tmp_path / "r_0.json", tmp_path / "r_1.json")
    [suspect] = [record for record in read_records(io.BytesIO(done.stdout)) if isinstance(record, Suspect)]
    assert done.returncode == 0 and suspect.ranks == [1] and suspect.verdict == "attributed"


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """A trace of 80 MB is read under 120 MiB, all of Python and numpy included (1 GB: see the benchmark)."""
    made = runpy.run_path(str(BENCH))["write_trace"](tmp_path / "rank3.json", 80 << 20, 0.02)
    # A small process in between: a child begins with its parent's peak, and pytest's is large.
    code = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], stdout=open('out.ght', 'wb')).returncode\n"
        "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [Path(sys.executable).parent / "gh-import", "kineto", "rank3.json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)], cwd=tmp_path, capture_output=True, timeout=120, check=True
    )
    status, peak_kib = map(int, done.stdout.split())
    read = subprocess.CompletedProcess[bytes]([], status, (tmp_path / "out.ght").read_bytes(), b"")
    assert status == 0 and calls(read) == {3: made}
    assert peak_kib < 120 << 10
