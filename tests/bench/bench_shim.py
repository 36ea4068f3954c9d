# SPDX-License-Identifier: Apache-2.0
"""Cost of a hooked call: hook minus bare call, same run (DESIGN section 10: under 100 ns while tracking).

Prints `name value unit comparison`, one figure a line.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the tests' compiler helper
from ghtools.job.native import SHIM
from tests.csrc.build import HERE as CSRC_TESTS
from tests.csrc.build import cc

BENCH = Path(__file__).resolve().parent
GOAL = "goal 100"


def nccl(folder: Path, threads: int, tracking: bool = True) -> tuple[float, float]:
    """ns a call (bare, hooked) of the NCCL front end; with tracking switched off if asked."""
    library = cc(
        folder / "libnccl.so.2", [CSRC_TESTS / "fakenccl.c"], "-O2", "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2"
    )
    program = cc(folder / "shim_call", [BENCH / "shim_call.c", library], "-O2", f"-Wl,-rpath,{folder}")
    env = {**os.environ, "LD_PRELOAD": str(SHIM), "GHT_DIR": str(folder / "rings"), "GHT_JOB": "b", "RANK": "0"}
    if not tracking:
        from ghtools.job.control import ControlPage
        from ghtools.job.paths import make_job_dir

        with ControlPage.create(make_job_dir("b", folder / "rings")) as page:
            page.set_tracking(False, lease_s=600)
    out = subprocess.run([program, str(threads), "41", "50000"], env=env, check=True, capture_output=True, text=True)
    _, bare, hooked = out.stdout.split()
    return float(bare), float(hooked)


def nccl_profiled(folder: Path, profiling: bool) -> tuple[float, float, float]:
    """ns a call (bare, hooked) on a stream of the libcuda without a device of the tests, and the share timed.

    It is what the shim adds, with a driver that does next to nothing: a real one takes about a microsecond an event.
    """
    from ghtools.job.control import ControlPage
    from ghtools.job.paths import jobs, make_job_dir
    from ghtools.job.ring import RingReader
    from ghtools.stream.records import FLAG_DUR_INVALID, FLAG_EXEC

    cuda = cc(folder / "libcuda.so.1", [CSRC_TESTS / "fakecuda.c"], "-O2", "-Wl,-soname,libcuda.so.1")
    library = cc(
        folder / "libnccl.so.2", [CSRC_TESTS / "fakenccl.c"], "-O2", "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2"
    )
    program = cc(
        folder / "shim_call", [BENCH / "shim_call.c"], "-O2", "-DWITH_CUDA", str(cuda), str(library),
        f"-Wl,-rpath,{folder}",
    )  # fmt: skip
    env = {**os.environ, "LD_PRELOAD": str(SHIM), "GHT_DIR": str(folder / "rings"), "GHT_JOB": "b", "RANK": "0"}
    with ControlPage.create(make_job_dir("b", folder / "rings")) as page:
        page.set_profiling(profiling, lease_s=600)
    out = subprocess.run(
        [program, "1", "41", "200"], env={**env, "FAKE_CUDA_REAL": "1"}, check=True, capture_output=True, text=True
    )
    _, bare, hooked = out.stdout.split()
    with RingReader(jobs(folder / "rings")[0].rings[0].path) as reader:
        flags = reader.drain(100000)[0]["flags"]
    timed = (flags & (FLAG_EXEC | FLAG_DUR_INVALID)) == FLAG_EXEC
    return float(bare), float(hooked), float(timed.sum() / max(1, (flags & FLAG_EXEC == 0).sum()))


GLOO = """
import ctypes, sys, torch
lib = ctypes.CDLL(sys.argv[1])
t = torch.zeros(1000)
n = 41
a, b = (ctypes.c_double * n)(), (ctypes.c_double * n)()
lib.bench_gloo.argtypes = [ctypes.c_void_p, *[ctypes.c_int] * 3, ctypes.c_void_p, ctypes.c_void_p]
assert lib.bench_gloo(t._cdata, n, 50000, int(sys.argv[2]), a, b) == 1, "the shim is not in front"
print(sorted(a)[n // 4], sorted(b)[n // 4])
"""


def gloo(folder: Path, works: bool = False, profile: bool = False) -> tuple[float, float]:
    """ns a call (bare, hooked) of the Gloo front end, one tensor a call, sizes read by real torch.

    `works`: each call enqueues and executes a work; `profile`: its execution is timed.
    """
    from ghtools.job.control import ControlPage
    from ghtools.job.paths import make_job_dir
    from ghtools.job.ring import RingReader

    library = cc(folder / "gloo_call.so", [BENCH / "gloo_call.c"], "-O2")
    env = {**os.environ, "LD_PRELOAD": f"{SHIM}:{library}", "GHT_DIR": str(folder / "g"), "GHT_JOB": "g", "RANK": "0"}
    with ControlPage.create(make_job_dir("g", folder / "g")) as page:
        page.set_profiling(profile, lease_s=600)
    words = [sys.executable, "-c", GLOO, str(library), str(int(works))]
    out = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    bare, hooked = out.stdout.split()
    ring = next((folder / "g" / "g").glob("*.ring"))

    with RingReader(ring) as reader:
        records, _ = reader.drain(1000)
        if set(records["bytes"]) != {4000}:
            raise SystemExit("the hook did not read the tensor's size: this would not measure what a job pays")
        if (records["dur_ns"] >= 0).any() != (works and profile):
            raise SystemExit("executions were not timed as asked: this would not measure what a job pays")
    return float(bare), float(hooked)


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        for threads in (1, 2):
            runs = [nccl(Path(tempfile.mkdtemp(dir=name)), threads) for _ in range(5)]
            cost = statistics.median(hooked - bare for bare, hooked in runs)
            print(f"shim_nccl_call_{threads}_thread {cost:.1f} ns {GOAL}", flush=True)
        runs = [nccl(Path(tempfile.mkdtemp(dir=name)), 1, tracking=False) for _ in range(5)]
        cost = statistics.median(hooked - bare for bare, hooked in runs)
        print(f"shim_nccl_call_tracking_off {cost:.1f} ns {GOAL}", flush=True)
        for profiling, name_of in ((False, "off"), (True, "on")):
            each = [nccl_profiled(Path(tempfile.mkdtemp(dir=name)), profiling) for _ in range(3)]
            cost = statistics.median(hooked - bare for bare, hooked, _ in each)
            timed = statistics.median(share for _, _, share in each)
            print(
                f"shim_nccl_call_profiling_{name_of} {cost:.1f} ns {100 * timed:.0f} % timed, fake driver", flush=True
            )
        try:
            import torch  # noqa: F401
        except ImportError:
            print("shim_gloo_call - ns torch is not installed")
            return
        runs = [gloo(Path(tempfile.mkdtemp(dir=name))) for _ in range(5)]
        cost = statistics.median(hooked - bare for bare, hooked in runs)
        print(f"shim_gloo_call {cost:.1f} ns {GOAL}", flush=True)


if __name__ == "__main__":
    main()
