# SPDX-License-Identifier: Apache-2.0
"""One PyTorch profiler (Kineto) trace: its events that concern communication, as columns.

Three things are collected. Calls: what the host asked for, from record_param_comms events that name their collective
(torch 2.1 and newer) or else from nccl: annotations, and from gloo: annotations. Runs: what was executed and how long,
from NCCL kernels and gloo: annotations. Steps: ProfilerStep#N. Times are in microseconds, as integers or as numbers
with up to three decimals (Kineto prints nanoseconds so), from a base that may stand at the end of the file;
displayTimeUnit says how a viewer should show them, not what they are.
"""

from __future__ import annotations

import json
from array import array
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import InputError
from ghtools.stream.records import FLAG_ASYNC, FLAG_BYTES_UNKNOWN, FLAG_EXEC, OP_CODE

from .call_table import MAX_NS, CallTable
from .comm_names import dtype_of, numel_of, op_of, op_of_kernel, size_of, text_of

NEEDLES = (b"nccl", b"gloo:", b"ProfilerStep#", b"record_param_comms", b"msccl", b"rccl")
LAUNCH = b"aunchKernel"  # cudaLaunchKernel, cudaLaunchKernelExC, cuLaunchKernel, hipExtModuleLaunchKernel
MAX_GROUPS = 1 << 16
UNKNOWN = FLAG_BYTES_UNKNOWN
_ALL_GATHER, _REDUCE_SCATTER, _SCATTER = OP_CODE["all_gather"], OP_CODE["reduce_scatter"], OP_CODE["scatter"]
_SEND, _RECV, _BARRIER = OP_CODE["send"], OP_CODE["recv"], OP_CODE["barrier"]
_NOT_HOST = ("gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "ac2g", "fwdbwd")

GroupKey = tuple[str, str, int, int, int, str]  # name, members as text, size, first rank, stride, description


class Events:
    """What a trace says about communication. `feed` takes one event of its JSON as bytes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.named, self.annotated, self.gloo, self.runs = (CallTable() for _ in range(4))
        self.steps: list[tuple[int, int, int]] = []  # index, begin, duration
        self.groups: dict[GroupKey, int] = {}
        # Rows whose bytes are all parts of a reduce_scatter or scatter together.
        self.sizeless_annotated, self.sizeless_gloo = array("i"), array("i")
        self.kernels_tell = False  # kernels carry their collective: launches need not be read
        self.odd = 0  # events without the fields they should have
        self.streams: set[int] = set()  # that kernels without metadata ran on
        self._named_span, self._annotated_span = (array("q"), array("i")), (array("q"), array("i"))
        self._launch = (array("q"), array("q"), array("i"))  # correlation, time, thread
        self._bare = array("i"), array("q")  # run without metadata: row, correlation
        self._threads: dict[object, int] = {}
        self._decode = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse).decode

    def __len__(self) -> int:
        return len(self.named) + len(self.annotated) + len(self.gloo) + len(self.runs) + len(self._launch[0]) // 2

    def feed(self, raw: bytes) -> None:
        """One object of traceEvents; InputError if it is not JSON."""
        try:
            event = self._decode(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError, ArithmeticError) as error:
            raise InputError(f"bad input: {self.name}", f"an event is not JSON: {error}") from None
        name, cat = event.get("name"), event.get("cat", "")
        if event.get("ph") != "X" or not isinstance(name, str) or not isinstance(cat, str):
            return
        cat = cat.lower()
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        t_ns, dur_ns = _ns(event.get("ts")), _ns(event.get("dur"))
        if cat == "kernel":
            op = op_of_kernel(name)
            if op is not None:
                self._kernel(op, t_ns, dur_ns, event, args)
        elif cat in _NOT_HOST:
            return
        elif t_ns is None or dur_ns is None:
            self.odd += 1
        elif name == "record_param_comms":
            self._param_comms(t_ns, dur_ns, event, args)
        elif name.startswith("nccl:"):
            self._annotation(self.annotated, name, t_ns, dur_ns, event, args)
        elif name.startswith("gloo:"):
            self._annotation(self.gloo, name, t_ns, dur_ns, event, args)
        elif name.startswith("ProfilerStep#"):
            number = name.partition("#")[2]
            if number.isdecimal() and len(number) < 19:
                self.steps.append((int(number), t_ns, dur_ns))
        elif "aunchKernel" in name:
            correlation = args.get("correlation")
            if isinstance(correlation, int) and abs(correlation) < 1 << 62:
                for column, value in zip(self._launch, (correlation, t_ns, self._thread(event)), strict=True):
                    column.append(value)

    def _thread(self, event: dict[str, Any]) -> int:
        tid = event.get("tid")
        return self._threads.setdefault(tid if isinstance(tid, int | str) else None, len(self._threads))

    def _group(self, args: dict[str, Any]) -> int:
        """Number of the process group an event tells of, -1 if it tells none."""
        name = args.get("Process Group Name", args.get("Process Group ID"))
        members = args.get("Process Group Ranks")
        if name is None and not isinstance(members, str):
            return -1
        size, first, stride = (
            _small(args.get(key)) for key in ("Group size", "Global rank start", "Global rank stride")
        )
        what = args.get("Process Group Description")
        text = members if isinstance(members, str) else ""
        key = (text_of(name), text[: 1 << 20], size, first, stride, what[:256] if isinstance(what, str) else "")
        known = self.groups.get(key)
        if known is None:
            if len(self.groups) >= MAX_GROUPS:
                return -1
            known = self.groups[key] = len(self.groups)
        return known

    def _meta(self, args: dict[str, Any]) -> tuple[int, int, int, int, int, int] | None:
        """(op, dtype, bytes, flags, peer as global rank, group) of an event that names its collective, else None."""
        told = args.get("Collective name")
        op = op_of(told) if isinstance(told, str) else None
        if op is None:
            return None
        dtype = dtype_of(args.get("dtype"))
        sent, got = args.get("In msg nelems"), args.get("Out msg nelems")
        if op in (_REDUCE_SCATTER, _SCATTER) or (op == _RECV and not sent):
            sent = got
        size = size_of(sent, dtype) if isinstance(sent, int) else None
        size = 0 if op == _BARRIER else size
        peer = _small(args.get("Dst Rank" if op == _SEND else "Src Rank")) if op in (_SEND, _RECV) else -1
        return op, dtype, size or 0, UNKNOWN if size is None else 0, peer, self._group(args)

    def _kernel(
        self, op: int, t_ns: int | None, dur_ns: int | None, event: dict[str, Any], args: dict[str, Any]
    ) -> None:
        if t_ns is None or dur_ns is None:
            self.odd += 1
            return
        meta = self._meta(args)
        if meta:
            self.kernels_tell = True
            op, dtype, size, flags, peer, group = meta
            self.runs.add(t_ns, dur_ns, op, dtype, size, flags=flags | FLAG_EXEC, peer=peer, group=group)
            return
        correlation = args.get("correlation")
        stream = args.get("stream", event.get("tid"))
        row = len(self.runs)
        self.runs.add(t_ns, dur_ns, op, 0, 0, flags=FLAG_EXEC | UNKNOWN)
        if not isinstance(correlation, int) or not 0 <= correlation < 1 << 62:
            correlation = -1
        self._bare[0].append(row)
        self._bare[1].append(correlation)
        self.streams.add(_small(stream))

    def _param_comms(self, t_ns: int, dur_ns: int, event: dict[str, Any], args: dict[str, Any]) -> None:
        meta = self._meta(args)
        if meta is None:
            return
        op, dtype, size, flags, peer, group = meta
        self.named.add(t_ns, -1, op, dtype, size, flags=flags | FLAG_ASYNC, peer=peer, group=group)
        self._named_span[0].append(t_ns + dur_ns)
        self._named_span[1].append(self._thread(event))

    def _annotation(
        self, table: CallTable, name: str, t_ns: int, dur_ns: int, event: dict[str, Any], args: dict[str, Any]
    ) -> None:
        op = op_of(name)
        if op is None:
            return
        kinds = args.get("Input type")
        dtype = dtype_of(next((kind for kind in kinds if kind), None)) if isinstance(kinds, list) else 0
        numel = numel_of(args.get("Input Dims"))
        size = 0 if op == _BARRIER else None if numel is None else size_of(numel, dtype)
        flags = UNKNOWN if size is None else 0
        if op in (_REDUCE_SCATTER, _SCATTER) and size is not None:
            (self.sizeless_gloo if table is self.gloo else self.sizeless_annotated).append(len(table))
        if table is self.gloo:
            table.add(t_ns, dur_ns, op, dtype, size or 0, flags=flags)
        else:
            table.add(t_ns, -1, op, dtype, size or 0, flags=flags | FLAG_ASYNC)
            self._annotated_span[0].append(t_ns + dur_ns)
            self._annotated_span[1].append(self._thread(event))

    def calls(self) -> CallTable:
        """What the host asked of NCCL, by the better of the two sources."""
        return self.named if len(self.named) else self.annotated

    def match(self, seq: NDArray[np.int64]) -> None:
        """Give kernels without metadata that of the call around their launch; `seq` numbers the rows of `calls`."""
        calls = self.calls()
        end, thread = self._named_span if calls is self.named else self._annotated_span
        rows, correlation = (np.array(column, np.int64) for column in self._bare)
        launched, launch_t, launch_thread = (np.array(column, np.int64) for column in self._launch)
        if len(rows) and len(launched) and len(calls):
            by = np.argsort(launched, kind="stable")
            at = np.minimum(np.searchsorted(launched[by], correlation), len(by) - 1)
            found = launched[by[at]] == correlation
            began, ended = np.array(calls.t_ns, np.int64), np.array(end, np.int64)
            threads = np.array(thread, np.int64)
            for t in np.unique(launch_thread[by[at]][found]):
                of_t = np.flatnonzero(threads == t)
                of_t = of_t[np.argsort(began[of_t], kind="stable")]
                mine = np.flatnonzero(found & (launch_thread[by[at]] == t))
                when = launch_t[by[at[mine]]]
                before = np.searchsorted(began[of_t], when, side="right") - 1
                inside = (before >= 0) & (len(of_t) > 0)
                inside[inside] = ended[of_t[before[inside]]] >= when[inside]
                for run, call in zip(rows[mine[inside]].tolist(), of_t[before[inside]].tolist(), strict=True):
                    self._copy(calls, call, run, int(seq[call]))

    def _copy(self, calls: CallTable, call: int, run: int, seq: int) -> None:
        runs = self.runs
        runs.op[run] = calls.op[call]
        runs.dtype[run], runs.bytes[run], runs.peer[run] = calls.dtype[call], calls.bytes[call], calls.peer[call]
        runs.flags[run] = FLAG_EXEC | (calls.flags[call] & UNKNOWN)
        runs.group[run], runs.seq[run] = calls.group[call], seq


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _ns(value: object) -> int | None:
    """Nanoseconds of microseconds; None if it is no number or out of range."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value < MAX_NS // 1000:
        return None
    return round(value * 1000)


def _small(value: object) -> int:
    """A number that may be written as text, -1 if it is none or does not fit 31 bits."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 11:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1
