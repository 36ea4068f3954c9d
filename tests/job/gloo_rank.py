# SPDX-License-Identifier: Apache-2.0
"""A rank of a 2-rank gloo job that makes every call of the backend once, then uses torch's parallel parts.

Parts are set apart by barriers. Not a test itself: tests/job/test_gloo.py starts it.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.nn as nn


def every_call() -> None:
    rank, f4 = dist.get_rank(), torch.zeros(10)
    pair = [torch.zeros(10), torch.zeros(10)]
    dist.all_reduce(f4)
    dist.all_reduce_coalesced([torch.zeros(3), torch.zeros(4)])
    dist.broadcast(torch.zeros(5, dtype=torch.bfloat16), 1)
    dist.reduce(torch.zeros(6, dtype=torch.int64), 1)
    dist.all_gather(pair, f4)
    dist.all_gather_into_tensor(torch.zeros(20), f4)
    dist.reduce_scatter(torch.zeros(10), pair)
    dist.reduce_scatter_tensor(torch.zeros(5, dtype=torch.float64), torch.zeros(10, dtype=torch.float64))
    dist.all_to_all_single(torch.zeros(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8))
    dist.all_to_all([torch.zeros(2), torch.zeros(2)], [torch.zeros(2), torch.zeros(2)])
    dist.gather(f4, pair if rank == 1 else None, dst=1)
    dist.scatter(f4, pair if rank == 0 else None, src=0)
    if rank == 0:
        dist.send(f4, 1)
        dist.recv(f4)
    else:
        dist.recv(f4, 0)
        dist.send(f4, 0)
    dist.monitored_barrier()


def failing_call() -> None:
    """A call that raises inside the library must not stop later ones from being seen."""
    for _ in range(3):
        try:
            dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([])
        except RuntimeError:
            pass
        else:
            raise SystemExit("an empty all-reduce should have failed")
    dist.all_reduce(torch.zeros(7))


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    model(torch.randn(4, 8)).sum().backward()


def pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    stage = PipelineStage(nn.Linear(8, 8), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).square().mean())
    if rank == 0:
        schedule.step(torch.randn(8, 8))
    else:
        schedule.step(target=torch.randn(8, 8))


def functional() -> None:
    from torch.distributed import _functional_collectives as funcol

    funcol.wait_tensor(funcol.all_reduce(torch.zeros(9), "sum", dist.group.WORLD))
    funcol.wait_tensor(funcol.all_gather_tensor(torch.zeros(9), 0, dist.group.WORLD))
    funcol.wait_tensor(funcol.reduce_scatter_tensor(torch.zeros(10), "sum", 0, dist.group.WORLD))


PARTS = (every_call, failing_call, fsdp, tensor_parallel, pipeline, functional)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    for part in PARTS:
        part()
        dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # torch's gloo workers may still need Python's lock to free tensors (see bench/ddp_rank.py)
