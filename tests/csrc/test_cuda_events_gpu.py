# SPDX-License-Identifier: Apache-2.0
"""Durations of NCCL's calls on a real GPU with real torch: one rank, which is enough for the events.

With one rank NCCL turns a collective that is not in place into a copy on the device: it takes time, on its stream.
Another clock says how long, torch's own events around the same call.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ghtools.job.control import ControlPage
from ghtools.job.native import SHIM
from ghtools.job.paths import jobs, make_job_dir
from ghtools.job.ring import RingReader
from ghtools.stream.records import FLAG_CAPTURE, FLAG_DUR_INVALID, FLAG_EXEC, OP_CODE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here (/dev/nvidiactl is absent)"),
]

Env = dict[str, str]
MB = 1 << 20

BEGIN = """
import json, sys, time
try:
    import torch, torch.distributed as dist
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available() or not dist.is_nccl_available():
    sys.exit(77)
torch.manual_seed(1)
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=0, world_size=1)
n = 64 << 20
a = torch.arange(n, dtype=torch.float32, device="cuda")
b = torch.zeros_like(a)
small = torch.ones(8, device="cuda")

def warm(group=None):  # until the shim has made its events
    for _ in range(50):
        dist.all_gather_into_tensor(torch.empty_like(small), small, group=group)
        time.sleep(0.005)
    torch.cuda.synchronize()

warm()
"""

# Calls one by one and many at once, with torch's own events around each.
PLAIN = """
outer = []
for wait in (True, False):
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        dist.all_gather_into_tensor(b, a)
        end.record()
        outer.append((begin, end))
        if wait:
            torch.cuda.synchronize()
torch.cuda.synchronize()
assert torch.equal(a, b)
time.sleep(0.3)
print(json.dumps([x.elapsed_time(y) for x, y in outer]))
"""

# A collective in a graph, replayed, while another thread's events are being asked about.
GRAPH = """
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        dist.all_gather_into_tensor(b, a)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
for mode in ("global", "thread_local"):
    graph = torch.cuda.CUDAGraph()
    dist.all_gather_into_tensor(b, a)  # under way when the capture begins
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        dist.all_gather_into_tensor(b, a)
        time.sleep(0.05)
    b.zero_()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(a, b)
dist.all_gather_into_tensor(b, a)
torch.cuda.synchronize()
time.sleep(0.3)
print(json.dumps([]))
"""

# Groups and streams beside a computation, as a training step has them; the sums are to be those without a shim.
STREAMS = """
other = dist.new_group([0])
warm(other)
streams = [torch.cuda.Stream() for _ in range(3)]
x = torch.randn(2048, 2048, device="cuda")
w = torch.randn(2048, 2048, device="cuda")
sums = []
for step in range(20):
    works = []
    for i, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            part = torch.empty_like(x)
            works.append((dist.all_gather_into_tensor(part, x, group=other if i % 2 else None, async_op=True), part))
    y = torch.nn.functional.layer_norm(x @ w, (2048,))
    for work, part in works:
        work.wait()
        y = y + part
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    x = y / 4
    sums.append(float(x.sum()))
torch.cuda.synchronize()
time.sleep(0.3)
print(json.dumps(sums))
"""

# The process ends with work under way.
ABRUPT = """
for _ in range(200):
    dist.all_gather_into_tensor(b, a)
print(json.dumps([]), flush=True)
"""


def job(code: str, env: Env, tmp_path: Path, shim: bool = True) -> Any:
    with ControlPage.create(make_job_dir("t", Path(env["GHT_DIR"]))) as page:
        page.set_profiling(True, 600.0)
    store = tmp_path / f"store{len(list(tmp_path.iterdir()))}"
    env = {**env, "GHT_JOB": "t", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if shim:
        env["LD_PRELOAD"] = str(SHIM)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(store)], env=env, capture_output=True, text=True, timeout=300
    )
    if done.returncode == 77:
        pytest.skip("this torch has no CUDA or no NCCL")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def gathers(env: Env, least_bytes: int = MB) -> tuple[NDArray[Any], NDArray[Any]]:
    """All-gathers of that size or more: the calls and their executions."""
    ring = max(jobs(Path(env["GHT_DIR"]))[0].rings, key=lambda file: file.path.stat().st_mtime)
    with RingReader(ring.path) as reader:
        records, lost = reader.drain(100000)
    assert lost == 0
    mine = records[(records["op"] == OP_CODE["all_gather"]) & (records["bytes"] >= least_bytes)]
    execution = mine["flags"] & FLAG_EXEC != 0
    return mine[~execution], mine[execution]


def test_durations_are_those_that_torch_measures(clean_env: Env, tmp_path: Path) -> None:
    outer_ms = np.array(job(PLAIN, clean_env, tmp_path))
    calls, execs = gathers(clean_env)
    assert len(calls) == len(execs) == len(outer_ms) == 20
    execs = execs[np.argsort(execs["seq"])]
    assert np.array_equal(execs["seq"], calls["seq"])
    assert not np.any(execs["flags"] & FLAG_DUR_INVALID)
    share = execs["dur_ns"] / 1e6 / outer_ms
    assert np.all(share < 1.05) and np.median(share) > 0.5  # inside the other pair of events, and most of it
    assert np.all(execs["t_ns"] >= calls["t_ns"])
    assert np.all(np.diff(execs["t_ns"]) > 0)


def test_a_capture_is_left_alone(clean_env: Env, tmp_path: Path) -> None:
    job(GRAPH, clean_env, tmp_path)
    calls, execs = gathers(clean_env)
    captured = execs["flags"] & FLAG_CAPTURE != 0
    assert np.sum(captured) == 2 and np.all(execs["dur_ns"][captured] == -1)
    assert len(calls) == 3 + 2 * 2 + 1  # a replay calls nothing
    assert np.sum(~captured & (execs["dur_ns"] > 0)) == 3 + 2 + 1


@pytest.mark.parametrize("connections", ["", "1"])
def test_streams_beside_a_computation(connections: str, clean_env: Env, tmp_path: Path) -> None:
    env = {**clean_env, **({"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections else {})}
    plain = job(STREAMS, env, tmp_path, shim=False)
    assert job(STREAMS, env, tmp_path) == plain
    calls, execs = gathers(clean_env)
    assert len(calls) == 60
    assert np.sum(execs["dur_ns"] > 0) == 60


def test_an_exit_with_work_under_way(clean_env: Env, tmp_path: Path) -> None:
    job(ABRUPT, clean_env, tmp_path)
    calls, execs = gathers(clean_env)
    assert len(calls) == 200
    assert len(execs) <= 200
