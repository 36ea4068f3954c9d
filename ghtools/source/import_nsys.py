# SPDX-License-Identifier: Apache-2.0
"""Sqlite exports of NVIDIA Nsight Systems reports.

They are made by `nsys profile --trace=cuda,nvtx ...` and `nsys export --type sqlite REPORT.nsys-rep`. A file may hold
several processes and several devices: each pair of them is a rank. Its number is that in the file's name (rank3.sqlite)
where the file holds one, else ranks are counted through the files, in order of the device. NCCL kernels become
executions with true durations, their launches calls of the host, NVTX ranges such as "iteration 7" or "step_7"
iterations. A report tells neither sizes nor groups nor, for a SendRecv kernel, which of send, recv and all-to-all it
is. Devices of one file whose kernels are the same in number and kind and end together are taken as a group; what runs
in groups across files cannot be compared. At most 4 million NCCL kernels a file are read; they are held in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.records import FLAG_ASYNC, FLAG_BYTES_UNKNOWN, FLAG_EXEC, Comm, Iters, Job, Record

from . import nsys_db
from .call_table import CallTable
from .comm_names import group_id, op_of_kernel, rank_in_name
from .each_file import each_file
from .importers import File, Options
from .interleave import side_by_side

NAME = "nsys"
DOC = "sqlite export of Nsight Systems: NCCL kernels with durations, a device a rank; NVTX steps; no sizes, no groups"

MAX_KERNELS = 1 << 22
MAX_GROUPS = 1 << 12
END_NS, MOST_ENDS_NS = 100_000, 1_000_000  # ends of one collective on several devices: median, and 90 % of them
_LIMIT_NS = 1 << 61


def looks_like(first: bytes) -> bool:
    """Whether this is a sqlite database."""
    return first[:16] == nsys_db.MAGIC


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Job and comm of each device of each file, then calls (of the host, then executions) and iters, step by step.

    InputError names a file that is no such database, lacks the tables, or is damaged; the others are read.
    """
    if options.rank >= 0 and len(files) > 1:
        raise GhError("cannot read several files as one rank", "each has its own devices", "one file with --rank")
    ranks: dict[int, str] = {}
    yield from side_by_side(each_file(files, lambda file: _read_file(file, ranks, options), options.warn))


class _Device:
    """What one process ran on one device."""

    def __init__(self) -> None:
        self.calls, self.runs = CallTable(), CallTable()
        self.streams: dict[int, int] = {}  # stream -> number, which is the group in both tables

    def add(self, begin: int, end: int, stream: int, op: int, launch: int | None) -> None:
        """One kernel."""
        number = self.streams.setdefault(stream, len(self.streams))
        if launch is not None and 0 <= launch <= begin:
            self.calls.add(launch, -1, op, 0, 0, flags=FLAG_BYTES_UNKNOWN | FLAG_ASYNC, group=number)
        self.runs.add(begin, end - begin, op, 0, 0, flags=FLAG_BYTES_UNKNOWN | FLAG_EXEC, group=number)


def _read_file(file: File, ranks: dict[int, str], options: Options) -> Iterator[Record]:
    devices: dict[tuple[int, int], _Device] = {}
    cut: InputError | None = None
    steps: dict[int, list[tuple[int, int, int]]] = {}
    epoch, host = 0, ""
    try:
        with nsys_db.opened(file) as database:
            epoch, host = nsys_db.epoch_ns(database), nsys_db.host(database)
            _collect(database, file.name, devices)
            steps = nsys_db.steps(database)
    except InputError as error:
        if not devices:
            raise
        cut = error  # what was read before it is sound
    placed = _place(file.name, devices, ranks, options)
    yield Job(
        job=options.job, backend="nccl", t_ns=epoch,
        ranks=[
            {"rank": rank, "host": host, "device": str(key[0]), "pid": key[1] >> 24 & 0xFFFFFF, "state": "ended"}
            for rank, key in placed.items()
        ],
    )  # fmt: skip
    comms = _groups(file.name, {rank: devices[key] for rank, key in placed.items()})
    for rank, key in placed.items():
        device = devices[key]
        yield from comms[rank]
        ids = np.array([comm.comm for comm in comms[rank]] or [0], np.uint64)
        began = np.sort(np.array(device.calls.t_ns, np.int64))
        device.calls.seq = device.calls.seq[:0]
        device.calls.seq.extend(np.argsort(np.argsort(np.array(device.calls.t_ns, np.int64), kind="stable")).tolist())
        for table in (device.calls, device.runs):
            yield from table.records(rank, ids, epoch)
        if steps.get(key[1]):
            yield _iters(rank, steps[key[1]], began, epoch)
    if cut:
        raise cut


def _collect(database: sqlite3.Connection, name: str, devices: dict[tuple[int, int], _Device]) -> None:
    ops: dict[str, int | None] = {}
    count = 0
    for begin, end, device, stream, kernel, launch, process in nsys_db.kernels(database, name):
        if kernel not in ops:
            ops[kernel] = op_of_kernel(kernel)
        op = ops[kernel]
        if op is None or not 0 <= begin < end < _LIMIT_NS or not 0 <= device < 1 << 31:
            continue
        count += 1
        if count > MAX_KERNELS:
            raise InputError(f"bad input: {name}", f"over {MAX_KERNELS} NCCL kernels", "a shorter capture")
        key = device, process
        if key not in devices and len(devices) >= MAX_GROUPS:
            raise InputError(f"bad input: {name}", f"over {MAX_GROUPS} devices")
        devices.setdefault(key, _Device()).add(begin, end, stream, op, launch)
    if not devices:
        raise InputError(f"bad input: {name}", "it has no NCCL kernel", "a capture of a job of more than one GPU")


def _place(
    name: str, devices: dict[tuple[int, int], _Device], ranks: dict[int, str], options: Options
) -> dict[int, tuple[int, int]]:
    """The rank of each device of a file."""
    keys = sorted(devices)
    first = rank_in_name(name) if options.rank < 0 and len(keys) == 1 else options.rank
    if first is None or first < 0:
        first = max(ranks, default=-1) + 1
        if len(keys) > 1:
            options.warn(f"{name}: ranks {first}-{first + len(keys) - 1} are its devices in order")
    placed = {first + number: key for number, key in enumerate(keys)}
    for rank in placed:
        if rank in ranks:
            raise InputError(f"bad input: {name}", f"it is rank {rank}, which {ranks[rank]} was already")
    ranks.update(dict.fromkeys(placed, name))
    return placed


def _groups(name: str, devices: dict[int, _Device]) -> dict[int, list[Comm]]:
    """Communicators by rank, one for each stream: shared where the kernels of several devices end together."""
    kinds: dict[tuple[int, bytes], list[tuple[NDArray[np.int64], list[tuple[int, int]]]]] = {}
    for rank, device in devices.items():
        group, ops = np.array(device.runs.group, np.int32), np.array(device.runs.op, np.uint8)
        ends = np.array(device.runs.t_ns, np.int64) + np.array(device.runs.dur_ns, np.int64)
        for number in device.streams.values():
            mine = ends[group == number]
            same = kinds.setdefault((len(mine), ops[group == number].tobytes()), [])
            for other, members in same:
                apart = np.abs(mine - other)
                together = np.median(apart) <= END_NS and np.quantile(apart, 0.9) <= MOST_ENDS_NS
                if together and all(member != rank for member, _ in members):
                    members.append((rank, number))
                    break
            else:
                same.append((mine, [(rank, number)]))
    comms: dict[int, dict[int, Comm]] = {rank: {} for rank in devices}
    for same in kinds.values():
        for _, members in same:
            ranks = sorted(rank for rank, _ in members)
            for rank, number in members:
                known = len(ranks) > 1
                identity = (
                    group_id("nsys", ranks, name, *min(members)) if known else group_id("nsys", (), name, rank, number)
                )
                comms[rank][number] = Comm(
                    comm=identity, rank=rank, comm_rank=ranks.index(rank) if known else -1,
                    size=len(ranks) if known else 0, ranks=ranks if known else [], backend="nccl",
                    name="end together" if known else "not told by the report",
                )  # fmt: skip
    return {rank: [by[number] for number in sorted(by)] for rank, by in comms.items()}


def _iters(rank: int, steps: list[tuple[int, int, int]], began: NDArray[Any], epoch: int) -> Iters:
    index, begin, end = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    first, last = np.searchsorted(began, begin), np.searchsorted(began, end)
    return Iters(
        rank=rank, index=index, t_ns=begin + epoch, dur_ns=end - begin, phase=np.zeros(len(index), np.uint8),
        calls=(last - first).astype(np.int32), seq=np.where(last > first, first, -1),
    )  # fmt: skip
