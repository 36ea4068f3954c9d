# SPDX-License-Identifier: Apache-2.0
"""Measure: exchanges between the processes of a launcher (torchrun, srun, mpirun) by torch.distributed.

Rank 0 drives over a Gloo group (torch_group.py). Data go over that group, or over NCCL between GPUs.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import numpy as np

from ghtools.job.task import CLOSE, LISTEN, Task, run_task
from ghtools.source.uprobe_process import rank_of
from ghtools.stream.errors import GhError

from .ring_fabric import PINGS, End, Plan
from .ring_judge import Exchanged, Link
from .torch_group import Talk, joined_group

WARM_UP = 4 << 20
END_BYTES = 1024
HEAD = 2  # latency, share of a CPU; then ns of each repeat and size


@contextmanager
def joined(backend: str, chosen: Sequence[int], plan: Plan) -> Iterator[TorchFabric | None]:
    """The fabric in rank 0; in the others None, after rank 0 has ended. `chosen`: ranks to test, empty = all.

    Errors are those of `joined_group`.
    """
    patience_s = plan.hard_s + 60  # longer than an exchange may take
    with joined_group("gh-validate-ring", backend, patience_s) as talk:
        if strange := [one for one in chosen if one >= talk.world]:
            raise GhError(
                f"cannot test rank {strange[0]}", f"there are {talk.world} ranks", f"--ranks 0-{talk.world - 1}"
            )
        group = None
        if backend == "nccl":
            import torch
            import torch.distributed as dist

            torch.cuda.set_device(max(rank_of(os.environ)[1], 0) % torch.cuda.device_count())
            group = dist.new_group(backend="nccl", timeout=timedelta(seconds=patience_s))
        part = _Part(backend, talk, group, plan.hard_s)
        ends = part.ends()
        if talk.rank:
            while (words := talk.told(None)) is not None:
                talk.gather(part.take(words))
            yield None
            return
        try:
            yield TorchFabric(part, [end for end in ends if not chosen or end.rank in chosen], backend)
        finally:
            talk.told({})


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
        self._part.talk.told(words)
        rows = self._part.talk.gather(self._part.take(words))
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

    def __init__(self, backend: str, talk: Talk, group: Any, hard_s: float) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self.talk = torch, dist, talk
        self._rank, self._group, self._hard_s = talk.rank, group, hard_s
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._buffers: dict[str, Any] = {}

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
        rows = self.talk.gather(np.frombuffer(text.ljust(END_BYTES), np.uint8).copy())
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
