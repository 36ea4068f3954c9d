# SPDX-License-Identifier: Apache-2.0
"""Many writers at full speed, several readers: nothing torn, got + lost = written; under sanitizers too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.csrc.build import CSRC, HERE, SHIM_SOURCES, cc

SANITIZERS = {
    "plain": ["-O3"],
    "thread": ["-O1", "-fsanitize=thread", "-Wno-tsan"],  # it knows no fences; the words are atomics anyway
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitizer(request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    return request.param, SANITIZERS[request.param]


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_ring(sanitizer: tuple[str, list[str]], tmp_path: Path) -> None:
    name, flags = sanitizer
    stress = cc(tmp_path / "stress", [HERE / "stress.c", CSRC / "native" / "ring_drain.c"], *flags)
    count = "1000000" if name == "plain" else "60000"
    out = run(stress, "4", "3", count, "256").stdout
    assert "torn 0 bad 0" in out
    assert f"written {4 * int(count)} " in out
    assert out.count("reader got") == 3


def test_ring_with_a_writer_that_died_in_a_slot(tmp_path: Path) -> None:
    stress = cc(tmp_path / "stress", [HERE / "stress.c", CSRC / "native" / "ring_drain.c"], "-O2")
    out = run(stress, "2", "2", "20000", "256", "dead").stdout
    assert "written 40001 " in out
    assert "torn 0 bad 0" in out
    dropped = int(out.split("dropped ")[1].split()[0])
    assert dropped >= 40001 // 256 - 1  # once a lap: the dead slot takes nothing any more


def test_whole_shim(sanitizer: tuple[str, list[str]], tmp_path: Path, clean_env: dict[str, str]) -> None:
    _, flags = sanitizer
    library = cc(tmp_path / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2", *flags)
    program = cc(
        tmp_path / "threads",
        [HERE / "threads.c", *SHIM_SOURCES],
        *flags,
        "-rdynamic",
        "-Wl,--no-as-needed",  # the program itself has every name; the library must be loaded all the same
        str(library),
        f"-Wl,-rpath,{tmp_path}",
    )
    from ghtools.job.paths import jobs
    from ghtools.job.ring import RingReader

    run(program, "6", "40", **clean_env, GHT_JOB="threads", RANK="0", GHT_RING_SLOTS="65536")
    (job,) = jobs(Path(clean_env["GHT_DIR"]))
    with RingReader(job.rings[0].path) as ring:
        records, lost = ring.drain(100000)
        live = ring.live()
    assert len(records) + lost == live.written == 6 * 40 * 100
    assert live.unmatched == 0
    assert live.comm_count == 1 + 6 * 40 * 2
    assert sorted(records["seq"]) == list(range(24000))
    assert set(records["bytes"]) == {32, 16}
