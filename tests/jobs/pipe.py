# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining: one stage a rank, GPipe or 1F1B, micro-batches."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


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
    parse.add_argument("--layers", type=int, default=3, help="of each stage")
    parse.add_argument("--micro", type=int, default=4)
    parse.add_argument("--batch", type=int, default=512)
    parse.add_argument("--schedule", choices=["gpipe", "1f1b"], default="1f1b")
    parse.add_argument("--times", default=os.environ.get("JOB_TIMES", ""))
    args = parse.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    blocks = [nn.Sequential(nn.Linear(args.width, args.width), nn.ReLU()) for _ in range(args.layers)]
    part = nn.Sequential(*blocks)
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    kind = ScheduleGPipe if args.schedule == "gpipe" else Schedule1F1B
    schedule = kind(stage, n_microbatches=args.micro, loss_fn=nn.functional.mse_loss)
    opt = torch.optim.AdamW(part.parameters(), lr=1e-3)
    for step in range(args.steps):
        begin = time.time_ns()
        x = torch.randn(args.batch, args.width)
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=torch.randn(args.batch, args.width))
        else:
            schedule.step()
        opt.step()
        note(args.times, rank, step, begin)
    time.sleep(0.3)  # torch 2.13 may abort when a script leaves right after its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
