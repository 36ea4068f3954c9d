# SPDX-License-Identifier: Apache-2.0
"""gh-import as a process: bad files of all kinds give one line, exit 3, and what was sound."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest

from ghtools.source.importers import IMPORTERS, about
from ghtools.stream.framing import read_records
from ghtools.stream.records import End, Iters

LOG = "".join(f" iteration {n:8d}/     500 | elapsed time per iteration (ms): {100 + n}.0 |\n" for n in range(1, 21))


def gh_import(*arguments: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = Path(sys.executable).parent / "gh-import"
    return subprocess.run([command, *map(str, arguments)], input=data, capture_output=True, timeout=60)


def count(stream: bytes) -> int:
    """Iterations in a stream."""
    return sum(len(record.index) for record in read_records(io.BytesIO(stream)) if isinstance(record, Iters))


def test_a_file_without_a_format(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(LOG)
    done = gh_import(tmp_path / "x.log")
    assert done.returncode == 0 and count(done.stdout) == 20 and done.stderr == b""


def test_standard_input() -> None:
    done = gh_import("megatron", data=LOG.encode())
    assert done.returncode == 0 and count(done.stdout) == 20


def test_a_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(LOG)
    done = gh_import("megatron", tmp_path / "x.log", tmp_path)
    assert done.returncode == 3
    assert done.stderr.decode().strip().splitlines() == [f"gh-import: cannot read {tmp_path}: it is a directory"]
    assert count(done.stdout) == 20


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    done = gh_import("megatron", tmp_path / "no.log")
    assert done.returncode == 3 and len(done.stderr.decode().strip().splitlines()) == 1


def test_a_cut_gzip_is_one_line_and_what_was_before_is_delivered(tmp_path: Path) -> None:
    packed = gzip.compress((LOG + "x" * 4000 + "\n" + LOG).encode(), compresslevel=0)
    (tmp_path / "x.log.gz").write_bytes(packed[: len(packed) - 700])
    done = gh_import("megatron", tmp_path / "x.log.gz")
    assert done.returncode == 3 and count(done.stdout) >= 20
    [line] = done.stderr.decode().strip().splitlines()
    assert "x.log.gz" in line and "not whole" in line


def test_a_line_of_gigabytes_is_not_read() -> None:
    """32 MiB stand for it: what comes after the bound is never asked for."""
    done = gh_import("megatron", data=LOG.encode() + b"y" * (32 << 20))
    assert done.returncode == 3 and count(done.stdout) == 20
    [line] = done.stderr.decode().strip().splitlines()
    assert "line 21" in line and "16 MiB" in line


def test_what_no_format_knows_names_the_candidates(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello world\n")
    done = gh_import(tmp_path / "x")
    assert done.returncode != 0
    [line] = done.stderr.decode().strip().splitlines()
    assert "cannot tell the format" in line and "megatron" in line


def test_a_pattern() -> None:
    done = gh_import("steps", "--pattern", r"it=(?P<step>\d+) t=(?P<time>\S+)", data=b"it=1 t=0.5\nit=2 t=0.5\n")
    assert done.returncode == 0 and count(done.stdout) == 2


def test_a_usage_error_is_exit_2() -> None:
    assert gh_import("steps", "--pattern", "(", data=b"x").returncode == 2
    assert gh_import("nothing-like-this", data=b"x").returncode == 2


def test_the_reason_stands_in_the_stream() -> None:
    done = gh_import("golden", data=b"[1, 2, x")
    [end] = [record for record in read_records(io.BytesIO(done.stdout)) if isinstance(record, End)]
    assert end.reason.startswith("cut")


@pytest.mark.parametrize("name", IMPORTERS)
def test_every_format_says_where_its_files_come_from(name: str) -> None:
    assert len(about(name)) > 80
    done = gh_import(name, "--formats")
    assert done.returncode == 0 and done.stdout.decode().strip() == about(name)
