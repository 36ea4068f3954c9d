# SPDX-License-Identifier: Apache-2.0
"""gh-bocd as people run it: pipes, options, state, bad input."""

from __future__ import annotations

import io
import subprocess
import time
from pathlib import Path

import pytest

from ghtools.stream.framing import sections
from ghtools.stream.records import Change, End, Head, Iters, Job, Record
from ghtools.stream.writer import Writer
from tests.detect.bocd_help import cut, iters, noisy


def full(rec: Iters) -> Iters:
    import numpy as np

    rec.calls, rec.seq = np.zeros(len(rec.index), "<i4"), np.full(len(rec.index), -1)
    return rec


def stream(*records: Record, end: bool = True) -> bytes:
    sink = io.BytesIO()
    writer = Writer(sink)
    for rec in [Head(tool="test", job="j"), *records, *([End()] if end else [])]:
        writer.write(full(rec) if isinstance(rec, Iters) else rec)
    return sink.getvalue()


def job_of(ranks: int, *steps: tuple[int, int, float], n: int = 300) -> list[Iters]:
    parts = [list(cut(iters(noisy(n, *steps, seed=rank), rank), 10)) for rank in range(ranks)]
    return [rec for batch in zip(*parts, strict=True) for rec in batch]


def run(data: bytes, env: dict[str, str], *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["gh-bocd", *options], input=data, capture_output=True, env=env, timeout=60)


def records(data: bytes) -> list[Record]:
    errors: list[str] = []
    made = []
    for section in sections(io.BytesIO(data), lambda error: errors.append(str(error))):
        made += [section.head, *section, section.end]
    assert not errors
    return [rec for rec in made if rec is not None]


def told(data: bytes) -> list[tuple[str, str, str, int]]:
    return [(c.level, c.type, c.stage, c.onset_index) for c in records(data) if isinstance(c, Change)]


def test_changes_come_out_the_rest_is_forwarded(clean_env: dict[str, str]) -> None:
    job = Job(job="j", ranks=[{"rank": rank, "state": "running"} for rank in range(3)])
    out = run(stream(job, *job_of(3, (120, 200, 1.5))), clean_env)
    assert out.returncode == 0
    made = records(out.stdout)
    assert [rec.kind for rec in made if rec.kind != "change"] == ["head", "job", "end"]
    assert isinstance(made[0], Head) and made[0].via == ["gh-bocd"]
    assert ("job", "onset", "confirmed", 120) in told(out.stdout)
    assert ("job", "relief", "confirmed", 200) in told(out.stdout)


def test_level_keep_and_schedule(clean_env: dict[str, str]) -> None:
    data = stream(*job_of(2, (120, 300, 1.5)))
    only = run(data, clean_env, "--level", "job")
    assert {level for level, *_ in told(only.stdout)} == {"job"}
    kept = run(data, clean_env, "--keep", "--level", "rank")
    assert sum(isinstance(rec, Iters) for rec in records(kept.stdout)) == 60
    planned = run(data, clean_env, "--schedule", "120")
    assert {rec.verdict for rec in records(planned.stdout) if isinstance(rec, Change) and rec.stage == "confirmed"} == {
        "planned"
    }


def test_explain_says_the_numbers(clean_env: dict[str, str]) -> None:
    out = run(stream(*job_of(1, (120, 200, 1.5), (50, 53, 1.5))), clean_env, "--explain")
    text = out.stderr.decode()
    assert "rank 0: dropped at iteration 5" in text
    assert "went back" in text
    assert "confirmed at iteration 12" in text
    assert "all tests passed" in text
    assert "probability" in text


@pytest.mark.parametrize(
    "options",
    [("--level", "node"), ("--schedule", "a,b"), ("--min-change-pct", "0"), ("--hazard", "2"), ("--hazard", "x")],
)
def test_wrong_usage(options: tuple[str, str], clean_env: dict[str, str]) -> None:
    out = run(b"", clean_env, *options)
    assert out.returncode == 2
    assert b"Traceback" not in out.stderr


def test_state_goes_on_where_it_stopped(tmp_path: Path, clean_env: dict[str, str]) -> None:
    batches = job_of(2, (120, 200, 1.5))
    whole = run(stream(*batches), clean_env)
    state = ["--state", str(tmp_path / "state")]
    first = run(stream(*batches[:25]), clean_env, *state)
    second = run(stream(*batches[25:]), clean_env, *state)
    assert told(first.stdout) + told(second.stdout) == told(whole.stdout)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    other = run(stream(*batches), clean_env, *state, "--min-change-pct", "20")
    assert other.returncode == 3
    assert other.stderr.count(b"\n") == 1


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 500, b"{}" * 90])
def test_a_state_that_is_none_is_one_line(data: bytes, tmp_path: Path, clean_env: dict[str, str]) -> None:
    (tmp_path / "state").write_bytes(data)
    out = run(stream(*job_of(1)), clean_env, "--state", str(tmp_path / "state"))
    assert out.returncode == 3
    assert out.stderr.startswith(b"gh-bocd: cannot use the state")
    assert out.stderr.count(b"\n") == 1


def test_a_cut_stream_gives_what_was_sound(clean_env: dict[str, str]) -> None:
    out = run(stream(*job_of(1, (120, 200, 1.5)), end=False)[:-7], clean_env)
    assert out.returncode == 3
    assert ("job", "onset", "confirmed", 120) in told(out.stdout)


def test_ignored_values_are_said_once(clean_env: dict[str, str]) -> None:
    rec = iters(noisy(200))
    rec.dur_ns[50:60] = 0
    out = run(stream(rec), clean_env)
    assert out.returncode == 0
    assert out.stderr == b"gh-bocd: ignored 10 bad\n"
    assert told(out.stdout) == []


def test_missing_iterations_are_not_called_ignored(clean_env: dict[str, str]) -> None:
    rec = iters(noisy(200))
    rec.index[100:] += 5
    out = run(stream(rec), clean_env)
    assert out.stderr == b"gh-bocd: iterations are missing in 1 place; what came after was used\n"


def test_a_change_leaves_at_once(clean_env: dict[str, str]) -> None:
    data = stream(*job_of(1, (120, 200, 1.5), n=140), end=False)
    with subprocess.Popen(["gh-bocd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_env) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(data)
        process.stdin.flush()
        seen, until = b"", time.monotonic() + 20
        while seen.count(b"confirmed") < 2 and time.monotonic() < until:
            seen += process.stdout.read1()  # type: ignore[attr-defined]
        assert seen.count(b"confirmed") == 2  # the rank's and the job's, with the pipe still open
        process.stdin.close()
        process.stdout.read()


def test_the_same_input_gives_the_same_bytes(clean_env: dict[str, str]) -> None:
    data = stream(*job_of(3, (120, 200, 1.5), (230, 233, 2.0)))
    assert run(data, clean_env).stdout == run(data, clean_env).stdout


def test_explicit_iterations_end_the_search_for_them_in_calls() -> None:
    from ghtools.detect.detector import Detector
    from ghtools.detect.stage import BocdStage
    from ghtools.stream.records import Calls, Head, Iters

    stage = BocdStage(Head(), Detector())
    list(stage.feed(Calls(rank=0)))
    assert stage._finder is not None
    list(stage.feed(Iters(rank=0)))
    assert stage._finder is None
    list(stage.feed(Calls(rank=0)))
    assert stage._finder is None
