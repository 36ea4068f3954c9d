# SPDX-License-Identifier: Apache-2.0
"""Tensor, data and pipeline parallel in any mix on gloo, so heavy that a CPU quota bites; and what only looks slow.

Ranks are numbered as Megatron does: tp fastest, then dp, then pp. Tensor parallel is DTensor's, the pipeline is
torch.distributed.pipelining's 1F1B, data parallel is DDP where it is alone and bucketed all-reduces after the backward
pass where it is not. Each replica's last stage prints the loss of every step to the last bit.
"""

import argparse
import gc
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

PAUSE_EVERY = 50


def options() -> argparse.Namespace:
    """The command line."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--steps", type=int, default=60)
    parse.add_argument("--tp", type=int, default=1)
    parse.add_argument("--dp", type=int, default=0, help="default: what tp and pp leave")
    parse.add_argument("--pp", type=int, default=1)
    parse.add_argument("--width", type=int, default=384)
    parse.add_argument("--layers", type=int, default=3, help="of each stage")
    parse.add_argument("--batch", type=int, default=768, help="of each replica")
    parse.add_argument("--micro", type=int, default=4, help="micro-batches of the pipeline")
    parse.add_argument("--bucket-mb", type=float, default=1.0)
    parse.add_argument("--heavier-last-stage", action="store_true", help="twice the layers on the last stage")
    parse.add_argument("--uneven-lengths", action="store_true", help="another batch size on each replica and step")
    parse.add_argument("--slow-loader", type=int, default=-1, metavar="RANK")
    parse.add_argument("--slow-from", type=int, default=0, metavar="STEP")
    parse.add_argument("--slow-s", type=float, default=0.3)
    parse.add_argument("--gc-pause", action="store_true", help=f"a full collection every {PAUSE_EVERY} steps, by turns")
    parse.add_argument("--times", default=os.environ.get("JOB_TIMES", ""), help="one JSON line a step to FILE.RANK")
    return parse.parse_args()


class Place:
    """Where this rank stands: its coordinates and groups."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.rank, world = dist.get_rank(), dist.get_world_size()
        args.dp = args.dp or world // (args.tp * args.pp)
        if args.tp * args.dp * args.pp != world:
            raise SystemExit(f"tp {args.tp} x dp {args.dp} x pp {args.pp} is not {world} ranks")
        if args.uneven_lengths and args.pp > 1:
            raise SystemExit("--uneven-lengths needs --pp 1: a pipeline's shapes are fixed")
        self.mesh: DeviceMesh = init_device_mesh("cpu", (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
        self.t, self.d, self.p = self.rank % args.tp, self.rank // args.tp % args.dp, self.rank // (args.tp * args.dp)
        self.first, self.last = self.p == 0, self.p == args.pp - 1


def model(args: argparse.Namespace, place: Place) -> nn.Module:
    """This rank's stage; replicas begin alike."""
    torch.manual_seed(1000 + place.p)
    layers = args.layers * (2 if args.heavier_last_stage and place.last else 1)
    made = nn.Sequential()
    for _ in range(layers):
        block = nn.Sequential(nn.Linear(args.width, args.width), nn.GELU(), nn.Linear(args.width, args.width))
        if args.tp > 1:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(block, place.mesh["tp"], plan)
        made.append(block)
    if args.dp > 1 and args.tp == args.pp == 1:
        made.append(nn.Linear(args.width, args.width))  # one bucket unlike the others marks where an iteration begins
        return DistributedDataParallel(made, bucket_cap_mb=args.bucket_mb)
    return made


def average(part: nn.Module, args: argparse.Namespace, place: Place) -> None:
    """Gradients over the replicas, bucket after bucket from the last layer; all are under way before one is awaited."""
    if args.dp == 1 or isinstance(part, DistributedDataParallel):
        return
    group = place.mesh["dp"].get_group()
    buckets: list[list[torch.Tensor]] = [[]]
    for parameter in reversed(list(part.parameters())):
        grad: Any = parameter.grad
        local = grad.to_local() if isinstance(grad, DTensor) else grad
        if buckets[-1] and sum(g.numel() for g in buckets[-1]) + local.numel() > args.bucket_mb * 2**18:
            buckets.append([])
        buckets[-1].append(local)
    flats = [torch.cat([grad.flatten() for grad in bucket]) for bucket in buckets]
    works = [dist.all_reduce(flat, group=group, async_op=True) for flat in flats]
    for bucket, flat, work in zip(buckets, flats, works, strict=True):
        work.wait()
        at = 0
        for grad in bucket:
            grad.copy_(flat[at : at + grad.numel()].view_as(grad) / args.dp)
            at += grad.numel()


def batch(args: argparse.Namespace, place: Place, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and target: the same on all ranks of a replica."""
    if place.rank == args.slow_loader and step >= args.slow_from:
        time.sleep(args.slow_s)
    random = torch.Generator().manual_seed(step * 4096 + place.d)
    n = args.batch
    if args.uneven_lengths:
        n = int(n * (0.4 + 1.2 * float(torch.rand(1, generator=random))))
    x = torch.randn(n, args.width, generator=random)
    return x, x.roll(1, 1)


def main() -> None:
    """Train for --steps steps."""
    args = options()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    place = Place(args)
    part = model(args, place)
    optimiser = torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9, foreach=False)
    schedule = None
    if args.pp > 1:
        stage = PipelineStage(part, place.p, args.pp, torch.device("cpu"), group=place.mesh["pp"].get_group())
        schedule = Schedule1F1B(stage, n_microbatches=args.micro, loss_fn=nn.functional.mse_loss)
    heap = [[i] for i in range(2_000_000)] if args.gc_pause else []
    if args.gc_pause:
        gc.disable()  # only when it is this rank's turn
    for step in range(args.steps):
        begin = time.time_ns()
        if heap and (step + place.rank * PAUSE_EVERY // dist.get_world_size()) % PAUSE_EVERY == PAUSE_EVERY - 1:
            gc.collect()
        x, y = batch(args, place, step)
        optimiser.zero_grad()
        if schedule is not None:
            losses: list[torch.Tensor] = []
            schedule.step(*([x] if place.first else []), target=y if place.last else None, losses=losses)
            loss = torch.stack(losses).mean() if losses else None
        else:
            loss = nn.functional.mse_loss(part(x), y)
            loss.backward()
        average(part, args, place)
        optimiser.step()
        if loss is not None and place.t == 0:
            print(f"step {step} replica {place.d} loss {loss.item()!r}", flush=True)
        if args.times:
            row = {"rank": place.rank, "step": step, "t_ns": begin, "dur_ns": time.time_ns() - begin}
            with open(f"{args.times}.{place.rank}", "a") as out:
                out.write(json.dumps(row) + "\n")
    time.sleep(0.3)  # torch 2.13 may abort when a script leaves right after its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
