# SPDX-License-Identifier: Apache-2.0
"""How long a real job stands still for a test, at 4, 8 and 16 ranks on this host: with nothing done, and by test.

Prints `name value unit comparison`, one figure a line. A pause is counted from the first rank that stands to the last
that goes on, so that the wait for the slowest rank is in it. DESIGN's budget is 5 s in all, whatever the ranks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from ghtools.job.budget import left_s
from ghtools.job.native import SHIM
from ghtools.job.pause import CouldNotTell, Held, HeldRanks
from ghtools.locate.gemm_session import Session
from ghtools.locate.gemm_test import EDGE, bandwidth_bytes
from ghtools.locate.gemm_test import Plan as GemmPlan
from ghtools.locate.in_job import stopped
from ghtools.locate.ring_fabric import Plan as RingPlan
from ghtools.locate.ring_fabric import TaskFabric
from ghtools.locate.ring_plan import plan
from ghtools.locate.ring_test import RingTest
from ghtools.stream.errors import MissingError

ROOT = Path(__file__).resolve().parents[2]
BUDGET = "budget 5 s"


def nothing(held: Held) -> None:
    """Go on at once."""


def gemm(held: Held) -> None:
    """gh-validate-gemm as shipped."""
    Session(GemmPlan(EDGE, bandwidth_bytes(), 3, 400, 1)).test(held)


def ring(held: Held) -> None:
    """gh-validate-ring as shipped, its default sizes."""
    sizes = RingPlan().for_job()
    fabric = TaskFabric(held, held.ranks, {})
    try:
        schedule, how = plan(held.ranks, dict(held.hosts), "ring", None)
        quiet: Callable[[str], None] = lambda text: None  # noqa: E731
        for _ in RingTest(fabric, schedule, sizes, how, quiet, quiet, lambda: left_s(held)).run():
            pass
    finally:
        fabric.close()


def pauses(ranks: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each pause, by what was done in it."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["GHT_DIR"] = folder
        env = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(SHIM), "GHT_JOB": f"pause{ranks}"}
        torchrun = str(Path(sys.executable).parent / "torchrun")
        script = [str(ROOT / "tests/jobs/loop.py"), "--steps", "100000", "--batch", "256"]
        command = [torchrun, "--standalone", "--nproc-per-node", str(ranks), *script]
        job = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            tests: list[Callable[[Held], None]] = [nothing, gemm, ring]
            for test in tests * repeats:
                seconds = _pause(f"pause{ranks}", test, job)
                if seconds is not None:
                    found.setdefault(test.__name__, []).append(seconds)
        finally:
            job.terminate()
            job.wait()
    return found


def _pause(name: str, test: Callable[[Held], None], job: subprocess.Popen[bytes]) -> float | None:
    """One pause; None if it did not come about."""
    began: list[float] = []
    for _ in range(300):
        try:
            with stopped(name, lambda text: None) as held:
                assert isinstance(held.held, HeldRanks)
                began.append(held.held.since_ns / 1e9)
                test(held)
            return time.monotonic() - began[-1]
        except MissingError:
            if job.poll() is not None:
                raise SystemExit("the job ended") from None
            time.sleep(0.2)
        except CouldNotTell as error:
            print(f"# {name}, {test.__name__}: {error}", flush=True)
            if began:
                return None
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for ranks in options.ranks:
        for what, seconds in pauses(ranks, options.repeats).items():
            some = f"{len(seconds)} pauses, longest {max(seconds):.2f}"
            print(f"pause_{what}_{ranks}_ranks {np.median(seconds):.2f} s {BUDGET}; {some}", flush=True)


if __name__ == "__main__":
    main()
