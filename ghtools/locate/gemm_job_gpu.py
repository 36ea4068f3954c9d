# SPDX-License-Identifier: Apache-2.0
"""Measure the GPUs of ranks that are held, in the job's own processes and contexts (csrc/shim/gpu_*.c).

Tested on ranks whose libcuda and libcublasLt are the tests' own; never run on a GPU.
"""

from __future__ import annotations

import errno
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ghtools.job import task as tasks
from ghtools.job.budget import left_s
from ghtools.job.pause import Held
from ghtools.job.task import Task, TaskResult

from .gemm_rows import HEAD, HEAD_SIZE, rows_of
from .measured import Measured
from .nvml_watch import NvmlWatch

if TYPE_CHECKING:
    from .gemm_test import Plan

FORMATS = {"float8_e4m3": 1, "float16": 2, "bfloat16": 3, "float32": 4}  # GH_GPU_FP8 and on
FACTS = 4  # GH_GPU_COUNT
FP8_CAPABILITY = 89
COPY_BYTES, LEAST_BYTES = 2 << 30, 256 << 20  # as in gpu_copy.c
# A GPU has no quota with a period, and its clock is its own: windows of a quarter of a CPU's are long enough, and the
# tests of all formats and the CPU's one end in the time that a job may stand.
WINDOW_SHARE = 0.25
PROBE_S = 2.0
SETUP_S = 0.5  # a test's matrices and its look at the product
SPARE_S = 5.0
NO_GPU = (errno.ENODEV, errno.ENOSYS)
SAID = re.compile(r"(\S{1,31}) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}) (.{1,127})")


@dataclass(frozen=True)
class Gpu:
    """The device of a rank. `room`: bytes a test may take; `capability`: 90 is 9.0; `edge`: of matrices that fit."""

    rank: int
    host: str
    pci: str
    uuid: str
    name: str
    room: int
    capability: int
    has_cublaslt: bool
    edge: int


def find_gpus(held: Held, ranks: Sequence[int]) -> tuple[dict[int, Gpu], dict[int, str]]:
    """The GPUs of ranks that have one in use, and of those that could not say why not. Takes some milliseconds."""
    results = held.run({rank: Task(tasks.GPU_COPY) for rank in ranks}, PROBE_S)
    gpus, troubles = {}, {}
    for rank, result in results.items():
        gpu = _gpu_of(rank, held.hosts.get(rank, ""), result)
        if gpu is not None:
            gpus[rank] = gpu
        elif result.status not in NO_GPU:
            troubles[rank] = result.why or "what it says of its GPU makes no sense"
    return gpus, troubles


def _gpu_of(rank: int, host: str, result: TaskResult) -> Gpu | None:
    said = SAID.fullmatch(result.said)
    if result.status or said is None or len(result.values) != HEAD + FACTS:
        return None
    room, capability, version, edge = result.values[HEAD:]
    prefix = "MIG" if " MIG " in said[3] else "GPU"
    return Gpu(rank, host, said[1], f"{prefix}-{said[2]}", said[3], room, capability, version >= 0, edge)


def measure_gpus_of(held: Held, gpus: Mapping[int, Gpu], plan: Plan, edge: int) -> list[Measured]:
    """The tests of `plan` on these GPUs, one format after another, all GPUs at once.

    `edge` of the matrices, 0 is 8192 or what fits all of them; what they took is in the result. A format for which the
    job would stand too long is left out, with a word.
    """
    if not gpus:
        return []
    on_host = Counter(gpu.host for gpu in gpus.values())
    bases = {
        rank: Measured(rank, gpu.host, gpu.uuid, f"{gpu.name} in a job", together=on_host[gpu.host])
        for rank, gpu in gpus.items()
    }
    found: list[Measured] = []
    here = {gpu.uuid for gpu in gpus.values() if gpu.host == socket.gethostname()}
    for test, dtype, size in _rounds(gpus, plan, edge):
        able: dict[int, Measured] = {}
        for rank, base in bases.items():
            one = replace(base, test=test, dtype=dtype, size=size)
            if why := _why_not(gpus[rank], test, dtype):
                found.append(replace(one, status="skipped", why=why))
            else:
                able[rank] = one
        found += _round(held, gpus, able, plan, here)
    return found


def _rounds(gpus: Mapping[int, Gpu], plan: Plan, edge: int) -> list[tuple[str, str, int]]:
    """Test, format and size, the same on all GPUs that have room: else they could not be compared."""
    rounds = []
    if "gemm" in plan.tests:
        edges = [gpu.edge for gpu in gpus.values() if gpu.edge > 0]
        rounds += [("gemm", dtype, edge or min(edges, default=0)) for dtype in FORMATS]
    if "bandwidth" in plan.tests:
        size = plan.gpu_bytes or COPY_BYTES
        shared = Counter(gpu.uuid for gpu in gpus.values())
        rooms = [gpu.room // shared[gpu.uuid] for gpu in gpus.values()]
        least = min((room for room in rooms if room >= LEAST_BYTES), default=0)
        while least < size and size // 2 >= LEAST_BYTES:
            size //= 2
        rounds.append(("bandwidth", "int32", size))
    return rounds


def _why_not(gpu: Gpu, test: str, dtype: str) -> str:
    if test == "gemm" and not gpu.has_cublaslt:
        return "the job has no cuBLASLt loaded"
    if dtype == "float8_e4m3" and gpu.capability < FP8_CAPABILITY:
        return "this GPU has no FP8"
    return ""


def _round(
    held: Held, gpus: Mapping[int, Gpu], able: Mapping[int, Measured], plan: Plan, here: set[str]
) -> list[Measured]:
    """One test at once on those that are able."""
    if not able:
        return []
    window_s = plan.window_ms * WINDOW_SHARE / 1000
    needed_s = (plan.repeats + 0.25) * window_s + SETUP_S
    if left_s(held) < needed_s:
        why = "the job would have stood too long"
        return [replace(one, status="skipped", why=why) for one in able.values()]
    shared = Counter(gpus[rank].uuid for rank in able)
    given = {}
    for rank, one in able.items():
        kind = tasks.GPU_GEMM if one.test == "gemm" else tasks.GPU_COPY
        together = shared[gpus[rank].uuid]
        window_ns = int(window_s * 1e9)
        given[rank] = Task(kind, (one.size, plan.repeats, 1, window_ns, FORMATS.get(one.dtype, 0), together))
    timeout_s = needed_s + SPARE_S
    with NvmlWatch(here & shared.keys()) as watch:
        results = held.run(given, timeout_s)
    return [
        _measured(replace(one, facts={"pci": gpus[rank].pci, **watch.facts(one.device)}), results.get(rank), timeout_s)
        for rank, one in able.items()
    ]


def _measured(base: Measured, result: TaskResult | None, timeout_s: float) -> Measured:
    if result is None:
        return replace(base, status="failed", why=f"no result within {timeout_s:.3g} s")
    if result.status:
        status = "skipped" if result.status in (errno.ENOTSUP, errno.EBUSY, *NO_GPU) else "failed"
        return replace(base, status=status, why=result.why)
    repeats = rows_of(result.values)
    if not repeats:
        return replace(base, status="failed", why="its result is damaged")
    return replace(base, size=result.values[HEAD_SIZE], repeats=repeats)
