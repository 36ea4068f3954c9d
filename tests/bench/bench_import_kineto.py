# SPDX-License-Identifier: Apache-2.0
"""gh-import kineto on a large trace: MB/s and peak memory, with ijson's time for the same file beside it.

    python tests/bench/bench_import_kineto.py [--mib 1024] [--ijson-mib 128] [--comm-share 0.02]

The trace is made here in Kineto's layout (cpu_op, cuda_runtime, kernel, ac2g, NCCL kernels with their metadata), in a
temporary directory that is removed. ijson (its fastest backend that is installed; pip install ijson) only counts the
events of a shorter file of the same kind, for it would take minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL_MIB = 300


CONV = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
COMM = {
    "Collective name": "allreduce", "In msg nelems": 6637568, "Out msg nelems": 6637568, "Group size": 8,
    "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}  # fmt: skip
KINDS: list[tuple[str, str, int, dict[str, object]]] = [
    ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 40, COMM),
    ("cpu_op", "aten::convolution_backward", 9, {"Ev Idx": 7, "Input Dims": [[64, 256, 56, 56], [64, 64, 56, 56]]}),
    ("cuda_runtime", "cudaLaunchKernel", 9, {"External id": 7, "cbid": 211}),
    ("kernel", CONV, 7, {"queued": 0, "device": 3, "stream": 7, "grid": [12544, 1, 1], "block": [64, 1, 1]}),
]


def write_trace(path: Path, size: int, share: float) -> int:
    """A trace of about `size` bytes in which `share` of the events are NCCL kernels; the number of those."""
    every = max(int(1 / share), 1)
    texts = [
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": 3, "tid": {tid},\n    "ts": %d.125, '
        f'"dur": 4.75,\n    "args": {{\n      {json.dumps(args)[1:-1]}, "correlation": %d\n    }}\n  }},\n'
        for cat, name, tid, args in KINDS
    ]
    made = events = 0
    with open(path, "w", encoding="utf-8") as out:
        out.write('{\n  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": ')
        out.write('[{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": []}]},\n  "traceEvents": [\n')
        while out.tell() < size:
            lines = []
            for number in range(events, events + 1000):
                kind = 0 if number % every == 0 else 1 + number % 3
                made += kind == 0
                lines.append(texts[kind] % (number * 5, number))
            events += 1000
            out.write("".join(lines))
        out.write(
            f'  {{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "ts": 0, "dur": {events * 5}}}\n'
        )
        out.write('  ],\n  "baseTimeNanoseconds": 1711964646000000000\n}\n')
    return made


def run(path: Path) -> tuple[float, int]:
    """Seconds and peak resident KiB of gh-import on a file."""
    began = time.monotonic()
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "gh-import"), "kineto", str(path)], stdout=subprocess.DEVNULL
    ) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"gh-import ended with {child.returncode}")
    return time.monotonic() - began, usage.ru_maxrss


def ijson_rate(path: Path) -> tuple[str, float]:
    """Backend and MB/s of counting the events with ijson; ("not installed", 0) without it."""
    try:
        import ijson
    except ImportError:
        return "not installed", 0.0
    began = time.monotonic()
    with open(path, "rb") as source:
        count = sum(1 for _ in ijson.items(source, "traceEvents.item"))
    assert count
    return str(ijson.backend), path.stat().st_size / 1e6 / (time.monotonic() - began)


def main() -> None:
    """Print name, value, unit and comparison, one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--ijson-mib", type=int, default=128)
    parser.add_argument("--comm-share", type=float, default=0.02)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank3.json"
        made = write_trace(path, options.mib << 20, options.comm_share)
        size = path.stat().st_size
        seconds, peak = run(path)
        path.unlink()
        small = Path(folder) / "small.json"
        write_trace(small, options.ijson_mib << 20, options.comm_share)
        backend, rate = ijson_rate(small)
    print(f"kineto_trace {size / 1e6:.0f} MB {made} collectives")
    print(f"kineto_rate {size / 1e6 / seconds:.0f} MB/s ijson ({backend}, counting only) {rate:.0f}")
    print(f"kineto_peak_memory {peak / 1024:.0f} MiB goal {GOAL_MIB}")
    sys.exit(0 if peak / 1024 < GOAL_MIB else 1)


if __name__ == "__main__":
    main()
