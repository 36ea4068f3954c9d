# SPDX-License-Identifier: Apache-2.0
"""Measure GPUs by torch, alone: FP8, FP16, BF16 and FP32 GEMM at a size that fills them, and copies in their memory.

All GPUs work at once, as they do in a job. This was not run on a GPU: the machine it was written on has none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ghtools.stream.errors import GhError, MissingError

from .gemm_test import Plan
from .measured import Measured, Repeat
from .nvml_facts import Nvml

EDGE = 8192
COPY_BYTES = 2 << 30
WARM_STEPS = 3
# Of a row against the same in double precision, by the greatest element: formats round, tensor cores add in less.
TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 3e-2, "float8_e4m3": 5e-2}


@dataclass
class _Work:
    """One test on one GPU: `step` enqueues one multiplication or copy, `right` looks at what it made."""

    base: Measured
    index: int
    step: Callable[[], object]
    right: Callable[[], bool]
    per_step: int


def measure_gpus(chosen: Sequence[int] | None, plan: Plan) -> list[Measured]:
    """Test all GPUs that torch sees, or those with these numbers; a rank is torch's number of a GPU.

    MissingError if there is no torch or no GPU. A GPU in use or with MIG is in the list, skipped.
    """
    try:
        import torch
    except ImportError:
        raise MissingError("cannot test GPUs", "torch is not installed", "pip install torch") from None
    if not torch.cuda.is_available():
        raise MissingError("cannot test GPUs", "torch sees none", "--devices cpu")
    count = torch.cuda.device_count()
    indices = list(range(count)) if chosen is None else list(chosen)
    if wrong := [index for index in indices if index >= count]:
        raise GhError(f"cannot test GPU {wrong[0]}", f"torch sees {count}")
    nvml, found, bases = Nvml(), [], []
    for index in indices:
        properties = torch.cuda.get_device_properties(index)
        uuid = str(getattr(properties, "uuid", index))
        uuid = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        base = Measured(index, socket.gethostname(), uuid, properties.name, together=len(indices))
        if why := nvml.why_not(uuid):
            found.append(replace(base, status="skipped", why=why))
        else:
            bases.append(base)
    edge = plan.edge or EDGE
    for dtype in ("float8_e4m3", "float16", "bfloat16", "float32", ""):
        works = []
        for base in bases:
            try:
                works.append(_gemm(torch, base, dtype, edge) if dtype else _copy(torch, base))
            except (RuntimeError, AttributeError, NotImplementedError) as error:  # out of memory, no such format here
                test = "gemm" if dtype else "bandwidth"
                why = str(error).split("\n", 1)[0][:200]
                found.append(replace(base, test=test, dtype=dtype, status="skipped", why=why))
        found += _run(torch, nvml, works, plan)
        works.clear()
        torch.cuda.empty_cache()
    return found


def _gemm(torch: Any, base: Measured, dtype: str, edge: int) -> _Work:
    device = torch.device("cuda", base.rank)
    generator = torch.Generator(device).manual_seed(base.rank)
    a, b = (torch.randn((edge, edge), device=device, generator=generator) / 4 for _ in range(2))
    if dtype == "float8_e4m3":
        one = torch.ones((), device=device)
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()  # its second is column-major
        out = torch.empty((edge, edge), device=device, dtype=torch.bfloat16)

        def step() -> object:
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=out)
    else:
        kind = getattr(torch, dtype)
        a, b = a.to(kind), b.to(kind)
        out = torch.empty((edge, edge), device=device, dtype=kind)

        def step() -> object:
            return torch.matmul(a, b, out=out)

    step()
    first = out.clone()
    wanted = a[:1].double() @ b.double() if dtype != "float8_e4m3" else a[:1].float().double() @ b.float().double()
    error = float((first[:1].double() - wanted).abs().max() / wanted.abs().max())

    def right() -> bool:
        """The first row is near that in double precision, and the last product is the first one bit for bit."""
        return error < TOLERANCE[dtype] and bool(torch.equal(first, out))

    made = replace(base, test="gemm", dtype=dtype, size=edge)
    return _Work(made, base.rank, step, right, 2 * edge**3)


def _copy(torch: Any, base: Measured) -> _Work:
    device = torch.device("cuda", base.rank)
    free, _ = torch.cuda.mem_get_info(device)
    count = min(COPY_BYTES, free // 8) // 4
    source = torch.arange(count, device=device, dtype=torch.int32)
    target = torch.zeros_like(source)
    made = replace(base, test="bandwidth", dtype="int32", size=4 * count)
    return _Work(made, base.rank, lambda: target.copy_(source), lambda: bool(torch.equal(source, target)), 8 * count)


def _run(torch: Any, nvml: Nvml, works: Sequence[_Work], plan: Plan) -> list[Measured]:
    """Warm up, then the repeats: all GPUs get their work, then all are waited for."""
    counts = {work.index: WARM_STEPS for work in works}
    repeats: dict[int, list[Repeat]] = {work.index: [] for work in works}
    facts: dict[int, dict[str, Any]] = {}
    for number in range(plan.repeats + 1):
        began_ns, events = time.time_ns(), {}
        for work in works:
            with torch.cuda.device(work.index):
                events[work.index] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[work.index][0].record()
                for _ in range(counts[work.index]):
                    work.step()
                events[work.index][1].record()
        if number:
            facts = {work.index: nvml.facts(work.base.device) for work in works}  # while they work
        for work in works:
            torch.cuda.synchronize(work.index)
            begin, end = events[work.index]
            wall_ns = max(1, int(begin.elapsed_time(end) * 1e6))
            if number:
                repeats[work.index].append(Repeat(began_ns, wall_ns, -1, counts[work.index] * work.per_step))
            else:
                counts[work.index] = max(1, int(plan.window_ms * 1e6 * WARM_STEPS / wall_ns))
    found = []
    for work in works:
        one = replace(work.base, repeats=tuple(repeats[work.index]), facts=facts.get(work.index, {}))
        found.append(one if work.right() else replace(one, repeats=(), status="failed", why="a result was wrong"))
    return found
