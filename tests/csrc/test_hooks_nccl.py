# SPDX-License-Identifier: Apache-2.0
"""The NCCL front end in real processes: the ways of finding the real function, and what is recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ghtools.job.paths import JobDir, jobs
from ghtools.job.ring import CommInfo, LiveInfo, RingReader
from ghtools.job.static_nccl import has_hidden_nccl
from ghtools.stream.records import FLAG_ASYNC, FLAG_BYTES_UNKNOWN, FLAG_GROUPED, OPS
from tests.csrc.conftest import Fakes

Env = dict[str, str]


def run(command: list[str | Path], env: Env) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def load(library: Path, call: str) -> list[str | Path]:
    """A Python program that loads `library` (RTLD_LOCAL, as ctypes and imports do) and calls into it."""
    return [sys.executable, "-c", f"import ctypes, sys; sys.exit(ctypes.CDLL({str(library)!r}).{call})"]


def found(env: Env) -> list[JobDir]:
    return jobs(Path(env["GHT_DIR"]))


def read_only_ring(env: Env) -> tuple[Any, list[CommInfo], LiveInfo]:
    (job,) = found(env)
    (file,) = job.rings
    with RingReader(file.path) as ring:
        records, lost = ring.drain()
        assert lost == 0
        assert ring.state() == "ended"
        return records, ring.comms(), ring.live()


WAYS = ["driver", "by_name", "by_scan", "static_open"]


@pytest.mark.parametrize("way", WAYS)
def test_real_function_is_found(way: str, fakes: Fakes, shim_env: Env) -> None:
    path: Path = getattr(fakes, way)
    command = [path, "simple", "50"] if way == "driver" else load(path, "drive_simple(4, 0, 50)")
    done = run(command, shim_env)
    assert done.returncode == 0, done.stderr
    records, comms, live = read_only_ring(shim_env)
    assert len(records) == 50
    assert set(records["bytes"]) == {4000}
    assert len(comms) == 1 and comms[0].size == 4 and comms[0].backend == "nccl"
    library = {"driver": "libnccl.so.2", "by_name": "libnccl.so.2", "by_scan": "libotherccl.so"}
    assert Path(live.nccl_path).name == library.get(way, path.name)
    assert live.backends == ["nccl"]


def test_hidden_static_library_cannot_be_hooked_and_is_named(fakes: Fakes, shim_env: Env) -> None:
    done = run(load(fakes.static_hidden, "drive_simple(4, 0, 50)"), shim_env)
    assert done.returncode == 0, done.stderr
    assert found(shim_env) == []
    hidden = {path.name for path in fakes.folder.glob("lib*.so*") if has_hidden_nccl(path)}
    assert hidden == {fakes.static_hidden.name}
    stripped = fakes.folder / "libstripped.so"
    subprocess.run(["strip", "-o", stripped, fakes.static_hidden], check=True)
    assert has_hidden_nccl(stripped)
    stripped.unlink()


def test_static_nccl_of_a_running_process_is_named(fakes: Fakes, clean_env: Env) -> None:
    from ghtools.job.static_nccl import static_nccl_objects

    code = f"import ctypes, sys; ctypes.CDLL({str(fakes.static_hidden)!r}); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=clean_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stdout.readline() == "up\n"
        assert static_nccl_objects(child.pid) == [str(fakes.static_hidden)]


def test_every_function_passes_unchanged_and_is_recorded_once(fakes: Fakes, shim_env: Env) -> None:
    plain = run([fakes.driver, "all"], {k: v for k, v in shim_env.items() if k != "LD_PRELOAD"})
    hooked = run([fakes.driver, "all"], shim_env)
    assert plain.returncode == 0
    assert (hooked.stdout, hooked.stderr, hooked.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    records, comms, live = read_only_ring(shim_env)
    first = comms[0]
    rows = [
        (OPS[r["op"]], int(r["bytes"]), int(r["peer"]), bool(r["flags"] & FLAG_GROUPED))
        for r in records
        if r["seq"] < 23
    ]
    assert rows == [
        ("all_reduce", 40, -1, False),
        ("all_reduce", 20, -1, False),
        ("broadcast", 10, 1, False),
        ("broadcast", 10, 1, False),
        ("broadcast", 40, 1, False),  # Bcast, which calls Broadcast inside: once
        ("reduce", 40, 2, False),
        ("reduce", 80, 2, False),
        ("all_gather", 80, -1, False),
        ("all_gather", 20, -1, False),
        ("reduce_scatter", 80, -1, False),
        ("reduce_scatter", 10, -1, False),
        ("all_to_all", 160, -1, False),
        ("all_to_all", 160, -1, False),
        ("gather", 40, 0, False),
        ("gather", 40, 0, False),
        ("scatter", 40, 0, False),
        ("scatter", 40, 0, False),
        ("send", 10, 1, True),
        ("recv", 10, 3, True),
        ("put_signal", 40, 1, False),
        ("put_signal", 0, 2, False),
        ("wait_signal", 0, 3, False),
        ("all_reduce", 0, -1, False),
    ]
    assert records["flags"][22] == FLAG_ASYNC | FLAG_BYTES_UNKNOWN
    assert set(records["lane"]) == {0x10}
    assert list(records["seq"]) == list(range(29))
    # whole, two splits, shrunk, grouped, two of InitAll
    assert [(c.size, c.parent == first.id) for c in comms] == [
        (4, False), (2, True), (2, True), (3, True), (4, False), (2, False), (2, False),
    ]  # fmt: skip
    assert first.name == "named_by_config"
    used = [int(c) for c in records["comm"][23:28]]
    assert used == [comms[i].id for i in (1, 2, 3, 4, 6)]
    assert all(c.dead for c in comms)
    assert live.unmatched == 0


def test_identity_is_equal_on_the_ranks_that_share_a_communicator(fakes: Fakes, shim_env: Env) -> None:
    for rank in range(4):
        assert run([fakes.driver, "all"], {**shim_env, "RANK": str(rank)}).returncode == 0
    (job,) = found(shim_env)
    tables = {}
    for file in job.rings:
        with RingReader(file.path) as ring:
            tables[file.rank] = ring.comms()
    assert sorted(tables) == [0, 1, 2, 3]
    ids = {rank: [c.id for c in table] for rank, table in tables.items()}
    assert len({ids[r][0] for r in ids}) == 1  # all ranks
    assert ids[0][1] == ids[2][1] != ids[1][1] == ids[3][1]  # split by colour = rank % 2
    assert len({ids[r][2] for r in ids}) == 1  # second split, one colour
    assert len({ids[r][3] for r in ids}) == 1  # shrunk
    assert len({ids[r][5] for r in ids}) == 4  # InitAll: each process its own


def test_two_copies_of_the_shim_record_once(fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes(Path(shim_env["LD_PRELOAD"]).read_bytes())
    env = {**shim_env, "LD_PRELOAD": f"{shim_env['LD_PRELOAD']}:{copy}"}
    for command in ([fakes.driver, "all"], load(fakes.by_scan, "drive_all(4, 0)")):
        plain = run(command, {k: v for k, v in env.items() if k != "LD_PRELOAD"})
        done = run(command, env)
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    (job,) = found(env)
    assert len(job.rings) == 2  # one a process
    for file in job.rings:
        with RingReader(file.path) as ring:
            assert len(ring.drain()[0]) == 29


def test_switched_off_by_environment(fakes: Fakes, shim_env: Env) -> None:
    assert run([fakes.driver, "simple"], {**shim_env, "GHT_OFF": "1"}).returncode == 0
    assert found(shim_env) == []


def test_a_program_without_communicator_makes_no_ring(fakes: Fakes, shim_env: Env) -> None:
    assert run([fakes.driver, "nothing"], shim_env).returncode == 0
    assert run(["true"], shim_env).returncode == 0
    assert not Path(shim_env["GHT_DIR"]).exists()
