# SPDX-License-Identifier: Apache-2.0
"""GEMM and copies inside a paused job on a real GPU, with real torch and the cuBLASLt that it has loaded: one rank."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ghtools.job import task as tasks
from ghtools.job.budget import Bounded
from ghtools.job.native import SHIM
from ghtools.job.paths import JobDir, jobs
from ghtools.job.pause import pause
from ghtools.job.ring import RingReader
from ghtools.job.task import Task
from ghtools.locate.gemm_job_gpu import FORMATS, find_gpus
from ghtools.locate.gemm_test import Plan, measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here (/dev/nvidiactl is absent)"),
]

# A training step with a multiplication, so that cuBLAS is in use, until it is told to stop. Another thread captures a
# graph over and over meanwhile: a call of ours that is not allowed then would spoil it.
JOB = """
import json, pathlib, sys, threading, time
try:
    import torch, torch.distributed as dist
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available() or not dist.is_nccl_available():
    sys.exit(77)
store, over, capture = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3] == "1"
torch.manual_seed(1)
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://" + store, rank=0, world_size=1)
x, w = (torch.randn(1024, 1024, device="cuda") / 32 for _ in range(2))
first, same, steps, graphs, end = None, True, 0, 0, False
torch.matmul(x, w)
torch.cuda.synchronize()

def captures():
    global graphs
    y, stream = torch.zeros(1024, device="cuda"), torch.cuda.Stream()
    while not end:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            y += 1
            time.sleep(0.02)
            graph.capture_end()
        graphs += 1
        time.sleep(0.02)

thread = threading.Thread(target=captures)
if capture:
    thread.start()
out = torch.empty_like(x)
while not over.exists():
    dist.all_gather_into_tensor(out, torch.matmul(x, w))
    torch.cuda.current_stream().synchronize()
    loss = float(out.sum())
    first = loss if first is None else first
    same, steps = same and loss == first, steps + 1
end = True
if capture:
    thread.join()
torch.cuda.synchronize()
print(json.dumps({"same": same, "steps": steps, "graphs": graphs, "free": torch.cuda.mem_get_info()[0]}))
"""


def stands(env: dict[str, str]) -> tuple[JobDir, dict[int, int]]:
    """The job once it makes calls, and one some way ahead."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = jobs(Path(env["GHT_DIR"]))
        if found and found[0].rings:
            with RingReader(found[0].rings[0].path) as ring:
                made = ring.live().calls
            if made > 100:
                return found[0], {0: made + 200}
        time.sleep(0.01)
    raise AssertionError("the rank made no calls")


@pytest.mark.parametrize("capture", [False, True])
def test_a_real_gpu_is_tested_and_the_job_goes_on(capture: bool, clean_env: dict[str, str], tmp_path: Path) -> None:
    env = {**clean_env, "GHT_JOB": "g", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LD_PRELOAD": str(SHIM)}
    over = tmp_path / "over"
    rank = subprocess.Popen(
        [sys.executable, "-c", JOB, str(tmp_path / "store"), str(over), str(int(capture))],
        env=env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        try:
            job, stops = stands(env)
        except AssertionError:
            if rank.poll() == 77:
                pytest.skip("this torch has no CUDA or no NCCL")
            raise
        with pause(job, stops) as held:
            bounded = Bounded(held, 30.0)
            before, trouble = find_gpus(bounded, [0])
            assert trouble == {} and before[0].has_cublaslt and before[0].edge >= 1024
            measured = measure(bounded, [0], Plan())
            odd = held.run({0: Task(tasks.GPU_GEMM, (1000, 1, 1, 0, FORMATS["bfloat16"], 1))}, 10.0)[0]
            after, _ = find_gpus(bounded, [0])
        over.touch()
        out, _ = rank.communicate(timeout=60)
    finally:
        rank.kill()
        rank.wait()
    assert rank.returncode == 0
    said = json.loads(out)
    assert said["same"] and said["steps"] > 300 and (said["graphs"] > 0) == capture
    gpu = [one for one in measured if one.device == before[0].uuid]
    done = {(one.test, one.dtype): one for one in gpu if one.status == "ok"}
    untold = {(one.test, one.dtype): one.why for one in gpu if one.status != "ok"}
    assert {("gemm", "float16"), ("gemm", "bfloat16"), ("gemm", "float32"), ("bandwidth", "int32")} <= done.keys(), (
        untold
    )
    assert ("gemm", "float8_e4m3") in done or before[0].capability < 89, untold
    assert all(len(one.repeats) == 3 and one.rate > 0 for one in done.values())
    assert done["gemm", "float16"].rate > done["gemm", "float32"].rate
    assert (odd.status, odd.values[7], odd.said.split(" ", 2)[2]) == (0, 992, before[0].name), odd.said
    # All memory is back, but for what the library keeps for its code and its handle.
    assert before[0].room - after[0].room < 256 << 20
