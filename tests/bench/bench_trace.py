# SPDX-License-Identifier: Apache-2.0
"""How fast gh-trace reads: a full ring drained to encoded records, and the processor time of following a quiet job.

Prints `name value unit comparison`, one figure a line. There is no peer's figure: the goal is to stay far ahead of
any job (a rank makes thousands of calls a second, a ring holds 65,536).
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ghtools.job.native import SHIM
from ghtools.source.live import LiveSource
from ghtools.stream.writer import Writer
from tests.csrc.build import HERE, cc


def make_rings(folder: Path, ranks: int, calls: int) -> Path:
    """Fill the rings of a job by a program that makes NCCL calls (a test library of NCCL's ABI); their directory."""
    library = cc(folder / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2")
    program = cc(folder / "driver", [HERE / "driver.c", library], "-DMAIN", f"-Wl,-rpath,{folder}")
    for rank in range(ranks):
        env = {
            **os.environ,
            "LD_PRELOAD": str(SHIM),
            "GHT_DIR": str(folder / "rings"),
            "GHT_JOB": "b",
            "RANK": str(rank),
        }
        subprocess.run([program, "simple", str(calls)], env=env, check=True)
    return folder / "rings" / "b"


def read_all(folder: Path) -> tuple[int, float]:
    """Events of all rings below a job's directory, read as gh-trace does, and the seconds that took."""
    source = LiveSource(folder, time.monotonic, time.time_ns)
    writer = Writer(io.BytesIO())
    began = time.perf_counter()
    while True:
        records = source.poll()
        for record in records:
            writer.write(record)
        if not any(record.kind == "calls" for record in records):
            break
    took = time.perf_counter() - began
    source.close()
    return source.events, took


def idle_cpu(folder: Path, seconds: float = 5.0) -> float:
    """Per cent of one core that following a job which makes no calls takes."""
    script = f"""
import resource, sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from pathlib import Path
from ghtools.source.live import LiveSource
source = LiveSource(Path({str(folder)!r}), time.monotonic, time.time_ns, lambda: False)
source.poll()
before, end = time.process_time(), time.monotonic() + {seconds}
while time.monotonic() < end:
    source.poll()
    time.sleep(0.05)
print(time.process_time() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return 100 * float(done.stdout) / seconds


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        folder = make_rings(Path(name), ranks=4, calls=60_000)
        events, took = read_all(folder)
        print(f"gh-trace.read {events / took / 1e6:.2f} M_events/s one core, {events} events of 4 ranks")
        print(f"gh-trace.idle {idle_cpu(folder):.2f} %_of_a_core following 4 ranks")


if __name__ == "__main__":
    main()
