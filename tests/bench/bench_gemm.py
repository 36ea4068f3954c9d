# SPDX-License-Identifier: Apache-2.0
"""Speed of the tests of a CPU beside numpy's, in the same run: GFLOP/s of a multiplication, GB/s of memory.

    python tests/bench/bench_gemm.py

All are timed by the CPU time of their one thread, best of several turns taken in alternation, since the machine is
shared. How much of what a
CPU can do the kernel gets matters little for a comparison of ranks, but a kernel far from it would not load the vector
units. Prints one line a figure: name, value, unit, remark.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # before numpy is loaded

import time

import numpy as np

from ghtools.job.task import BANDWIDTH, GEMM, Task, run_task
from ghtools.locate.gemm_rows import rows_of
from ghtools.locate.gemm_test import KERNELS, bandwidth_bytes

TURNS = 5
WINDOW_NS = 100_000_000
EDGES = (256, 384, 512, 1024)


def ours(edge: int, kernel: int) -> float:
    """GFLOP/s for each second of CPU; 0 if this CPU has no such kernel."""
    result = run_task(Task(GEMM, (edge, 1, 1, WINDOW_NS, kernel)))
    return max((row.work / row.cpu_ns for row in rows_of(result.values)), default=0.0)


def blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """The same of numpy."""
    begin, count = time.thread_time_ns(), 0
    while (cpu_ns := time.thread_time_ns() - begin) < WINDOW_NS // 2 or not count:
        np.matmul(a, b, out=c)
        count += 1
    return 2 * len(a) ** 3 * count / cpu_ns


def gemm() -> None:
    """A line for each edge and kernel."""
    random = np.random.default_rng(0)
    for edge in EDGES:
        a, b = (random.standard_normal((edge, edge), np.float32) for _ in range(2))
        c = np.empty_like(a)
        best = dict.fromkeys((*KERNELS[1:], "numpy"), 0.0)
        for _ in range(TURNS):
            best["numpy"] = max(best["numpy"], blas(a, b, c))
            for number, name in enumerate(KERNELS[1:], 1):
                best[name] = max(best[name], ours(edge, number))
        peer = best.pop("numpy")
        print(f"gemm-{edge}-numpy {peer:.1f} GFLOP/s one thread of its BLAS")
        for name, rate in best.items():
            print(f"gemm-{edge}-{name} {rate:.1f} GFLOP/s {rate / peer:.2f} of numpy", flush=True)


def bandwidth() -> None:
    """The triad beside a copy of numpy over arrays as large."""
    size = bandwidth_bytes()
    source, target = (np.ones(size // 8, np.float32) for _ in range(2))
    best = copied = 0.0
    for _ in range(TURNS):
        result = run_task(Task(BANDWIDTH, (size, 1, 1, WINDOW_NS)))
        best = max(best, *(row.work / row.cpu_ns for row in rows_of(result.values)))
        for _ in range(10):
            begin = time.thread_time_ns()
            np.copyto(target, source)
            copied = max(copied, (source.nbytes + target.nbytes) / (time.thread_time_ns() - begin))
    print(f"bandwidth-numpy-copy {copied:.1f} GB/s of {(source.nbytes + target.nbytes) >> 20} MiB")
    print(f"bandwidth-triad {best:.1f} GB/s of {size >> 20} MiB, {best / copied:.2f} of numpy's copy")


if __name__ == "__main__":
    gemm()
    bandwidth()
