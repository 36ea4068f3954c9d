# SPDX-License-Identifier: Apache-2.0
"""JSON lines of the NCCL Inspector, a profiler plugin that comes with NCCL (ext-profiler/inspector).

NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so and NCCL_INSPECTOR_ENABLE=1 make one file a process in
NCCL_INSPECTOR_DUMP_DIR, a line a finished collective or transfer, with how long it ran. With them gh-profile can tell
who waited least. Operations that the Inspector filtered out or had no room for are missing; without
NCCL_INSPECTOR_DUMP_VERBOSE=1 a line tells when it was written, not when the operation began, so times are late.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import FLAG_BYTES_UNKNOWN, FLAG_CAPTURE, OP_CODE, Record

from .comm_names import group_id, op_of
from .importers import File, Options
from .lines import lines, place
from .logtext import Told
from .nccl_processes import Group, Processes

NAME = "nccl-inspector"
DOC = (
    "JSON lines of the NCCL Inspector plugin (NCCL_INSPECTOR_ENABLE=1, NCCL_INSPECTOR_DUMP_VERBOSE=1 for begin times): "
    "collectives and transfers with their durations"
)

MAX_NS = 1 << 62


def looks_like(first: bytes) -> bool:
    """Whether the first line has the measurements of an operation."""
    line = first.lstrip().split(b"\n", 1)[0]
    return line[:1] == b"{" and (b'"coll_perf"' in line or b'"p2p_perf"' in line)


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Job, comm and calls records. InputError names the line that is no JSON object, or a rank that two files claim."""
    inspector = _Inspector(options)
    try:
        for file in files:
            for item in lines(Told(file.source, file.name, options.warn), file.name):
                if item is None:
                    yield from inspector.processes.quiet()
                    continue
                number, line = item
                if not line.strip():
                    continue
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError) as error:
                    why = "not JSON: " + getattr(error, "msg", "nested too deeply or no UTF-8").lower()
                    raise InputError(f"bad input at {place(file.name, number)}", why) from None
                if not isinstance(found, dict):
                    raise InputError(f"bad input at {place(file.name, number)}", "no JSON object")
                yield from inspector.event(found, file.name)
        yield from inspector.processes.end()
    except (GhError, Stopped):
        yield from inspector.processes.end()
        raise
    if not inspector.processes.count:
        raise InputError(f"no operations in {files[0].name if files else '-'}", "no line has coll_perf or p2p_perf")


class _Inspector:
    """Operations of lines."""

    def __init__(self, options: Options) -> None:
        self.processes = Processes(options.job, options.warn)

    def event(self, item: dict[str, Any], file: str) -> Iterator[Record]:
        """What one line says; header and metadata may be objects of their own or not."""
        head = {**item, **_map(item, "metadata"), **_map(item, "header")}
        for prefix in ("coll", "p2p"):
            perf = _map(item, f"{prefix}_perf")
            if perf:
                yield from self._operation(head, perf, prefix, file)

    def _operation(self, head: dict[str, Any], perf: dict[str, Any], prefix: str, file: str) -> Iterator[Record]:
        number, size = _int(head.get("rank"), 1 << 31), _int(head.get("n_ranks"), 1 << 31)
        if number is None:
            self.processes.say("some lines name no rank: left out")
            return
        host, pid = str(head.get("hostname", ""))[:253], _int(head.get("pid"), 1 << 62) or 0
        key = (host, pid) if host or pid else file
        process = self.processes.get(key, host, pid, -1, file)
        name = head.get("id")
        name = name if isinstance(name, str | int) else ""
        if name not in process.groups:
            title = head.get("comm_name")
            comm = _comm(name, size or 0)
            self.processes.group(
                process, name, Group(comm, size or 0, number, title[:200] if isinstance(title, str) else "")
            )
        op = perf.get(prefix)
        bytes_ = _int(perf.get(f"{prefix}_msg_size_bytes"), 1 << 62)
        dur_ns = _ns(perf.get(f"{prefix}_exec_time_us"))
        flags = FLAG_BYTES_UNKNOWN if bytes_ is None else 0
        if perf.get("graphCaptured") is True:
            flags |= FLAG_CAPTURE
        peer = _int(perf.get("p2p_peer"), 1 << 31)
        code = 0
        if isinstance(op, str):
            code = OP_CODE["broadcast"] if op == "Bcast" else op_of(op) or 0
        yield from self.processes.call(
            process,
            (
                self._begin(head, perf, prefix, dur_ns),
                code,
                0,
                flags,
                -1 if peer is None else peer,
                name,
                bytes_ or 0,
                -1 if dur_ns is None else dur_ns,
            ),
        )

    def _begin(self, head: dict[str, Any], perf: dict[str, Any], prefix: str, dur_ns: int | None) -> int:
        traced = _ns(_map(perf, "event_trace_ts").get(f"{prefix}_start_ts"))
        if traced:
            return traced
        written = _ns(head.get("dump_timestamp_us"))
        if written:
            self.processes.say(
                "times are those of writing, not of the begin (NCCL_INSPECTOR_DUMP_VERBOSE=1 gives them)"
            )
            return max(written - (dur_ns or 0), 0)
        self.processes.say("lines have no time: calls are in order, 1 ns apart")
        return self.processes.count


def _map(item: dict[str, Any], key: str) -> dict[str, Any]:
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def _int(value: object, limit: int) -> int | None:
    return value if type(value) is int and 0 <= value < limit else None


def _ns(value: object) -> int | None:
    """Microseconds to nanoseconds; None where it is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_NS / 1000:
        return None
    return round(value * 1000) if math.isfinite(value) else None


def _comm(name: str | int, size: int) -> int:
    """The Inspector's id is equal on all ranks of a communicator."""
    try:
        number = int(name, 16) if isinstance(name, str) else name
    except ValueError:
        number = 0
    return number if 0 < number < 1 << 64 else group_id(str(name), [], size)
