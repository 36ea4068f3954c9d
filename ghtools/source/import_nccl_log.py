# SPDX-License-Identifier: Apache-2.0
"""NCCL's own log of its calls: NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,COLL,P2P.

Every call of a collective, send or receive is a line there, with its count in hexadecimal, its size and its
communicator. They tell what was called, in which order, on which rank, so also who has called fewer times than the
others; they have no durations, and no time at all unless NCCL_DEBUG_TIMESTAMP_LEVELS=INFO (newer NCCL) or a pipe
(`ts`) adds it. INIT lines name ranks and communicators: without them ranks are numbers in order of appearance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import DTYPES, FLAG_BYTES_UNKNOWN, OP_CODE, Record

from .comm_names import op_of, size_of
from .importers import File, Options
from .lines import lines
from .logtext import NCCL_INFO, Told, plain, stamp_ns
from .nccl_processes import Group, Process, Processes

NAME = "nccl-log"
DOC = (
    "NCCL_DEBUG=INFO log with NCCL_DEBUG_SUBSYS=INIT,COLL,P2P: calls in their order, no durations; "
    "times only where lines have stamps (NCCL_DEBUG_TIMESTAMP_LEVELS=INFO)"
)

_CALL = re.compile(
    r"(?P<op>[A-Za-z]{3,30}): opCount [0-9a-f]{1,16} sendbuff \S{1,20} recvbuff \S{1,20} (?:acc \S{1,20} )?"
    r"count (?P<count>\d{1,19}) datatype (?P<dtype>\d{1,3}) op -?\d{1,12} root (?P<root>-?\d{1,10}) "
    r"comm (?P<comm>0x[0-9a-f]{1,16})(?: \[nranks=(?P<size>\d{1,7})\])?"
)
_INIT = re.compile(
    r"(?:\w{1,40} )?comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) nranks (?P<size>\d{1,7}) "
    r"(?P<rest>[^\n]{0,200}?)- Init COMPLETE"
)
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}$")
_COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,16})")
# ncclDataType_t, in its order.
_DTYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8_e4m3", "float8_e5m2",
)  # fmt: skip
_PEERED = {OP_CODE[name] for name in ("send", "recv", "broadcast", "reduce", "gather", "scatter")}
MAX_HOSTS = 1 << 17


def looks_like(first: bytes) -> bool:
    """Whether a line logs a call."""
    return b" NCCL INFO " in first and b": opCount " in first


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Job, comm and calls records. InputError where no call is logged, or two files hold the same process."""
    log = _Log(options)
    try:
        for file in files:
            for item in lines(Told(file.source, file.name, options.warn), file.name):
                if item is None:
                    yield from log.processes.quiet()
                else:
                    yield from log.line(plain(item[1]), file.name)
        yield from log.processes.end()
    except (GhError, Stopped):
        yield from log.processes.end()
        raise
    log.say()
    if not log.processes.count:
        names = ", ".join(file.name for file in files[:3])
        raise InputError(
            f"no calls in {names}", "no line has 'opCount'", "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,P2P"
        )


class _Log:
    """Finds calls and communicators in lines, which may be glued."""

    def __init__(self, options: Options) -> None:
        self.processes = Processes(options.job, options.warn)
        self._hosts: set[str] = set()
        self._untimed = 0
        self._cut = 0

    def line(self, text: str, file: str) -> Iterator[Record]:
        """Everything that a line says, in its order."""
        if " opCount " not in text and " nranks " not in text:
            return
        self._cut += text.count(": opCount ")
        for mark in NCCL_INFO.finditer(text):
            call, init = _CALL.match(text, mark.end()), _INIT.match(text, mark.end())
            if not call and not init:
                continue
            process = self._process(text[max(0, mark.start() - 300) : mark.start()], int(mark[1]), file)
            if not process:
                continue
            if call:
                self._cut -= 1
                yield from self._call(process, call, stamp_ns(text, mark.start()))
            elif init:
                comm_id = _COMM_ID.search(init["rest"])
                group = Group(int(comm_id[1], 16) if comm_id else 0, int(init["size"]), int(init["rank"]))
                self.processes.group(process, init["comm"], group)

    def _process(self, before: str, device: int, file: str) -> Process | None:
        """The process that HOST:PID:TID right before the mark names."""
        parts = before.rpartition(" ")[2].split(":")
        name = _HOST.search(parts[-3]) if len(parts) > 2 else None
        if not name or not (parts[-2].isdecimal() and len(parts[-2]) <= 10):
            return None
        host, pid = name[0], int(parts[-2])
        if host not in self._hosts:
            # A line glued to another has the end of that before the host's name.
            host = next((known for known in self._hosts if host.endswith(known)), host)
            if len(self._hosts) < MAX_HOSTS:
                self._hosts.add(host)
        return self.processes.get((host, pid, device), host, pid, device, file)

    def _call(self, process: Process, match: re.Match[str], stamp: int | None) -> Iterator[Record]:
        name = match["comm"]
        if name not in process.groups:
            self.processes.group(process, name, Group(0, int(match["size"] or 0), -1))
        op = OP_CODE["broadcast"] if match["op"] == "Bcast" else op_of(match["op"]) or 0
        number = int(match["dtype"])
        dtype = DTYPES.index(_DTYPES[number]) if number < len(_DTYPES) else 0
        size = size_of(int(match["count"]), dtype)
        if stamp is None:
            self._untimed += 1
        peer = int(match["root"]) if op in _PEERED else -1
        flags = FLAG_BYTES_UNKNOWN if size is None else 0
        t_ns = self.processes.count if stamp is None else stamp
        peer = peer if -1 <= peer < 1 << 31 else -1
        yield from self.processes.call(process, (t_ns, op, dtype, flags, peer, name, size or 0, -1))

    def say(self) -> None:
        """What is missing, once."""
        if self._untimed:
            self.processes.say(
                f"{self._untimed} lines have no time stamp: their calls are in order, 1 ns apart "
                "(NCCL_DEBUG_TIMESTAMP_LEVELS=INFO gives stamps)"
            )
        if self._cut:
            self.processes.say(f"{self._cut} lines of calls are not whole and were left out")
