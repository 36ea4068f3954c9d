# SPDX-License-Identifier: Apache-2.0
"""A rank of a DDP job for bench_slowdown.py: rank 0 prints three times of its iterations in ns.

Several buckets and a logged loss, so that an iteration makes about a dozen calls. The first is the mean
over the middle 80 % of the iterations, which leaves out what the machine did to single ones; the second the mean
of the quickest fifth; the third the CPU time of the process, which other load on the machine disturbs least.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM = 20


def main(iterations: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(192, 192) for _ in range(8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, took, cpu = torch.randn(256, 192), [], 0.0
    for step in range(WARM + iterations):
        if step == WARM:
            cpu = time.process_time_ns()
        begin = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        took.append(time.perf_counter_ns() - begin)
    cpu = (time.process_time_ns() - cpu) / iterations
    took = sorted(took[WARM:])
    middle, quick = took[iterations // 10 : -(iterations // 10)], took[: iterations // 5]
    if dist.get_rank() == 0:
        print(sum(middle) / len(middle), sum(quick) / len(quick), cpu)
    dist.destroy_process_group()
    # torch 2.13's gloo workers let go of the last tensors after the call has returned, and need Python's lock
    # for it: a process that leaves at once may abort then ("terminate called without an active exception").
    time.sleep(0.3)


if __name__ == "__main__":
    main(int(sys.argv[1]))
