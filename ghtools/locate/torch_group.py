# SPDX-License-Identifier: Apache-2.0
"""The processes of a launcher (torchrun, srun, mpirun) as one group of torch.distributed, over Gloo.

Rank 0 drives: it tells the others what to do, each does its part, rank 0 gathers. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from ghtools.job.pause import CouldNotTell
from ghtools.source.uprobe_process import rank_of
from ghtools.stream.errors import GhError, MissingError


@contextmanager
def joined_group(tool: str, backend: str, patience_s: float) -> Iterator[Talk]:
    """All processes of the launcher; a rank that is silent for `patience_s` ends the test for all.

    MissingError without torch, or without a GPU for the backend nccl; GhError outside a launcher; CouldNotTell if a
    rank goes away. `tool` is for the advice.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        raise MissingError(
            f"cannot test over {backend}", "torch is not installed", "pip install 'ghtools[torch]'"
        ) from None
    rank, _, world = rank_of(os.environ)
    if rank < 0 or world < 2:
        raise GhError(
            f"cannot test over {backend}", "no launcher has started two or more ranks",
            f"torchrun --nproc-per-node 4 --no-python {tool} --backend {backend}",
        )  # fmt: skip
    if backend == "nccl" and not torch.cuda.is_available():
        raise MissingError("cannot test over nccl", "there is no GPU", "--backend gloo")
    address, port = _meeting_place(os.environ)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=patience_s),
        )
        yield Talk(rank, world)
    except RuntimeError as error:  # what torch.distributed raises, whatever went wrong
        raise CouldNotTell(f"the test over {backend} was broken off", str(error).splitlines()[0][:300]) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _meeting_place(env: Mapping[str, str]) -> tuple[str, int]:
    """Where ranks meet: as torchrun and people say, else the first host of a Slurm step."""
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not address and (hosts := env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")):
        match = re.match(r"([\w.-]+?)(?:\[(\d+)[^\]]*\])?(?:,|$)", hosts)
        address = match[1] + (match[2] or "") if match else ""
    if not address:
        raise GhError("cannot join the other ranks", "MASTER_ADDR is not set", "MASTER_ADDR and MASTER_PORT for all")
    if port.isdecimal() and 0 < int(port[:6]) < 65536:
        return address, int(port)
    # Two steps of one job have different numbers, two users on a host different jobs.
    key = "-".join(env.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"))
    return address, 20000 + zlib.crc32(key.encode()) % 20000


class Talk:
    """What rank 0 and the others say to each other."""

    def __init__(self, rank: int, world: int) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.world = rank, world

    def told(self, words: dict[str, Any] | None) -> dict[str, Any] | None:
        """What rank 0 says, in all ranks; None once it says nothing any more."""
        text = json.dumps(words).encode() if words is not None else b""
        size = self._torch.tensor([len(text)], dtype=self._torch.int64)
        self._dist.broadcast(size, 0)
        body = self._torch.zeros(int(size), dtype=self._torch.uint8)
        if words is not None:
            body = self._torch.frombuffer(bytearray(text), dtype=self._torch.uint8)
        self._dist.broadcast(body, 0)
        said: dict[str, Any] = json.loads(body.numpy().tobytes())
        return said or None

    def gather(self, row: Any) -> Any:
        """Rows of all ranks, (world, n), in rank 0; nothing useful elsewhere."""
        mine = self._torch.from_numpy(row)
        rows = [self._torch.empty_like(mine) for _ in range(self.world)] if self.rank == 0 else None
        self._dist.gather(mine, rows, 0)
        return np.stack([one.numpy() for one in rows]) if rows is not None else None
