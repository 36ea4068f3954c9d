# SPDX-License-Identifier: Apache-2.0
"""Commands as processes joined by pipes: live, quiet on SIGPIPE, clean on signals, exit 3 carried to the end."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import End, Head, Iters
from tests.stream.strategies import sample, wire

PROMPT_S = 0.5  # STYLE 7: a record put into an open pipe is out within this
TRIES = 6  # of which one must be prompt: the machine may be busy with something else


def start(name: str, *options: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [name, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, bufsize=0
    )


def bash(line: str, env: dict[str, str], cwd: Path) -> tuple[list[int], str, bytes]:
    """Exit codes of all stages, stderr, stdout."""
    done = subprocess.run(
        ["bash", "-c", f"{line}\ncodes=(${{PIPESTATUS[@]}}); echo CODES ${{codes[@]}} >&2"],
        env=env, cwd=cwd, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    said, _, codes = done.stderr.decode().rpartition("CODES ")
    return [int(code) for code in codes.split()], said, done.stdout


def some(fd: int, timeout_s: float) -> bytes:
    """What can be read within the time, empty if nothing."""
    return os.read(fd, 1 << 16) if select.select([fd], [], [], timeout_s)[0] else b""


def one(index: int) -> Iters:
    return Iters(
        rank=0, index=np.array([index]), t_ns=np.array([index * 10**8]), dur_ns=np.array([10**8]),
        phase=np.zeros(1, "u1"), calls=np.zeros(1, "i4"), seq=np.full(1, -1),
    )  # fmt: skip


def json_line(index: int) -> bytes:
    return b'{"kind":"iters","rank":0,"index":%d,"t_ns":%d,"dur_ns":100}\n' % (index, index)


@pytest.mark.parametrize(
    ("command", "first", "make"),
    [
        (["gh-show"], encode(Head()), lambda i: encode(one(i))),
        (["gh-show", "--json"], encode(Head()), lambda i: encode(one(i))),
        (["gh-show", "--text", "-x"], encode(Head()), lambda i: encode(one(i))),
        (["gh-bocd", "--keep"], encode(Head()), lambda i: encode(one(i))),
        (["gh-alert"], encode(Head()), lambda i: encode(one(i))),
        (["gh-import", "jsonl"], b'{"kind":"head","v":[1,0]}\n', json_line),
        (["gh-import", "series"], b"1\n2\n", lambda i: b"%d\n" % i),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_record_in_an_open_pipe_is_out_at_once(command, first, make, clean_env) -> None:  # type: ignore[no-untyped-def]
    process = start(*command, env=clean_env)
    assert process.stdin and process.stdout
    try:
        process.stdin.write(first)
        assert some(process.stdout.fileno(), 30), "the head"
        took = []
        for index in range(TRIES):
            while some(process.stdout.fileno(), 0.0):
                pass
            process.stdin.write(make(index))
            began = time.monotonic()
            assert some(process.stdout.fileno(), 30), f"record {index} never came while the pipe was open"
            took.append(time.monotonic() - began)
        assert min(took) < PROMPT_S, took
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
        if process.stderr:
            process.stderr.close()


@pytest.mark.parametrize(
    "line", ["gh-synth --iters 200000 | head -c 100", "gh-synth --iters 200000 | gh-show | head -n 1",
             "gh-synth --iters 200000 | gh-bocd --keep | head -c 100", "seq 1 500000 | gh-import series | head -c 100"]
)  # fmt: skip
def test_a_closed_pipe_is_quiet(line: str, clean_env: dict[str, str], tmp_path: Path) -> None:
    codes, said, _ = bash(line, clean_env, tmp_path)
    assert said == ""
    assert codes[0] in (0, 141) and set(codes[1:]) == {0}  # 141: seq knows nothing better


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "command", [["gh-show", "--json"], ["gh-bocd", "--keep"], ["gh-import", "jsonl"]], ids=" ".join
)
def test_a_signal_ends_a_reader_cleanly(command: list[str], number: int, clean_env: dict[str, str]) -> None:
    process = start(*command, env=clean_env)
    assert process.stdin and process.stdout
    process.stdin.write(b'{"kind":"head","v":[1,0]}\n' if "jsonl" in command else encode(Head()))
    made = some(process.stdout.fileno(), 30)
    process.send_signal(number)
    process.wait(30)  # with stdin still open
    rest, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said == b""
    if command[0] == "gh-show":
        assert b'"stopped"' in made + rest
    else:
        last = list(read_records(io.BytesIO(made + rest)))[-1]
        assert isinstance(last, End) and last.reason == "stopped"


def test_a_signal_ends_a_paced_source_cleanly(clean_env: dict[str, str]) -> None:
    process = start("gh-synth", "--pace", "1", "--iter-ms", "50", env=clean_env)
    assert process.stdout
    made = some(process.stdout.fileno(), 30)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=30)
    last = list(read_records(io.BytesIO(made + rest)))[-1]
    assert isinstance(last, End) and last.reason == "stopped"
    assert (process.returncode, said) == (0, b"")


def test_streams_one_after_the_other_are_a_stream(clean_env: dict[str, str], tmp_path: Path) -> None:
    line = "gh-synth --seed 1 > a.ght; gh-synth --seed 2 > b.ght; cat a.ght b.ght | gh-bocd --keep | gh-show --text"
    codes, said, out = bash(line, clean_env, tmp_path)
    assert (codes, said) == ([0, 0, 0], "")
    assert out.count(b" head: ") == out.count(b" end: ") == 2
    codes, said, again = bash("gh-bocd --keep a.ght b.ght | gh-show --text", clean_env, tmp_path)
    assert (codes, said, again) == ([0, 0], "", out)


def test_exit_3_reaches_the_end_of_the_pipeline(clean_env: dict[str, str], tmp_path: Path) -> None:
    codes, said, out = bash("gh-synth | head -c 4000 | gh-bocd --keep | gh-show | tail -n 1", clean_env, tmp_path)
    assert codes == [0, 0, 3, 3, 0]
    assert said.count("\n") == 1
    assert said.startswith("gh-bocd: input cut at byte 4000: the record that began at byte ")
    assert b"cut" in out


@pytest.mark.parametrize("command", ["gh-show", "gh-bocd", "gh-alert", "gh-import jsonl", "gh-plot --term"])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"This is a text file\nwith two lines.\n", "bad input"),
        (b"", "empty input"),
        (wire(sample())[:300], "input cut"),
        (encode(Head(v=[9, 0])) + encode(End()), "version"),
        (wire(sample()[1:]), "before any head"),
        (bytes(range(256)) * 40, "bad input"),
    ],
    ids=["text", "empty", "cut", "version", "headless", "binary"],
)
def test_bad_input_is_one_line_and_exit_3(
    command: str, data: bytes, why: str, clean_env: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        command.split(), input=data, env=clean_env, cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    said = done.stderr.decode()
    assert done.returncode == 3, said
    assert said.count("\n") == 1 and said.startswith(f"{command.split()[0]}: "), said
    assert why in said or "gh-import" in command, said
    assert "Traceback" not in said


def test_records_are_not_written_to_a_terminal(clean_env: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    try:
        for command in (["gh-synth"], ["gh-bocd"], ["gh-import", "jsonl"]):
            done = subprocess.run(
                command, stdin=subprocess.PIPE, input=None, stdout=theirs, stderr=subprocess.PIPE, env=clean_env,
                timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 2
            assert b"stdout is a terminal" in done.stderr and b"gh-show" in done.stderr
        assert not select.select([ours], [], [], 0)[0]
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_terminal_is_no_input(clean_env: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(["gh-show"], stdin=theirs, capture_output=True, env=clean_env, timeout=60, check=False)
        assert done.returncode == 2
        assert b"stdin is a terminal" in done.stderr
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_missing_file_is_one_line(clean_env: dict[str, str], tmp_path: Path) -> None:
    codes, said, _ = bash("gh-show nowhere.ght", clean_env, tmp_path)
    assert (codes, said) == ([3], "gh-show: cannot read nowhere.ght: no such file or directory\n")
    codes, said, _ = bash("gh-show .", clean_env, tmp_path)
    assert codes == [3] and "directory" in said


def test_a_full_disk_is_one_line(clean_env: dict[str, str], tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    codes, said, _ = bash("gh-synth > /dev/full", clean_env, tmp_path)
    assert codes == [4]
    assert said == "gh-synth: the system refused: no space left on device\n"


def test_equal_seeds_make_equal_bytes(clean_env: dict[str, str], tmp_path: Path) -> None:
    line = "gh-synth {} --tails --change 50:1.5::90 --seed {} | gh-bocd --keep | gh-show --json"
    for what in ("iters --iters 150", "calls --layout tp=2,dp=2 --sizes layers=2,micro=2 --iters 120"):
        first, again, other = (bash(line.format(what, seed), clean_env, tmp_path)[2] for seed in (7, 7, 8))
        assert first == again != other
        assert b'"kind":"change"' in first
