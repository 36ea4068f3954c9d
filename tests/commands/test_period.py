# SPDX-License-Identifier: Apache-2.0
"""gh-period as a process: what it consumes, forwards and says, live and on bad input."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ghtools.source.synth_calls import call_stream
from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Calls, Comm, End, Head, Iters, Job, Period, Record

PERIOD = [sys.executable, "-c", "from ghtools.commands.period import main; main()"]


def stream(n: int = 40) -> list[Record]:
    made = call_stream("ddp", n, np.random.default_rng(1), sizes={"buckets": 3, "equal": False, "loss": True})
    job = Job(job="j", ranks=[{"rank": 0, "state": "running"}])
    return [Head(tool="test", job="j"), job, *made.comms, *made.batches(8), End()]


def run(records: list[Record], *options: str, tail: bytes = b"") -> tuple[list[Record], str, int]:
    data = b"".join(encode(r) for r in records) + tail
    done = subprocess.run([*PERIOD, *options], input=data, capture_output=True, timeout=60, check=False)
    out = io.BufferedReader(io.BytesIO(done.stdout))  # type: ignore[arg-type]
    return list(read_records(out)), done.stderr.decode(), done.returncode


def kinds(records: list[Record]) -> set[str]:
    return {r.kind for r in records}


def test_calls_become_iterations_and_the_rest_passes() -> None:
    out, err, code = run(stream())
    assert (code, err) == (0, "")
    assert kinds(out) == {"head", "job", "comm", "period", "iters", "end"}
    assert sum(len(r.seq) for r in out if isinstance(r, Iters)) == 39
    assert [(p.rank, p.state) for p in out if isinstance(p, Period)] == [(0, "found"), (-1, "found")]
    assert isinstance(out[0], Head)
    assert out[0].via == ["gh-period"]
    assert isinstance(out[-1], End)


def test_keep_forwards_the_calls() -> None:
    records = stream()
    out, _, _ = run(records, "--keep")
    assert sum(isinstance(r, Calls) for r in out) == sum(isinstance(r, Calls) for r in records)
    assert sum(isinstance(r, Comm) for r in out) == sum(isinstance(r, Comm) for r in records)


def test_verbose_and_explain_say_what_is_believed() -> None:
    _, err, _ = run(stream(), "-v")
    assert "rank 0: an iteration is 4 calls" in err
    assert "all ranks: an iteration is 4 calls" in err
    _, err, _ = run(stream(), "--explain")
    assert "all training calls are inside" in err
    _, err, _ = run(stream(), "-v", "-q")
    assert err == ""


def test_a_marker_and_the_papers_rule() -> None:
    out, _, code = run(stream(), "--marker", "op=all_reduce,bytes=4")
    assert code == 0
    assert {p.method for p in out if isinstance(p, Period)} == {"marker"}
    out, _, code = run(stream(), "--method", "acf")
    assert {p.method for p in out if isinstance(p, Period)} == {"acf"}


@pytest.mark.parametrize("options", [("--method", "fft"), ("--marker", "op=warp"), ("--marker", "x")])
def test_wrong_options_are_one_line(options: tuple[str, str]) -> None:
    _, err, code = run(stream(), *options)
    assert code == 2
    assert len(err.splitlines()) == 1


def test_a_cut_stream_delivers_what_was_sound() -> None:
    records = stream()
    out, err, code = run(records[:-1])
    assert code == 3
    assert len(err.splitlines()) == 1
    assert any(isinstance(r, Iters) for r in out)
    out, err, code = run(records[:-1], tail=b"\xc1 no msgpack")
    assert code == 3
    assert "Traceback" not in err
    assert any(isinstance(r, Iters) for r in out)


def test_an_iteration_comes_out_before_the_stream_ends() -> None:
    records = stream(60)
    proc = subprocess.Popen(PERIOD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert proc.stdin is not None
    assert proc.stdout is not None
    for record in records[:-1]:
        proc.stdin.write(encode(record))
    proc.stdin.flush()
    got, deadline = 0, time.monotonic() + 30
    for record in read_records(proc.stdout):  # type: ignore[arg-type]
        got += len(record.seq) if isinstance(record, Iters) else 0
        if got >= 55 or time.monotonic() > deadline:
            break
    proc.stdin.close()
    proc.stdout.close()
    proc.wait(30)
    assert got >= 55


@pytest.mark.public_data
@pytest.mark.parametrize(("trace", "ranks", "iteration_s"), [("AR", 16, 46.34), ("ST", 8, 2.2)])
def test_real_pipelines_from_their_traces(public_data: Path, trace: str, ranks: int, iteration_s: float) -> None:
    """Traces of operations of a 64-GPU and an 8-GPU job; the first one's authors name its iteration time."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    file = public_data / "what-if" / f"trace-{trace}.parquet"
    imported = [sys.executable, "-c", "from ghtools.commands.import_ import main; main()", "what-if", str(file)]
    calls = subprocess.run(imported, capture_output=True, timeout=120, check=True).stdout
    done = subprocess.run(PERIOD, input=calls, capture_output=True, timeout=120, check=True)
    out = list(read_records(io.BufferedReader(io.BytesIO(done.stdout))))  # type: ignore[arg-type]
    said = [p for p in out if isinstance(p, Period) and p.state == "found"]
    assert len({p.rank for p in said} - {-1}) == ranks
    (job,) = [p for p in said if p.rank == -1]
    assert job.dur_ns / 1e9 == pytest.approx(iteration_s, rel=0.01)
