# SPDX-License-Identifier: Apache-2.0
"""gh-alert as a process: terminals, pipes, exit codes."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Alert, Change, End, Head, Job, Record, Suspect

MS = 1_000_000
BASE = 1_700_000_000 * 1_000_000_000
ALERT = [sys.executable, "-c", "from ghtools.commands.alert import main; main()"]

HEAD = Head(tool="test", job="j")
ONSET = Change(
    stage="confirmed", level="job", verdict="fail-slow", episode=1, before_ns=312 * MS, after_ns=905 * MS,
    ratio=905 / 312, onset_index=120, said_index=125, onset_t_ns=BASE, said_t_ns=BASE + 5 * 10**9,
)  # fmt: skip
RELIEF = Change(
    type="relief", stage="confirmed", level="job", verdict="recovered", episode=1, before_ns=905 * MS,
    after_ns=314 * MS, ratio=314 / 905, onset_index=210, said_index=215, onset_t_ns=BASE + 81 * 10**9,
    said_t_ns=BASE + 83 * 10**9, n_iters=90, lost_ns=53 * 10**9,
)  # fmt: skip
SAID = (
    "ghtools: 22:13:20 SLOW since iteration 120: 312 -> 905 ms (+190 %), confirmed at 125\n"
    "ghtools: 22:14:41 RECOVERED at iteration 210: 905 -> 314 ms; the episode cost 53 s over 90 iterations\n"
)


def stream(*records: Record) -> bytes:
    return b"".join(encode(record) for record in records)


def run(data: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*ALERT, *options], input=data, capture_output=True, timeout=60, env=env(), check=False)


def env() -> dict[str, str]:
    return {**os.environ, "TZ": "UTC"}


def test_sentences_records_and_exit_0_when_it_is_over() -> None:
    done = run(stream(HEAD, Job(job="j"), ONSET, RELIEF, End()))
    assert done.stderr.decode() == SAID
    assert done.returncode == 0
    records = list(read_records(io.BytesIO(done.stdout)))
    assert [r.kind for r in records] == ["head", "job", "alert", "alert", "end"]
    assert isinstance(records[2], Alert) and records[2].text == SAID.splitlines()[0].removeprefix("ghtools: ")


def test_the_slow_part_is_said_and_written_and_the_suspect_passed_on() -> None:
    suspect = Suspect(
        ranks=[2], hosts=["b"], cause="compute", verdict="attributed", ratio=2.9, t_ns=BASE + 7 * 10**9,
        evidence={"episode": 1, "onset_index": 120},
    )  # fmt: skip
    data = stream(HEAD, ONSET, suspect, RELIEF, End())
    done = run(data)
    slow, over = SAID.splitlines(keepends=True)
    named = "ghtools: 22:13:27 rank 2 (host b): compute 2.9x slower since iteration 120, attributed\n"
    assert done.stderr.decode() == slow + named + over
    kinds = [r.kind for r in read_records(io.BytesIO(done.stdout))]
    assert kinds == ["head", "alert", "suspect", "alert", "alert", "end"]
    written = [json.loads(line) for line in run(data, "--json").stdout.splitlines()]
    assert [(one["state"], [part["ranks"] for part in one["suspects"]]) for one in written] == [
        ("slow", []), ("named", [[2]]), ("recovered", [[2]]),
    ]  # fmt: skip


def test_exit_1_and_a_last_word_when_something_is_still_slow() -> None:
    done = run(stream(HEAD, ONSET, End()), "--json")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == (
        "ghtools: still SLOW at the end, since iteration 120: 312 -> 905 ms (+190 %)"
    )
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["slow"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (stream(HEAD, ONSET), "the stage before stopped without an end record"),
        (stream(HEAD, ONSET) + encode(RELIEF)[:-3], "input cut at byte"),
        (b"", "empty input"),
        (b"hello, this is text\n", "bad input"),
        (stream(Head(v=[2, 0])), "it is version"),
    ],
)
def test_cut_and_bad_input_exits_3_and_comes_before_slow(data: bytes, said: str) -> None:
    done = run(data)
    assert done.returncode == 3
    assert said in done.stderr.decode() and "Traceback" not in done.stderr.decode()
    assert (b"still SLOW" in done.stderr) == data.startswith(stream(HEAD))


def test_a_terminal_shows_sentences_and_no_records() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(ALERT, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=env()) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(stream(HEAD, ONSET, RELIEF, End()))
        process.stdin.close()
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux says EIO when the other side has closed
                break
            shown += piece
        assert process.wait(60) == 0
    os.close(ours)
    assert shown.decode().replace("\r\n", "\n") == SAID


def test_a_lone_rank_is_said_while_the_stream_is_silent(tmp_path: Path) -> None:
    rank = Change(**{**{k: getattr(ONSET, k) for k in ("stage", "verdict", "onset_t_ns", "ratio")},
                     "level": "rank", "rank": 7, "before_ns": MS, "after_ns": 3 * MS})  # fmt: skip
    prom = tmp_path / "x.prom"
    with subprocess.Popen(
        [*ALERT, "--json", "--prom", str(prom)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env()
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(stream(HEAD, rank))
        process.stdin.flush()
        line = process.stdout.readline()  # comes although the pipe stays open and silent
        assert json.loads(line)["rank"] == 7
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    assert re.search(r'^ght_slow\{job="j",level="rank",rank="7"\} 1$', prom.read_text(), re.M)


def test_keep_forwards_changes_and_quiet_says_nothing() -> None:
    done = run(stream(HEAD, ONSET, RELIEF, End()), "--keep", "-q")
    assert [r.kind for r in read_records(io.BytesIO(done.stdout))] == [
        "head", "change", "alert", "change", "alert", "end",
    ]  # fmt: skip
    assert done.stderr == b""


def test_verbose_tells_what_is_no_alert() -> None:
    blip = Change(**{**{k: getattr(ONSET, k) for k in ("stage", "level", "before_ns", "after_ns", "ratio")},
                     "verdict": "blip", "onset_t_ns": BASE})  # fmt: skip
    data = stream(HEAD, blip, End())
    assert run(data).stderr == b""
    assert run(data, "-v").stderr == b"ghtools: 22:13:20 blip, no alert, at iteration 0: 312 -> 905 ms (+190 %)\n"


def test_two_streams_of_one_job_the_last_word_counts() -> None:
    first, second = stream(HEAD, ONSET, End()), stream(HEAD, RELIEF, End())
    assert run(first + second).returncode == 0
    assert run(second + first).returncode == 1
    assert run(first + stream(Head(tool="test", job="other"), End())).returncode == 1


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--webhook", "ftp://x/"], 2, "bad webhook address"),
        (["--syslog-address", "/nowhere/log"], 4, "is no socket"),
        (["--prom", "/nowhere/x.prom"], 2, "cannot write /nowhere/x.prom"),
    ],
)
def test_options_that_cannot_be_met(options: list[str], code: int, said: str) -> None:
    done = run(stream(HEAD, End()), *options)
    assert (done.returncode, said in done.stderr.decode()) == (code, True), done.stderr


def test_a_dead_webhook_neither_stops_nor_delays_the_stream_and_is_said() -> None:
    done = run(stream(HEAD, ONSET, RELIEF, End()), "--webhook", "http://127.0.0.1:9/hook?token=secret")
    assert done.returncode == 0
    assert "2 of 2 alerts were not delivered" in done.stderr.decode() and "secret" not in done.stderr.decode()
