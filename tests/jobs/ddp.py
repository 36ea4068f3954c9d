# SPDX-License-Identifier: Apache-2.0
"""A plain DDP training loop, run by torchrun: a small transformer on random tokens."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


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
    parse.add_argument("--width", type=int, default=192)
    parse.add_argument("--layers", type=int, default=4)
    parse.add_argument("--batch", type=int, default=16)
    parse.add_argument("--bucket-mb", type=float, default=1.0)
    parse.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parse.add_argument("--no-sync", action="store_true", help="communicate at the last micro-batch only")
    parse.add_argument("--log-every", type=int, default=0, help="average the loss over ranks every N steps")
    parse.add_argument("--eval-every", type=int, default=0)
    parse.add_argument("--times", default=os.environ.get("JOB_TIMES", ""))
    args = parse.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(args.width, 4, 4 * args.width, batch_first=True, dropout=0.0)
    net = nn.Sequential(
        nn.Embedding(1000, args.width), nn.TransformerEncoder(layer, args.layers), nn.Linear(args.width, 1000)
    )
    model = DistributedDataParallel(net, bucket_cap_mb=args.bucket_mb)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(1000, (args.batch, 32))
        return x, x.roll(1, dims=1).flatten()

    for step in range(args.steps):
        begin = time.time_ns()
        for micro in range(args.accumulate):
            x, y = batch()
            quiet = args.no_sync and micro < args.accumulate - 1
            with model.no_sync() if quiet else torch.enable_grad():
                loss = loss_fn(model(x).flatten(0, 1), y) / args.accumulate
                loss.backward()
        opt.step()
        opt.zero_grad()
        if args.log_every and (step + 1) % args.log_every == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1} loss {mean.item() / dist.get_world_size():.3f}", flush=True)
        if args.eval_every and (step + 1) % args.eval_every == 0:
            with torch.no_grad():
                total = torch.zeros(1)
                for _ in range(5):
                    x, y = batch()
                    total += loss_fn(net(x).flatten(0, 1), y)
                dist.all_reduce(total)
            dist.barrier()
        note(args.times, rank, step, begin)
    time.sleep(0.3)  # torch 2.13 may abort when a script leaves right after its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
