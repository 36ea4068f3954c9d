# SPDX-License-Identifier: Apache-2.0
"""gh-validate-ring as a process: what it refuses and how, a told graph, Ctrl-C. Whole tests are in tests/system."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Change, End, Finding, Head, Link, Suspect
from tests.conftest import BIN

QUICK = ["--sizes", "256K", "--repeats", "2"]


def run(*words: str, data: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [BIN / "gh-validate-ring", *words], input=data, capture_output=True, timeout=120, check=False,
        env={**os.environ, **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--ranks", "0-3", "--topology", "star"], 2, "ring, tree, both"),
        (["--ranks", "0-3", "--direction", "up"], 2, "both or one"),
        (["--ranks", "0-3", "--backend", "mpi"], 2, "tcp, gloo or nccl"),
        (["--job", "x", "--backend", "gloo"], 2, "only its own ranks can"),
        (["--ranks", "0-3", "--sizes", "16Q"], 2, "cannot read the size '16Q'"),
        (["--ranks", "0-3", "--sizes", "0"], 2, "cannot read the size"),
        (["--ranks", "0-3", "--sizes", ",".join(str(n) for n in range(1, 40))], 2, "at most"),
        (["--ranks", "3-0"], 2, "runs backwards"),
        (["--ranks", "0"], 2, "1 rank has none"),
        (["--ranks", "0-999"], 2, "cannot start 1000 processes"),
        (["--ranks", "0-3", "--interface", "nosuch0"], 2, "cannot use nosuch0"),
        (["--ranks", "0-3", "--interface", "=x"], 2, "cannot read the interface"),
        (["--ranks", "0-3", "--graph", "/nosuch"], 3, "cannot read /nosuch"),
        (["--suspects", "file"], 2, "they come on stdin"),
        (["--gather", "/nosuch"], 2, "no launcher"),
        ([], 2, "no ranks are named"),
        (["--job", "no-such-job"], 4, "no-such-job"),
    ],
)
def test_what_it_refuses(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = run(*words, GHT_DIR=str(tmp_path))
    assert done.returncode == code, done.stderr
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") <= 2 and b"Traceback" not in done.stderr


def test_outside_a_launcher_there_is_nothing_for_torch_to_join() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = run("--backend", "gloo")
    assert done.returncode == 2
    assert b"torchrun" in done.stderr


def test_the_rings_that_a_log_tells_are_tested(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("node:1:2 [0] NCCL INFO Channel 00/01 :    0   2   1   3\n")
    done = run("--ranks", "0-3", "--graph", str(log), *QUICK)
    assert done.returncode in (0, 5), done.stderr
    made = list(read_records(io.BytesIO(done.stdout)))
    pairs = {frozenset(one.ranks) for one in made if isinstance(one, Link) and one.facts["phase"] == "pass"}
    assert pairs == {frozenset(pair) for pair in ((0, 2), (2, 1), (1, 3), (3, 0))}
    assert b"the rings that nccl.log tells" in done.stderr


def test_quiet_is_quiet_and_two_ranks_cannot_be_told() -> None:
    done = run("--ranks", "4,9", "-q", *QUICK)
    assert (done.returncode, done.stderr) == (5, b"")
    made = list(read_records(io.BytesIO(done.stdout)))
    assert [one.kind for one in made if one.kind != "link"] == ["head", "job", "finding", "end"]
    assert {tuple(sorted(one.ranks)) for one in made if isinstance(one, Link)} == {(4, 9)}


def test_one_direction() -> None:
    done = run("--ranks", "0-2", "--direction", "one", *QUICK)
    made = [one for one in read_records(io.BytesIO(done.stdout)) if isinstance(one, Link)]
    first = {tuple(one.ranks) for one in made if one.facts["phase"] == "pass"}
    assert first == {(0, 1), (1, 2), (2, 0)}


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie that only waits to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_ends_it_and_its_ranks() -> None:
    words = [BIN / "gh-validate-ring", "--ranks", "0-3", "--sizes", "1G", "-v"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr
        pids = [int(word.split(": ")[1]) for word in process.stderr.readline().decode().split("pids: ")[1].split(", ")]
        time.sleep(1)  # into the first pass
        os.killpg(process.pid, signal.SIGINT)
        out, said = process.communicate(timeout=60)
    assert process.returncode == 5, said
    assert b"a signal asked for it" in said
    end = list(read_records(io.BytesIO(out)))[-1]
    assert isinstance(end, End) and "signal" in end.reason
    assert not [pid for pid in pids if runs(pid)]


def test_a_filter_forwards_all_and_says_what_it_could_not_test(tmp_path: Path) -> None:
    link = Suspect(what="link", ranks=[0, 1], verdict="attributed")
    rank = Suspect(what="rank", ranks=[3], cause="compute", verdict="attributed")
    given = [Head(job="gone"), Change(level="job", stage="confirmed"), link, rank, End()]
    done = run("--suspects", "-", data=b"".join(map(encode, given)), GHT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    made = list(read_records(io.BytesIO(done.stdout)))
    kinds = [one.kind for one in made]
    assert [kind for kind in kinds if kind != "finding"] == ["head", "change", "suspect", "suspect", "end"]
    assert 2 < kinds.index("finding") < 5  # when the test has ended, and the stream goes on meanwhile
    (finding,) = [one for one in made if isinstance(one, Finding)]
    assert (finding.verdict, finding.ranks) == ("could not tell", [0, 1])


def test_a_cut_stream_is_3(tmp_path: Path) -> None:
    done = run("--suspects", "-", data=encode(Head()), GHT_DIR=str(tmp_path))
    assert done.returncode == 3
