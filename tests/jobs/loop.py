# SPDX-License-Identifier: Apache-2.0
"""Data parallel by hand: after the backward pass one all_reduce a parameter, as beginners' tutorials do."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn


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
    parse.add_argument("--one", action="store_true", help="all gradients in one all_reduce")
    parse.add_argument("--log-every", type=int, default=0)
    parse.add_argument("--times", default=os.environ.get("JOB_TIMES", ""))
    args = parse.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    blocks = [nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU()) for _ in range(args.layers)]
    model = nn.Sequential(nn.Linear(64, args.width), *blocks, nn.Linear(args.width, 10))
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(args.steps):
        begin = time.time_ns()
        x, y = torch.randn(args.batch, 64), torch.randint(10, (args.batch,))
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if args.one:
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(flat)
            at = 0
            for p in model.parameters():
                p.grad.copy_(flat[at : at + p.numel()].view_as(p) / world)
                at += p.numel()
        else:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
        opt.step()
        if args.log_every and (step + 1) % args.log_every == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
        note(args.times, rank, step, begin)
    time.sleep(0.3)  # torch 2.13 may abort when a script leaves right after its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
