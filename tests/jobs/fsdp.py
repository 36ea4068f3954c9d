# SPDX-License-Identifier: Apache-2.0
"""FSDP2 on CPU: every block a unit, with or without parameters left for the root."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


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
    parse.add_argument("--layers", type=int, default=6)
    parse.add_argument("--batch", type=int, default=512)
    parse.add_argument("--no-root", action="store_true", help="equal blocks only: nothing is left for the root unit")
    parse.add_argument("--clip", action="store_true", help="clip the gradient norm, which reduces a scalar")
    parse.add_argument("--eval-every", type=int, default=0)
    parse.add_argument("--times", default=os.environ.get("JOB_TIMES", ""))
    args = parse.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = [nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU()) for _ in range(args.layers)]
    ends = (
        ([], [])
        if args.no_root
        else (
            [nn.Linear(args.width, args.width * 2), nn.Linear(args.width * 2, args.width)],
            [nn.Linear(args.width, 10)],
        )
    )
    model = nn.Sequential(*ends[0], *blocks, *ends[1])
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        begin = time.time_ns()
        x = torch.randn(args.batch, args.width)
        loss = model(x).square().mean()
        loss.backward()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if args.eval_every and (step + 1) % args.eval_every == 0:
            with torch.no_grad():
                for _ in range(4):
                    model(torch.randn(args.batch, args.width))
        note(args.times, rank, step, begin)
    time.sleep(0.3)  # torch 2.13 may abort when a script leaves right after its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
