# SPDX-License-Identifier: Apache-2.0
"""Slow-down of a real 2-rank DDP job by the shim: alternating runs with and without, an interval over the pairs.

Prints `name value unit comparison`, one figure a line. The paper (GREYHOUND) states 0.39 % at the mean and
1.1 % at worst.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from ghtools.job.native import SHIM
from ghtools.job.paths import jobs
from ghtools.job.ring import RingReader

BENCH = Path(__file__).resolve().parent
PAPER = "paper 0.39 mean, 1.1 worst"


def run(folder: Path, iterations: int, shim: bool) -> list[float]:
    """Iteration times of one run, ns: mean of the middle 80 %, mean of the quickest fifth, CPU time."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GHT_DIR": str(folder)}
    env.pop("LD_PRELOAD", None)
    if shim:
        env["LD_PRELOAD"] = str(SHIM)
    torchrun = Path(sys.executable).parent / "torchrun"
    command = [torchrun, "--standalone", "--nproc-per-node", "2", BENCH / "ddp_rank.py", str(iterations)]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the job {'with' if shim else 'without'} the shim failed:\n{done.stderr}")
    return [float(text) for text in done.stdout.split()[-3:]]


def calls_made(folder: Path) -> int:
    """Calls that rank 0 of the last hooked run recorded; 0 means nothing was hooked."""
    found = jobs(folder)
    if not found:
        return 0
    with RingReader(found[0].rings[0].path) as ring:
        return ring.live().written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=400)
    options = parser.parse_args()
    without, with_ = [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        for pair in range(options.pairs):
            # The order alternates, so that a drift of the machine falls on both alike.
            for shim in (False, True) if pair % 2 == 0 else (True, False):
                (with_ if shim else without).append(run(folder, options.iterations, shim))
        calls = calls_made(folder)
    if not calls:
        raise SystemExit("the job was not hooked: nothing to measure")
    per_iteration = calls / (options.iterations + 20)
    bare_ms = np.mean(without, axis=0)[0] / 1e6
    print(f"job_iteration {bare_ms:.3f} ms without the shim, {per_iteration:.1f} calls an iteration")
    for column, name in enumerate(("job_slowdown", "job_slowdown_of_quickest_fifth", "job_cpu_time_more")):
        percent = 100 * np.log(np.array(with_)[:, column] / np.array(without)[:, column])
        draws = np.random.default_rng(1).choice(percent, (10000, len(percent))).mean(axis=1)
        low, high = np.percentile(draws, [2.5, 97.5])
        print(f"{name} {percent.mean():.3f} % {PAPER}")
        print(f"{name}_interval {low:.3f}..{high:.3f} % 95 % over {options.pairs} pairs of runs")


if __name__ == "__main__":
    main()
