# SPDX-License-Identifier: Apache-2.0
"""A DDP job on gloo that leaves what PyTorch itself records: a profiler trace and flight-recorder dumps of each rank.

TORCH_FR_BUFFER_SIZE=100 torchrun --nproc-per-node 2 profiled.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 4


def main(folder: Path) -> None:
    """Four profiled steps: forward, backward with DDP's all-reduce, an all-gather, a barrier."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS),
        record_shapes=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank{rank}.json.gz")),
    ) as profiler:
        for _ in range(STEPS + 1):
            model(torch.randn(16, 300)).sum().backward()
            dist.all_gather([torch.empty(5) for _ in range(dist.get_world_size())], torch.ones(5))
            dist.barrier()
            profiler.step()
    (folder / f"dump_rank_{rank}.json").write_bytes(_dump_fr_trace_json())
    (folder / f"dump_rank_{rank}.pkl").write_bytes(_dump_fr_trace())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
