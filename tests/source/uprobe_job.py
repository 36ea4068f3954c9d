# SPDX-License-Identifier: Apache-2.0
"""A training job for the tests of attaching: every collective once or more, then a plain loop with its own clock.

argv: FOLDER STEPS. Waits for FOLDER/go before anything is sent, writes FOLDER/times.RANK: nanoseconds since the
epoch at `go`, then at the beginning of each step and at the end of the last.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")
(folder / f"ready.{rank}").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
times = [time.time_ns()]

model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))), bucket_cap_mb=1)
x = torch.randn(256, 256)
for _ in range(steps):
    times.append(time.time_ns())
    model.zero_grad()
    model(x).square().mean().backward()
times.append(time.time_ns())

dist.broadcast(torch.ones(7), 1)
dist.reduce(torch.ones(7, dtype=torch.bfloat16), 1)
dist.barrier()
dist.all_gather([torch.empty(3, 5) for _ in range(2)], torch.ones(3, 5), group=pair)
dist.all_gather_into_tensor(torch.empty(22), torch.ones(11))
dist.reduce_scatter(torch.empty(2), [torch.ones(2), torch.ones(2)])
dist.reduce_scatter_tensor(torch.empty(9, dtype=torch.float64), torch.ones(18, dtype=torch.float64))
dist.all_to_all([torch.empty(4), torch.empty(4)], [torch.ones(4), torch.ones(4)])
dist.all_to_all_single(torch.empty(6, dtype=torch.int8), torch.ones(6, dtype=torch.int8))
with dist._coalescing_manager():  # a list of tensors in one call
    for n in (3, 5, 20):
        dist.all_reduce(torch.ones(n, n))
if rank == 0:
    dist.send(torch.ones(13, dtype=torch.int64), 1)
    dist.recv(torch.empty(0), 1)
else:
    dist.recv(torch.empty(13, dtype=torch.int64), 0)
    dist.send(torch.empty(0), 0)
dist.gather(torch.ones(6), [torch.empty(6), torch.empty(6)] if rank == 1 else None, dst=1)
dist.scatter(torch.empty(6), [torch.ones(6), torch.ones(6)] if rank == 1 else None, src=1)
dist.monitored_barrier()
other = dist.new_group([0, 1], group_desc="late")
dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.MAX, group=other)

(folder / f"times.{rank}").write_text(json.dumps(times))
# What a group is called is read from this process's memory by whoever traces it, soon after its first call.
time.sleep(1.0)
dist.destroy_process_group()
# torch 2.13 sometimes aborts while it takes itself down ("terminate called without an active exception"), in this
# script in one of five runs without any of ghtools; what is tested here is over by now.
os._exit(0)
