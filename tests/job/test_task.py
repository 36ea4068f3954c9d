# SPDX-License-Identifier: Apache-2.0
"""Tasks in our own process: the kernels against numpy, what is refused, and that nothing of a result is believed."""

from __future__ import annotations

import ctypes
import errno
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ghtools.job import task as tasks
from ghtools.job.native import lib
from ghtools.job.task import BANDWIDTH, GEMM, TEXT_BYTES, VALUES, Task, run_task, unpack_result
from ghtools.locate.gemm_rows import HEAD, ROW, rows_of
from ghtools.locate.gemm_test import KERNELS

HEADER = (Path(__file__).resolve().parents[2] / "csrc" / "tasks" / "tasks.h").read_text()
WINDOW_NS = 2_000_000

native_gemm = lib.gh_native_gemm
native_gemm.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
native_gemm.restype = ctypes.c_int


def test_names_are_those_of_the_header() -> None:
    kinds = {name: int(number) for name, number in re.findall(r"#define GH_TASK_(\w+) (\d+)u", HEADER)}
    assert kinds == {name: getattr(tasks, name) for name in kinds} and len(kinds) >= 6
    rows = re.search(r"enum gh_test_row \{(.*?)GH_ROW_COUNT", HEADER, re.S)
    assert rows and len(re.findall(r"GH_ROW_\w+,", rows[1])) == ROW
    assert f"GH_HEAD_COUNT = {HEAD}" in HEADER


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("edge", [1, 2, 3, 5, 16, 31, 97, 193, 257, 300])
def test_a_kernel_multiplies_as_numpy_does(number: int, edge: int) -> None:
    random = np.random.default_rng(edge)
    a, b = (random.standard_normal((edge, edge), np.float32) for _ in range(2))
    c = np.full((edge, edge), np.nan, np.float32)
    if not native_gemm(number, edge, a.ctypes.data, b.ctypes.data, c.ctypes.data):
        pytest.skip(f"this CPU has no {KERNELS[number]}")
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(c - wanted).max() <= 1e-6 * edge * np.abs(a).max() * np.abs(b).max()


def test_over_one_block_of_columns() -> None:
    edge = 2050
    a = np.zeros((edge, edge), np.float32)
    a[:, :3] = np.arange(3 * edge, dtype=np.float32).reshape(edge, 3) % 17
    a[:, -1] = 1
    b = (np.arange(edge * edge, dtype=np.int64).reshape(edge, edge) % 23).astype(np.float32)
    c = np.empty((edge, edge), np.float32)
    assert native_gemm(0, edge, a.ctypes.data, b.ctypes.data, c.ctypes.data)
    assert np.array_equal(c, a[:, :3] @ b[:3] + b[-1])


@pytest.mark.parametrize("kind", [GEMM, BANDWIDTH])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_task_counts_what_it_did(kind: int, threads: int) -> None:
    size = 65 if kind == GEMM else 3 << 20
    result = run_task(Task(kind, (size, 4, threads, WINDOW_NS)), 20.0)
    assert (result.status, result.said) == (0, "")
    assert len(result.values) == HEAD + 4 * ROW
    rows = rows_of(result.values)
    unit = 2 * 65**3 if kind == GEMM else 3 * 4 * 16384
    for row in rows:
        assert row.wall_ns >= WINDOW_NS and row.work % unit == 0 and row.work > 0
        assert 0 < row.cpu_ns <= 1.05 * threads * row.wall_ns + 1_000_000
    assert [row.t_ns for row in rows] == sorted(row.t_ns for row in rows)
    assert result.values[2] == threads and result.values[3] >= 1


def test_the_checksum_is_that_of_the_product() -> None:
    def numbers(count: int, seed: int) -> np.ndarray:
        out = []
        for _ in range(count):
            seed = (seed * 1664525 + 1013904223) % (1 << 32)
            out.append((seed >> 28) - 8)
        return np.array(out)

    edge = 37
    a, b = numbers(edge * edge, 1).reshape(edge, edge), numbers(edge * edge, 2).reshape(edge, edge)
    result = run_task(Task(GEMM, (edge, 1, 1, 0)), 20.0)
    assert result.values[6] == int((a @ b @ (1 + np.arange(edge) % 3)).sum())


@pytest.mark.parametrize(
    ("task", "status"),
    [
        (Task(GEMM, (0, 3, 1, 0)), errno.EINVAL),
        (Task(GEMM, (8193, 3, 1, 0)), errno.EINVAL),
        (Task(GEMM, (64, 0, 1, 0)), errno.EINVAL),
        (Task(GEMM, (64, 17, 1, 0)), errno.EINVAL),
        (Task(GEMM, (64, 3, 0, 0)), errno.EINVAL),
        (Task(GEMM, (64, 3, 1 << 40, 0)), errno.EINVAL),
        (Task(GEMM, (64, 3, 1, -1)), errno.EINVAL),
        (Task(GEMM, (64, 3, 1, 0, 9)), errno.EINVAL),
        (Task(GEMM, (-64, 3, 1, 0)), errno.EINVAL),
        (Task(BANDWIDTH, (-1, 3, 1, 0)), errno.EINVAL),
        (Task(BANDWIDTH, (1000, 3, 1, 0)), errno.EINVAL),
        (Task(BANDWIDTH, (1 << 62, 3, 1, 0)), errno.EINVAL),
        (Task(99), errno.ENOSYS),
    ],
)
def test_what_cannot_be_done_is_an_errno(task: Task, status: int) -> None:
    result = run_task(task, 5.0)
    assert result.status == status and not result.values and result.why


def test_the_end_of_the_leave_ends_a_task() -> None:
    result = run_task(Task(GEMM, (64, 16, 2, 5_000_000_000)), 0.05)
    assert result.status == errno.ECANCELED and result.why == "the time given was over"


def test_memory_is_not_taken_where_all_together_would_want_too_much() -> None:
    """Each of 2^40 ranks would take only this much: together there is no room for them."""
    for kind, size in ((GEMM, 64), (BANDWIDTH, 3 << 20)):
        result = run_task(Task(kind, (size, 3, 1, 0, 0, 1 << 40)), 5.0)
        assert result.status == errno.ENOMEM and "half of the memory" in result.why


def test_no_thread_and_no_memory_is_left() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    task = Task(BANDWIDTH, (24 << 20, 1, 3, 0))
    run_task(task, 20.0)
    before = threads(), resident()
    for _ in range(5):
        run_task(task, 20.0)
    deadline = time.monotonic() + 5  # a joined thread is listed for a moment longer
    while threads() != before[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before[0]
    assert resident() < before[1] + (12 << 20) // 4096


def test_the_interpreter_is_free_meanwhile() -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(run_task(Task(GEMM, (64, 1, 1, 500_000_000)), 20.0).status))
    thread.start()
    alive = thread.is_alive()
    thread.join()
    assert alive and seen == [0]


@pytest.mark.parametrize(
    ("args", "text"), [((0,) * 25, ""), ((1 << 63,), ""), ((), "x" * TEXT_BYTES), ((), "é" * 128), ((), "a\0b")]
)
def test_a_task_that_fits_no_mailbox_is_refused(args: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match="task"):
        Task(GEMM, args, text)


def test_packing() -> None:
    packed = Task(GEMM, (5, -1)).packed_args()
    assert packed.shape == (24,) and packed.dtype == np.int64 and packed[:3].tolist() == [5, -1, 0]


@pytest.mark.parametrize(
    ("status", "count"), [(0, VALUES + 1), (0, -1), (0, 4), (-1, 0), (1 << 30, 0)], ids=lambda value: str(value)
)
def test_a_damaged_result_is_no_result(status: int, count: int) -> None:
    assert unpack_result(status, count, [1, 2, 3], b"").status == errno.EPROTO


def test_what_a_rank_says_is_made_printable() -> None:
    assert unpack_result(5, 0, [], b"a\x1b[2J\nb\xff\0tail").said == "a?[2J?b\ufffd"


@pytest.mark.parametrize(
    "values", [[], [1] * HEAD, [1] * (HEAD + ROW - 1), [2] + [1] * (HEAD + ROW - 1), [1] + [0] * 19]
)
def test_values_that_make_no_sense_have_no_rows(values: list[int]) -> None:
    assert rows_of(values) == ()
