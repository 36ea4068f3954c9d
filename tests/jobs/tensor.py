# SPDX-License-Identifier: Apache-2.0
"""DTensor tensor parallel on a device mesh, with data parallel beside it where there are ranks enough."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def note(path: str, rank: int, step: int, begin_ns: int) -> None:
    """Append what this step took to `path`.RANK; nothing if there is no path."""
    if path:
        row = {"rank": rank, "step": step, "t_ns": begin_ns, "dur_ns": time.time_ns() - begin_ns}
        with open(f"{path}.{rank}", "a") as out:
            out.write(json.dumps(row) + "\n")


def main() -> None:
    """Train for --steps steps; with --times FILE append one JSON line a step to FILE.RANK."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--steps", type=int, default=60)
    parse.add_argument("--width", type=int, default=256)
    parse.add_argument("--layers", type=int, default=4)
    parse.add_argument("--batch", type=int, default=512)
    parse.add_argument("--tp", type=int, default=2)
    parse.add_argument("--accumulate", type=int, default=1)
    parse.add_argument("--times", default=os.environ.get("JOB_TIMES", ""))
    args = parse.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential()
    for _ in range(args.layers):
        block = nn.Sequential(nn.Linear(args.width, 4 * args.width), nn.GELU(), nn.Linear(4 * args.width, args.width))
        model.append(parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}))
    if world > args.tp:
        for block in model:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for step in range(args.steps):
        begin = time.time_ns()
        for _ in range(args.accumulate):
            x = torch.randn(args.batch, args.width, requires_grad=True)
            loss = model(x).square().mean() / args.accumulate
            loss.backward()
        opt.step()
        opt.zero_grad()
        note(args.times, rank, step, begin)
    time.sleep(0.3)  # torch 2.13 may abort when a script leaves right after its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
