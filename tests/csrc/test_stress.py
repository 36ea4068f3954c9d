# SPDX-License-Identifier: Apache-2.0
"""Many writers at full speed, several readers: nothing torn, got + lost = written; under sanitizers too."""

from __future__ import annotations

import os
import subprocess
import time
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


def threads_program(folder: Path, flags: list[str]) -> Path:
    """threads.c with the whole shim in it, and the test library beside it."""
    library = cc(folder / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2", *flags)
    return cc(
        folder / "threads",
        [HERE / "threads.c", *SHIM_SOURCES],
        *flags,
        "-rdynamic",
        "-Wl,--no-as-needed",  # the program itself has every name; the library must be loaded all the same
        str(library),
        f"-Wl,-rpath,{folder}",
    )


def test_whole_shim(sanitizer: tuple[str, list[str]], tmp_path: Path, clean_env: dict[str, str]) -> None:
    program = threads_program(tmp_path, sanitizer[1])
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


def test_threads_that_are_held(sanitizer: tuple[str, list[str]], tmp_path: Path, clean_env: dict[str, str]) -> None:
    """Whichever thread makes the named call stands and works; those with later calls wait for it."""
    from ghtools.job.paths import jobs
    from ghtools.job.pause import CouldNotTell, pause
    from ghtools.job.ring import RingReader
    from ghtools.job.task import GEMM, Task

    program = threads_program(tmp_path, sanitizer[1])
    env = {**clean_env, "GHT_JOB": "held", "RANK": "0"}
    enough = tmp_path / "enough"
    child = subprocess.Popen([str(program), "4", "0", str(enough)], env=env, stderr=subprocess.PIPE, text=True)
    held, deadline = 0, time.monotonic() + 90
    try:
        while child.poll() is None and held < 5 and time.monotonic() < deadline:
            found = jobs(Path(clean_env["GHT_DIR"]))
            if not found or not found[0].rings:
                continue
            with RingReader(found[0].rings[0].path) as ring:
                soon = ring.live().calls + 300
            try:
                with pause(found[0], {0: soon}, come_s=2.0) as ranks:
                    result = ranks.run({0: Task(GEMM, (64, 1, 2, 10_000_000, 0))}, 20.0)[0]
                    assert result.status == 0, result.why
                    held += 1
            except CouldNotTell:
                continue  # it was past the call
    finally:
        enough.touch()
        _, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert held == 5
    with RingReader(found[0].rings[0].path) as ring:
        calls, tallies = ring.live().calls, ring.tallies()
        assert calls == ring.live().written > 0
        assert tallies is not None and (tallies.calls, sum(tallies.by_key.values())) == (calls, calls)
