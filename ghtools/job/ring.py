# SPDX-License-Identifier: Apache-2.0
"""Reading a rank's ring file (layout: csrc/ring.h).

Several readers may read the same ring; each has its own cursor and none slows a writer. Nothing in a
file is trusted before it is checked, and memory ordering is the native library's business.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ghtools.job.layout import (
    BACKENDS,
    COMM_DTYPE,
    HEAD_PAGES,
    HEADER_DTYPE,
    LIVE_DTYPE,
    PAGE,
    RECORD_DTYPE,
    RING_ABI,
    RING_MAGIC,
    TALLY_AT,
    TALLY_CAP,
)
from ghtools.job.native import lib
from ghtools.job.process import pid_namespace, process_has_mapped, process_start_ticks
from ghtools.stream.errors import InputError, MissingError

State = Literal["running", "ended", "died"]

PATIENCE_NS = 100_000_000  # how long a claimed record may stay unfinished before it is counted as lost


class _Cursor(ctypes.Structure):
    _fields_ = [
        ("next", ctypes.c_uint64),
        ("stuck", ctypes.c_uint64),
        ("stuck_since_ns", ctypes.c_int64),
    ]


lib.gh_ring_drain.restype = ctypes.c_int64
lib.gh_ring_drain.argtypes = [
    ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(_Cursor), ctypes.c_void_p,
    ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int64,
]  # fmt: skip
lib.gh_ring_tallies.restype = ctypes.c_int64
lib.gh_ring_tallies.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
lib.gh_ring_tally_key.restype = ctypes.c_uint64
lib.gh_ring_tally_key.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32]
lib.gh_ring_comms.restype = ctypes.c_int64
lib.gh_ring_comms.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]


@dataclass(frozen=True)
class RingInfo:
    """What a ring's header says of its process. -1 = not known, for the ranks and sizes."""

    path: Path
    job: str
    host: str
    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    restart_count: int
    pid: int
    ppid: int
    uid: int
    start_ticks: int
    pid_ns: int
    made_ns: int
    clock_offset_ns: int
    slot_cap: int
    version: str
    command: str
    shim_path: str


@dataclass(frozen=True)
class CommInfo:
    """A communicator as this process sees it; its members are gathered from all ranks' tables."""

    id: int
    parent: int
    size: int
    comm_rank: int
    name: str
    backend: str
    made_ns: int
    dead: bool


@dataclass(frozen=True)
class Tallies:
    """How many calls of each kind a process had made when it had made `calls` in all (csrc/tally.h)."""

    calls: int
    by_key: dict[int, int]

    def count(self, comm: int, op: int, peer: int) -> int:
        """Of the collectives on a communicator, or of the sends or receives with a peer of it; 0 if there were none."""
        return self.by_key.get(int(lib.gh_ring_tally_key(comm, op, peer)), 0)


@dataclass(frozen=True)
class LiveInfo:
    """Counters and state of a ring at one moment."""

    written: int  # records claimed since the ring was made
    calls: int  # calls made, tracked or not
    dropped: int  # records given up by their writer (they are also among the lost ones of a reader)
    unmatched: int  # calls on communicators the shim has not seen made
    comm_count: int
    comm_lost: int  # communicators that found no place in the table
    tally_lost: int  # calls that found no place among the tallies
    tracking: bool
    profiling: bool
    control_epoch: int
    ended: bool
    ended_ns: int
    backends: list[str]
    gloo_path: str  # the library file the calls resolved to, empty if none
    nccl_path: str


def _text(raw: Any) -> str:
    return bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace")


def _check_header(head: Any, size: int, path: Path) -> None:
    def refuse(why: str) -> InputError:
        return InputError(f"cannot read {path}", why, "a ring made by this version of ghtools")

    if int(head["magic"]) != RING_MAGIC:
        raise refuse("it is not a ring")
    if int(head["abi"]) != RING_ABI:
        raise refuse(f"its ABI number is {int(head['abi'])}, this reader's is {RING_ABI}")
    header_bytes, comm_cap, slot_cap = (int(head[k]) for k in ("header_bytes", "comm_cap", "slot_cap"))
    slot_off, file_bytes = int(head["slot_off"]), int(head["file_bytes"])
    sound = (
        header_bytes == HEAD_PAGES * PAGE
        and int(head["comm_bytes"]) == COMM_DTYPE.itemsize
        and int(head["slot_bytes"]) == RECORD_DTYPE.itemsize + 8
        and 0 < slot_cap <= 1 << 24
        and slot_cap & (slot_cap - 1) == 0
        and comm_cap <= 1 << 16
        and slot_off == header_bytes + comm_cap * COMM_DTYPE.itemsize
        and file_bytes == slot_off + slot_cap * (RECORD_DTYPE.itemsize + 8)
    )
    if not sound:
        raise refuse("its header contradicts itself")
    if size < file_bytes:
        raise refuse(f"it has {size} bytes and should have {file_bytes}")


_INFO_NUMBERS = (
    "rank", "local_rank", "world_size", "node_rank", "restart_count", "pid", "ppid", "uid", "start_ticks",
    "pid_ns", "made_ns", "clock_offset_ns", "slot_cap",
)  # fmt: skip
_INFO_TEXTS = ("job", "host", "version", "command", "shim_path")
_LIVE_NUMBERS = (
    "written", "calls", "dropped", "unmatched", "comm_count", "comm_lost", "control_epoch", "ended_ns", "tally_lost",
)  # fmt: skip


def _info(head: Any, path: Path) -> RingInfo:
    values: dict[str, Any] = {name: int(head[name]) for name in _INFO_NUMBERS}
    values |= {name: _text(head[name]) for name in _INFO_TEXTS}
    return RingInfo(path=path, **values)


def _state(info: RingInfo, ended: bool) -> State:
    if ended:
        return "ended"
    pid: int | None = info.pid
    if info.pid_ns and info.pid_ns != pid_namespace():
        from ghtools.job.process import find_in_namespace

        pid = find_in_namespace(info.pid_ns, info.pid, info.start_ticks)
    if pid is None or process_start_ticks(pid) != info.start_ticks:
        return "died"
    # The same process that has exec'ed another program no longer has the ring mapped.
    return "ended" if process_has_mapped(pid, info.path) is False else "running"


def ring_state(path: Path) -> State | Literal["bad"]:
    """State of a ring's process without keeping the file open; "bad" if it is not a sound ring."""
    try:
        with path.open("rb") as file:
            raw = file.read(HEAD_PAGES * PAGE)
            size = os.fstat(file.fileno()).st_size
        if len(raw) < HEAD_PAGES * PAGE:
            return "bad"
        head = np.frombuffer(raw, HEADER_DTYPE, 1)[0]
        _check_header(head, size, path)
        live = np.frombuffer(raw, LIVE_DTYPE, 1, offset=PAGE)[0]
        return _state(_info(head, path), bool(live["ended"]))
    except (OSError, InputError):
        return "bad"


class RingReader:
    """One reader of one ring.

    `start="all"` begins with the oldest record ever (what has been overwritten by now counts as lost, so
    that got + lost = written); `start="oldest"` begins with the oldest record still there; `start="now"`
    with the next one.

    Raises MissingError if the file cannot be opened and InputError if it is not a sound ring.
    """

    def __init__(self, path: Path, start: Literal["all", "oldest", "now"] = "all") -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise MissingError(f"cannot open {path}", str(error)) from error
        try:
            self._size = os.fstat(self._fd).st_size
            if self._size < HEAD_PAGES * PAGE:
                raise InputError(f"cannot read {path}", f"it is too short for a ring ({self._size} bytes)")
            self._map = mmap.mmap(self._fd, self._size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise InputError(f"cannot read {path}", str(error)) from error
        except InputError:
            os.close(self._fd)
            raise
        self._closed = False
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._base = self._bytes.ctypes.data
        try:
            head = np.frombuffer(bytes(self._map[: HEADER_DTYPE.itemsize]), HEADER_DTYPE, 1)[0]
            _check_header(head, self._size, path)
        except InputError:
            self.close()
            raise
        self.info = _info(head, path)
        self._slot_off, self._slot_cap = int(head["slot_off"]), int(head["slot_cap"])
        self._comm_cap = int(head["comm_cap"])
        self._cursor = _Cursor(0, 0, 0)
        written = self.live().written
        if start == "oldest":
            self._cursor.next = max(0, written - self._slot_cap)
        elif start == "now":
            self._cursor.next = written
        self._state: State = "running"
        self._state_at = 0.0

    def live(self) -> LiveInfo:
        """Counters and state now."""
        self._check_size()
        live = np.frombuffer(bytes(self._map[PAGE : PAGE + LIVE_DTYPE.itemsize]), LIVE_DTYPE, 1)[0]
        backends = int(live["backends"])
        numbers: dict[str, Any] = {name: int(live[name]) for name in _LIVE_NUMBERS}
        return LiveInfo(
            **numbers,
            tracking=bool(live["tracking"]),
            profiling=bool(live["profiling"]),
            ended=bool(live["ended"]),
            backends=[name for bit, name in BACKENDS.items() if backends & bit],
            gloo_path=_text(live["gloo_path"]),
            nccl_path=_text(live["nccl_path"]),
        )

    @property
    def position(self) -> int:
        """Number of the next record this reader will deliver or count as lost."""
        return int(self._cursor.next)

    def drain(self, max_calls: int = 65536) -> tuple[NDArray[Any], int]:
        """At most `max_calls` new records, oldest first, and how many were lost before or between them.

        The array has dtype layout.RECORD_DTYPE, owns its memory, and may be empty. Records lost are counted
        once. A record that its writer has not finished holds the reader up for 0.1 s at most (not at all
        once the process is gone), then counts as lost.
        """
        self._check_size()
        out = np.empty(max(1, min(max_calls, self._slot_cap)), RECORD_DTYPE)
        lost = ctypes.c_uint64(0)
        patience = PATIENCE_NS if self.state() == "running" else 0
        got = lib.gh_ring_drain(
            self._base + PAGE, self._base + self._slot_off, self._slot_cap, ctypes.byref(self._cursor),
            out.ctypes.data, len(out), ctypes.byref(lost), patience,
        )  # fmt: skip
        return out[:got].copy(), int(lost.value)

    def comms(self) -> list[CommInfo]:
        """The communicators this process has made so far, oldest first."""
        self._check_size()
        count = min(self.live().comm_count, self._comm_cap)
        out = np.zeros(count, COMM_DTYPE)
        got = lib.gh_ring_comms(self._base + HEAD_PAGES * PAGE, count, out.ctypes.data)
        return [
            CommInfo(
                id=int(c["id"]),
                parent=int(c["parent"]),
                size=int(c["size"]),
                comm_rank=int(c["comm_rank"]),
                name=_text(c["name"]),
                backend=BACKENDS.get(int(c["backend"]), ""),
                made_ns=int(c["made_ns"]),
                dead=bool(c["dead"]),
            )
            for c in out[:got]
        ]

    def tallies(self) -> Tallies | None:
        """How many calls were made so far, by kind; None if some were not counted, or they come too fast to be read."""
        self._check_size()
        out = np.zeros((TALLY_CAP, 2), np.uint64)
        calls = lib.gh_ring_tallies(self._base + PAGE, self._base + TALLY_AT, out.ctypes.data)
        if calls < 0 or self.live().tally_lost:
            return None
        used = out[out[:, 0] != 0]
        return Tallies(int(calls), {int(key): int(count) for key, count in used.tolist()})

    def state(self, max_age_s: float = 0.2) -> State:
        """running; ended (the process left by its own exit, or exec'ed); died (it is gone without a word).

        The answer may be `max_age_s` old, since asking costs system calls.
        """
        now = time.monotonic()
        if self._state == "running" and now - self._state_at >= max_age_s:
            self._state, self._state_at = _state(self.info, self.live().ended), now
        return self._state

    def close(self) -> None:
        """Let go of the file."""
        if not self._closed:
            self._closed = True
            del self._bytes
            self._map.close()
            os.close(self._fd)

    def __enter__(self) -> RingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_size(self) -> None:
        # Reading past the end of a file that someone has cut would kill this process with SIGBUS.
        if self._closed:
            raise ValueError("the ring is closed")
        if os.fstat(self._fd).st_size < self._size:
            raise InputError(f"cannot read {self.path}", "it was cut while it was read")
