# SPDX-License-Identifier: Apache-2.0
"""Durations of NCCL's calls by CUDA events, against a libcuda without a device whose clock the test moves.

The fake ends the process at the first call that a driver could take amiss, so each exit status of 0 says so much, too.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ghtools.job.control import ControlPage
from ghtools.job.native import SHIM
from ghtools.job.paths import jobs, make_job_dir
from ghtools.job.ring import RingReader
from ghtools.stream.records import FLAG_CAPTURE, FLAG_DUR_INVALID, FLAG_EXEC, OPS
from tests.csrc.build import HERE, SHIM_SOURCES, cc
from tests.csrc.test_stress import SANITIZERS

S = 1_000_000_000
Env = dict[str, str]
Row = tuple[str, int, int]  # operation, bytes, duration in seconds of the fake's clock (-1 = invalid)


def build(folder: Path, flags: list[str], whole_shim: bool) -> Path:
    cuda = cc(folder / "libcuda.so.1", [HERE / "fakecuda.c"], "-Wl,-soname,libcuda.so.1", *flags)
    nccl = cc(folder / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2", *flags)
    extra = ["-DWHOLE_SHIM", "-rdynamic", *map(str, SHIM_SOURCES)] if whole_shim else []
    sources = [HERE / f"cuda_{part}.c" for part in ("driver", "usual", "faults")]
    return cc(
        folder / "cuda_driver", sources, *extra, *flags, "-Wl,--no-as-needed", str(cuda), str(nccl),
        f"-Wl,-rpath,{folder}",
    )  # fmt: skip


@pytest.fixture(scope="module", params=SANITIZERS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the shim in it, so that a sanitizer sees both."""
    return build(tmp_path_factory.mktemp(f"cuda-{request.param}"), SANITIZERS[request.param], whole_shim=True)


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program alone, for LD_PRELOAD."""
    return build(tmp_path_factory.mktemp("cuda-preload"), ["-O2"], whole_shim=False)


def run(
    program: Path, how: str, env: Env, lease_s: float = 600.0, pause: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    with ControlPage.create(make_job_dir("t", Path(env["GHT_DIR"]))) as page:
        page.set_pausing(True, lease_s) if pause else page.set_profiling(True, lease_s)
    env = {**env, "GHT_JOB": "t", "RANK": "0", "TSAN_OPTIONS": "die_after_fork=0", **more}
    done = subprocess.run([program, how], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return done


def read(env: Env, rank: int = 0) -> NDArray[Any]:
    (job,) = jobs(Path(env["GHT_DIR"]))
    (file,) = [f for f in job.rings if f.rank == rank]
    with RingReader(file.path) as ring:
        records, lost = ring.drain(100000)
    assert lost == 0
    return records


def executions(records: NDArray[Any]) -> NDArray[Any]:
    """Rows of executions, less those of the calls of one element with which the program begins."""
    rows: NDArray[Any] = records[(records["flags"] & FLAG_EXEC != 0) & (records["bytes"] != 4)]
    return rows


def rows(records: NDArray[Any]) -> list[Row]:
    """Executions in the order of their calls; each one's call is there, too."""
    execs = executions(records)
    entries = {int(r["seq"]): r for r in records if not r["flags"] & FLAG_EXEC}
    assert len(set(execs["seq"])) == len(execs)
    for r in execs:
        call = entries[int(r["seq"])]
        assert (call["comm"], call["lane"]) == (r["comm"], r["lane"])
        assert bool(r["flags"] & FLAG_DUR_INVALID) == (r["dur_ns"] == -1)
    durations = np.where(execs["dur_ns"] < 0, -1, np.round(execs["dur_ns"] / S).astype(int))
    exact = execs["dur_ns"] >= 0
    assert np.all(np.abs(execs["dur_ns"][exact] - durations[exact] * S) < 0.001 * S)  # the float of CUDA
    order = np.argsort(execs["seq"])
    return [(OPS[execs["op"][i]], int(execs["bytes"][i]), int(durations[i])) for i in order]


def test_durations_are_those_of_the_device_and_in_order(program: Path, clean_env: Env) -> None:
    run(program, "plain", clean_env)
    records = read(clean_env)
    assert rows(records) == [("all_reduce", 40 * i, i) for i in range(1, 6)]
    execs = executions(records)
    assert np.all(np.diff(execs["seq"]) == 1)
    assert np.all(np.diff(execs["t_ns"]) > 0)


def test_a_stream_that_waits_holds_up_no_other(program: Path, clean_env: Env) -> None:
    run(program, "streams", clean_env)
    records = read(clean_env)
    assert rows(records) == [("all_reduce", 40, 50), ("all_reduce", 80, 2)] * 3
    assert list(executions(records)["bytes"]) == [80] * 3 + [40] * 3  # as they were finished


def test_groups_are_told_apart_or_said_to_be_invalid(program: Path, clean_env: Env) -> None:
    run(program, "groups", clean_env)
    assert rows(read(clean_env)) == [
        ("all_reduce", 40, 1),
        ("all_gather", 3 * 80, 1),  # three fused ones: one execution of all the bytes
        ("send", 120, -1),
        ("all_to_all", 4 * 160, 1),
        ("send", 200, -1),
        ("all_reduce", 240, -1),
        ("all_reduce", 280, -1),
        ("all_reduce", 280, -1),
        ("all_reduce", 320, 1),
        ("all_reduce", 360, 2),
        ("send", 440, 1),
    ]


def test_of_a_group_that_was_not_seen_whole_nothing_is_said(program: Path, clean_env: Env) -> None:
    run(program, "middle", clean_env)
    assert rows(read(clean_env)) == [("all_reduce", 120, 1)]


def test_nothing_is_recorded_on_a_captured_stream(program: Path, clean_env: Env) -> None:
    run(program, "capture", clean_env)
    records = read(clean_env)
    assert [r for r in rows(records) if r[2] >= 0] == [("all_reduce", 40, 1)]
    captured = records[(records["flags"] & (FLAG_CAPTURE | FLAG_EXEC)) == FLAG_CAPTURE | FLAG_EXEC]
    assert Counter(map(int, captured["bytes"])) == {80: 2, 120: 2, 160: 2}


def test_with_no_event_left_a_call_is_said_to_be_untimed(program: Path, clean_env: Env) -> None:
    run(program, "exhaust", clean_env)
    got = Counter(rows(read(clean_env)))
    assert got == {("all_reduce", 40, 1): 256, ("all_reduce", 40, -1): 44, ("all_reduce", 80, 1): 10}


def test_default_streams(program: Path, clean_env: Env) -> None:
    run(program, "default", clean_env)
    # The second waits for the first: both are on the legacy stream. The last one's is its thread's own.
    assert rows(read(clean_env)) == [
        ("all_reduce", 40, 2), ("all_reduce", 80, 2), ("all_reduce", 120, 3), ("all_reduce", 120, 4),
    ]  # fmt: skip


def test_two_devices_in_a_process(program: Path, clean_env: Env) -> None:
    run(program, "devices", clean_env)
    # The last one is launched on the other device's default stream: it is not known how long it took.
    assert rows(read(clean_env)) == [
        ("all_reduce", 40 * n, took) for n, took in ((1, 1), (2, 4), (3, 4), (4, 2), (5, -1))
    ]


def test_what_fails_is_invalid(program: Path, clean_env: Env) -> None:
    run(program, "fail", clean_env)
    # The first had no event to begin with. No second event, in progress, an error of the library, a duration of zero.
    assert rows(read(clean_env)) == [("all_reduce", n, -1) for n in (80, 120, 160, 200)] + [("all_reduce", 240, 1)]


def test_time_to_launch_is_no_duration(program: Path, clean_env: Env) -> None:
    run(program, "connect", clean_env, FAKE_CUDA_REAL="1")
    assert rows(read(clean_env)) == [("all_reduce", 40, -1)]


def test_what_never_ends_is_given_up(tmp_path: Path, clean_env: Env) -> None:
    run(build(tmp_path, ["-O2", "-DGH_CUDA_AGE_NS=200000000"], whole_shim=True), "old", clean_env)
    records = read(clean_env)
    assert [r for r in rows(records) if r[1] == 120] == [("all_reduce", 120, 2)] * 5
    assert [r for r in rows(records) if r[1] < 120] == [("all_reduce", 40, -1), ("all_reduce", 80, -1)]
    assert len(executions(records)) == 7  # each said once


def test_a_context_that_is_gone_is_let_go_of(program: Path, clean_env: Env) -> None:
    run(program, "gone", clean_env)
    assert rows(read(clean_env)) == [("all_reduce", 40, -1), ("all_reduce", 80, 2)]


def test_an_aborted_communicator_says_nothing(program: Path, clean_env: Env) -> None:
    run(program, "abort", clean_env)
    assert rows(read(clean_env)) == [("all_reduce", 40, -1), ("all_reduce", 80, 2)]


def test_a_forked_child_touches_no_event(program: Path, clean_env: Env) -> None:
    # The leak checker looks in the child for the helper thread, which its parent alone has.
    run(program, "fork", clean_env, ASAN_OPTIONS="detect_leaks=0")
    assert rows(read(clean_env)) == [("all_reduce", 40, 1)]
    assert len(executions(read(clean_env, rank=2))) == 0


def test_a_lease_ends_by_itself_and_the_helper_sleeps(program: Path, clean_env: Env) -> None:
    run(program, "lease", clean_env, lease_s=1.5)
    records = read(clean_env)
    timed, calls = len(executions(records)), int(np.sum(records["flags"] & FLAG_EXEC == 0))
    assert 0 < timed < calls


def test_profile_after_profile_leaves_one_thread_and_one_set_of_events(program: Path, clean_env: Env) -> None:
    run(program, "storm", clean_env)
    assert rows(read(clean_env)) == [("all_reduce", 40, 1)]


@pytest.mark.parametrize(("how", "left"), [("exit", 10), ("quick", 0)])
def test_an_exit_with_spans_under_way(how: str, left: int, program: Path, clean_env: Env) -> None:
    run(program, how, clean_env)
    assert rows(read(clean_env)) == [("all_reduce", 40, -1)] * left


@pytest.mark.parametrize("pause", [False, True])
def test_many_threads(pause: bool, program: Path, clean_env: Env) -> None:
    with ControlPage.create(make_job_dir("t", Path(clean_env["GHT_DIR"]))) as page:
        page.set_profiling(True, 600.0)
    run(program, "threads", clean_env, pause=pause, FAKE_CUDA_REAL="1", GHT_RING_SLOTS="65536")
    records = read(clean_env)
    execs = records[records["flags"] & FLAG_EXEC != 0]
    assert np.sum(records["flags"] & FLAG_EXEC == 0) == 6 * 400 * 2
    assert len(set(execs["seq"])) == len(execs)
    assert np.any(execs["dur_ns"] > 0)
    began = {int(r["seq"]): int(r["t_ns"]) for r in records if not r["flags"] & FLAG_EXEC}
    good = execs[execs["dur_ns"] > 0]
    assert np.all(good["t_ns"] >= [began[int(seq)] for seq in good["seq"]])  # never before it was called


def test_whether_all_work_is_done(program: Path, clean_env: Env) -> None:
    run(program, "drain", clean_env, pause=True)
    assert len(executions(read(clean_env))) == 0  # a pause times nothing


def test_one_in_so_many(program: Path, clean_env: Env) -> None:
    run(program, "plain", clean_env, GHT_PROFILE_EVERY="2")
    records = read(clean_env)
    entries = records[records["flags"] & FLAG_EXEC == 0]
    turn = {int(seq): nth % 2 == 0 for nth, seq in enumerate(entries["seq"])}  # of its communicator, from the first
    execs = records[records["flags"] & FLAG_EXEC != 0]
    assert len(execs) and all(turn[int(seq)] for seq in execs["seq"])
    assert len(executions(records)) in (2, 3)


@pytest.mark.parametrize("how", ["plain", "groups", "fork", "exit"])
def test_preloaded(how: str, preloaded: Path, clean_env: Env) -> None:
    run(preloaded, how, clean_env, LD_PRELOAD=str(SHIM))
    assert rows(read(clean_env))


def test_without_a_profile_the_driver_is_not_called(preloaded: Path, clean_env: Env) -> None:
    env = {**clean_env, "GHT_JOB": "t", "RANK": "0", "LD_PRELOAD": str(SHIM)}
    assert subprocess.run([preloaded, "off"], env=env, timeout=60).returncode == 0
    assert os.environ.get("LD_PRELOAD") is None
    assert len(read(clean_env)) == 100


def test_profiling_without_cuda_changes_nothing(fakes: Any, shim_env: Env) -> None:
    with ControlPage.create(make_job_dir("t", Path(shim_env["GHT_DIR"]))) as page:
        page.set_profiling(True, 600.0)
    assert subprocess.run([fakes.driver, "simple", "50"], env=shim_env, timeout=60).returncode == 0
    records = read(shim_env)
    assert len(records) == 50 and not np.any(records["flags"] & FLAG_EXEC)
