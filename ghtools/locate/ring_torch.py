# SPDX-License-Identifier: Apache-2.0
"""Measure: exchanges between the processes of a launcher (torchrun, srun, mpirun) by torch.distributed.

Rank 0 drives: it tells the others over a Gloo group what to exchange, each does its part, rank 0 gathers. Data go over
that group, or over NCCL between GPUs. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import numpy as np

from ghtools.job.pause import CouldNotTell
from ghtools.job.task import CLOSE, LISTEN, Task, run_task
from ghtools.source.uprobe_process import rank_of
from ghtools.stream.errors import GhError, MissingError

from .ring_fabric import PINGS, End, Plan
from .ring_judge import Exchanged, Link

WARM_UP = 4 << 20
END_BYTES = 1024
HEAD = 2  # latency, share of a CPU; then ns of each repeat and size


@contextmanager
def joined(backend: str, chosen: Sequence[int], plan: Plan) -> Iterator[TorchFabric | None]:
    """The fabric in rank 0; in the others None, after rank 0 has ended. `chosen`: ranks to test, empty = all.

    MissingError without torch, or without a GPU for NCCL; GhError outside a launcher.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        raise MissingError(
            f"cannot test over {backend}", "torch is not installed", "pip install 'ghtools[torch]'"
        ) from None
    rank, local, world = rank_of(os.environ)
    if rank < 0 or world < 2:
        raise GhError(
            f"cannot test over {backend}", "no launcher has started two or more ranks",
            f"torchrun --nproc-per-node 4 --no-python gh-validate-ring --backend {backend}",
        )  # fmt: skip
    if backend == "nccl" and not torch.cuda.is_available():
        raise MissingError("cannot test over nccl", "there is no GPU", "--backend gloo")
    if strange := [one for one in chosen if one >= world]:
        raise GhError(f"cannot test rank {strange[0]}", f"there are {world} ranks", f"--ranks 0-{world - 1}")
    address, port = _meeting_place(os.environ)
    # A rank that is silent for longer than an exchange may take ends the test for all.
    patience = timedelta(seconds=plan.hard_s + 60)
    try:
        dist.init_process_group(
            "gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=world, timeout=patience
        )
        group = None
        if backend == "nccl":
            torch.cuda.set_device(max(local, 0) % torch.cuda.device_count())
            group = dist.new_group(backend="nccl", timeout=patience)
        part = _Part(backend, rank, group, plan.hard_s)
        ends = part.ends()
        if rank:
            while (words := part.told(None)) is not None:
                part.gather(part.take(words))
            yield None
        else:
            these = [end for end in ends if not chosen or end.rank in chosen]
            try:
                yield TorchFabric(part, these, backend)
            finally:
                part.told({})
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


class TorchFabric:
    """A fabric in rank 0 of the launcher's processes."""

    def __init__(self, part: _Part, ends: Sequence[End], backend: str) -> None:
        self.by = backend
        self._part, self._ends = part, {end.rank: end for end in ends}

    @property
    def ends(self) -> Mapping[int, End]:
        """The ranks that are tested."""
        return self._ends

    def type_of(self, link: Link) -> str:
        """Between GPUs of one host: nvlink if NVML says so, pcie if it says not so, else unknown."""
        one, other = (self._ends[rank] for rank in link)
        if self.by != "nccl":
            return "loopback" if one.address == other.address else "network"
        return "network" if one.host != other.host else type_of_gpus(one, other)

    def exchange(self, links: Sequence[Link], plan: Plan) -> list[Exchanged]:
        """As Fabric.exchange."""
        words = {"links": [list(link) for link in links], "plan": asdict(plan)}
        t_ns = time.time_ns()
        self._part.told(words)
        rows = self._part.gather(self._part.take(words))
        made = []
        for link in links:
            gbps = np.full((2, plan.repeats, len(plan.sizes)), np.nan)
            for at, rank in enumerate(link):
                took = rows[rank][HEAD:].reshape(plan.repeats, len(plan.sizes))
                gbps[1 - at] = np.where(took > 0, np.array(plan.sizes) / np.where(took > 0, took, 1), np.nan)
            busy = (float(rows[link[0]][1]), float(rows[link[1]][1]))
            made.append(
                Exchanged(link, self.type_of(link), gbps, float(rows[link[0]][0]), busy, t_ns, sizes=plan.sizes)
            )
        return made


class _Part:
    """What every process does."""

    def __init__(self, backend: str, rank: int, group: Any, hard_s: float) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self._rank, self._group, self._hard_s = rank, group, hard_s
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._buffers: dict[str, Any] = {}

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
        world = self._dist.get_world_size()
        rows = [self._torch.empty_like(mine) for _ in range(world)] if self._rank == 0 else None
        self._dist.gather(mine, rows, 0)
        return np.stack([one.numpy() for one in rows]) if rows is not None else None

    def ends(self) -> list[End]:
        """Where all ranks are, in rank 0; elsewhere an empty list."""
        host, device, interface, address = socket.gethostname(), "cpu", "", ""
        if self._device.type == "cuda":
            device = str(getattr(self._torch.cuda.get_device_properties(self._device), "uuid", self._device))
        else:
            chosen = run_task(Task(LISTEN))  # the address that Gloo chooses, chosen in the same way
            run_task(Task(CLOSE))
            if chosen.status == 0:
                address, _, interface = chosen.said.split()
        text = json.dumps([host, device, interface, address]).encode()[:END_BYTES]
        rows = self.gather(np.frombuffer(text.ljust(END_BYTES), np.uint8).copy())
        if rows is None:
            return []
        return [End(rank, *json.loads(row.tobytes())) for rank, row in enumerate(rows)]

    def take(self, words: dict[str, Any]) -> Any:
        """This rank's part of an exchange: latency, share of a CPU, and ns of each repeat and size; NaN = none."""
        plan = words["plan"]
        row = np.full(HEAD + plan["repeats"] * len(plan["sizes"]), np.nan)
        for one, other in words["links"]:
            if self._rank in (one, other):
                self._exchange(plan, other if self._rank == one else one, self._rank == one, row)
        return row

    def _exchange(self, plan: dict[str, Any], peer: int, leads: bool, row: Any) -> None:
        sizes, both = plan["sizes"], plan["both"]
        out, back = self._buffer("out", max(sizes)), self._buffer("in", max(sizes))
        began = time.perf_counter_ns()
        for _ in range(PINGS):
            self._move(out[:8] if leads else None, None if leads else back[:8], peer)
            self._move(None if leads else out[:8], back[:8] if leads else None, peer)
        if leads:
            row[0] = (time.perf_counter_ns() - began) / PINGS / 2
        warm = min(WARM_UP, sizes[0])
        self._move(out[:warm], back[:warm], peer)
        soft = time.monotonic() + plan["soft_s"]
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        for at in range(plan["repeats"] * len(sizes)):
            size = sizes[at % len(sizes)]
            # Both agree whether to go on, and begin together.
            mine = self._torch.tensor([time.monotonic() < soft], dtype=self._torch.uint8, device=self._device)
            theirs = self._torch.empty_like(mine)
            self._move(mine, theirs, peer)
            if not (int(mine) and int(theirs)):
                break
            began = time.perf_counter_ns()
            ended = self._move(out[:size] if both or leads else None, back[:size] if both or not leads else None, peer)
            if both or not leads:
                row[HEAD + at] = ended - began
        row[1] = (time.thread_time_ns() - cpu) / max(time.perf_counter_ns() - wall, 1)

    def _move(self, out: Any, back: Any, peer: int) -> int:
        """Send and receive at once; when the last byte was in."""
        dist = self._dist
        ops = [dist.P2POp(dist.isend, out, peer, self._group)] if out is not None else []
        ops += [dist.P2POp(dist.irecv, back, peer, self._group)] if back is not None else []
        works = dist.batch_isend_irecv(ops)
        works[-1].wait()
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)
        ended = time.perf_counter_ns()
        for work in works[:-1]:
            work.wait()
        return ended

    def _buffer(self, name: str, size: int) -> Any:
        if name not in self._buffers or len(self._buffers[name]) < size:
            self._buffers[name] = self._torch.full((size,), 90, dtype=self._torch.uint8, device=self._device)
        return self._buffers[name]


def type_of_gpus(one: End, other: End) -> str:
    """What NVML says of the path between two GPUs of this host, by their UUIDs: nvlink, pcie or unknown."""
    if one.host != socket.gethostname():
        return "unknown"
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByUUID(end.device if end.device.startswith("GPU-") else f"GPU-{end.device}")
            for end in (one, other)
        ]
        status = pynvml.nvmlDeviceGetP2PStatus(*handles, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        return "nvlink" if status == pynvml.NVML_P2P_STATUS_OK else "pcie"
    except Exception:  # no NVML, no such call in this version, or a device it does not know: all mean "not known"
        return "unknown"
