# SPDX-License-Identifier: Apache-2.0
"""Measure: GEMM and memory bandwidth on all ranks at once, of the CPU on the rank's own threads and in its own cgroup,
and of its GPU if it has one in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from ghtools.job import task as tasks
from ghtools.job.budget import left_s
from ghtools.job.pause import Held
from ghtools.job.task import Task, TaskResult
from ghtools.stream.records import Gemm

from .gemm_job_gpu import find_gpus, measure_gpus_of
from .gemm_rows import HEAD, rows_of
from .measured import UNITS, Measured, Repeat

KERNELS = ("", "plain", "avx2", "avx512")
SPARE_S = 20.0  # over the windows: a rank with a tenth of a CPU still has to fill its arrays
EDGE = 384  # 1.7 MB of matrices, and a millisecond or so each
LLC_FACTOR = 4
MIN_BYTES, MAX_BYTES = 64 << 20, 1 << 30


@dataclass(frozen=True)
class Plan:
    """What to measure. `edge` of the matrices, `bytes` of the arrays of a rank together.

    `edge` 0, or for a GPU in a job the CPU's default, is a GPU's own default; so is `gpu_bytes` 0.
    """

    edge: int = EDGE
    bytes: int = MIN_BYTES
    repeats: int = 3
    window_ms: int = 400
    threads: int = 1
    tests: tuple[str, ...] = ("gemm", "bandwidth")
    gpu_bytes: int = 0


def bandwidth_bytes() -> int:
    """A size that no cache of this host holds: four times its last level, in bounds."""
    sizes = [MIN_BYTES // LLC_FACTOR]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) << 10)
    return min(MAX_BYTES, LLC_FACTOR * max(sizes))


def measure(held: Held, ranks: Sequence[int], plan: Plan) -> list[Measured]:
    """Run the tests of `plan` on these ranks, one test after another, all ranks at once.

    In a job a rank with a GPU in use has its GPU tested, and its CPU in the GEMM alone: what feeds the GPU may be what
    is slow. A rank that gives no result, or a wrong one, is in the list with the status failed and the reason.
    """
    in_job = isfinite(left_s(held))
    gpus, troubles = find_gpus(held, ranks) if in_job else ({}, {})
    found = [
        Measured(rank, held.hosts.get(rank, ""), "gpu", "gpu", test, status="failed", why=why)
        for rank, why in troubles.items()
        for test in plan.tests
    ]
    found += measure_gpus_of(held, gpus, plan, plan.edge if plan.edge != EDGE else 0)
    for test in plan.tests:
        found += _cpus(held, [rank for rank in ranks if test == "gemm" or rank not in gpus], plan, test)
    return found


def _cpus(held: Held, ranks: Sequence[int], plan: Plan, test: str) -> list[Measured]:
    """One test on the CPUs of these ranks."""
    if not ranks:
        return []
    size = plan.edge if test == "gemm" else plan.bytes
    kind = tasks.GEMM if test == "gemm" else tasks.BANDWIDTH
    timeout_s = (plan.repeats + 1) * plan.window_ms / 1000 + SPARE_S
    together = Counter(held.hosts.get(rank, "") for rank in ranks)
    window_ns = plan.window_ms * 1_000_000
    given = {
        rank: Task(kind, (size, plan.repeats, plan.threads, window_ns, 0, together[held.hosts.get(rank, "")]))
        for rank in ranks
    }
    results = held.run(given, timeout_s)
    found = []
    for rank in ranks:
        host = held.hosts.get(rank, "")
        base = Measured(rank, host, test=test, size=size, threads=plan.threads, together=together[host])
        found.append(_measured(base, results.get(rank), timeout_s))
    return found


def pooled(first: Sequence[Measured], second: Sequence[Measured]) -> list[Measured]:
    """The repeats of two rounds as those of one; a rank that had a result in the first only keeps that."""
    more = {(one.rank, one.device, one.test, one.dtype): one for one in second if one.status == "ok"}
    found = []
    for one in first:
        other = more.get((one.rank, one.device, one.test, one.dtype))
        found.append(replace(one, repeats=one.repeats + other.repeats) if other and one.status == "ok" else one)
    return found


def _measured(base: Measured, result: TaskResult | None, timeout_s: float) -> Measured:
    if result is None:
        return replace(base, status="failed", why=f"no result within {timeout_s:.3g} s")
    if result.status:
        return replace(base, status="failed", why=result.why)
    repeats = rows_of(result.values)
    if not repeats:
        return replace(base, status="failed", why="its result is damaged")
    head = result.values[:HEAD]
    kernel = KERNELS[head[1]] if base.test == "gemm" and 0 < head[1] < len(KERNELS) else ""
    quota = head[4] / head[5] if head[4] > 0 and head[5] > 0 else -1.0
    facts = {"kernel": kernel, "cpus": head[3]} if kernel else {"cpus": head[3]}
    return replace(base, kind=f"cpu {kernel}".rstrip(), threads=head[2], repeats=repeats, quota=quota, facts=facts)


def records_of(measured: Measured, t_ns: int) -> list[Gemm]:
    """A `gemm` record for each repeat, or one that says why there is none. `t_ns` is for the latter."""
    unit = UNITS[measured.test][1]
    common: dict[str, Any] = {
        "rank": measured.rank,
        "host": measured.host,
        "device": measured.device,
        "test": measured.test,
        "dtype": measured.dtype,
        "size": measured.size,
    }
    if measured.status != "ok":
        facts = {**measured.facts, "why": measured.why}
        return [Gemm(**common, t_ns=t_ns, status=measured.status, facts=facts)]
    return [
        Gemm(
            **common,
            repeat=number,
            dur_ns=repeat.wall_ns,
            rate=repeat.rate / unit,
            t_ns=repeat.t_ns,
            facts={**measured.facts, **_facts(measured, repeat)},
        )
        for number, repeat in enumerate(measured.repeats)
    ]


def _facts(measured: Measured, repeat: Repeat) -> dict[str, Any]:
    """What explains the number, as far as it is known."""
    wall = repeat.wall_ns
    facts: dict[str, Any] = {"threads": measured.threads}
    for name, value, per in (
        ("cpu_share", repeat.cpu_ns, wall * measured.threads),
        ("waited_share", repeat.waited_ns, wall * measured.threads),
        ("throttled_share", repeat.throttled_ns, wall * measured.threads),
        ("host_busy_cpus", repeat.busy_ns, wall),
        ("steal_cpus", repeat.steal_ns, wall),
        ("mhz", repeat.khz, 1000),
    ):
        if value >= 0:
            facts[name] = round(value / per, 4)
    for name, count in (("forced", repeat.forced), ("periods", repeat.periods), ("periods_throttled", repeat.held)):
        if count >= 0:
            facts[name] = count
    if measured.quota > 0:
        facts["quota_cpus"] = round(measured.quota, 4)
    return facts
