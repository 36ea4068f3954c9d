# SPDX-License-Identifier: Apache-2.0
"""A task and its result, as csrc/tasks/tasks.h has them: what a stopped rank, or a process of our own, is to run."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ghtools.job.layout import MAIL_DTYPE

GEMM, BANDWIDTH, LISTEN, EXCHANGE, CLOSE = 1, 2, 3, 4, 5  # GH_TASK_* of tasks.h (a test compares them)
GPU_GEMM, GPU_COPY = 6, 7  # in the shim alone
NCCL_EXCHANGE = 8  # in the shim alone

ARGS: int = MAIL_DTYPE["arg"].shape[0]
VALUES: int = MAIL_DTYPE["value"].shape[0]
TEXT_BYTES: int = MAIL_DTYPE["text"].itemsize
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True)
class Task:
    """One task: `kind` is a GH_TASK_*, `args` and `text` mean what tasks.h says beside that kind."""

    kind: int
    args: tuple[int, ...] = ()
    text: str = ""

    def __post_init__(self) -> None:
        """ValueError for what does not fit a mailbox: over 24 arguments, no 64-bit number, over 255 bytes of text."""
        if not 0 < self.kind < 1 << 32:
            raise ValueError(f"{self.kind} is no kind of task")
        if len(self.args) > ARGS:
            raise ValueError(f"a task has at most {ARGS} arguments, not {len(self.args)}")
        if not all(arg in _INT64 for arg in self.args):
            raise ValueError("an argument of a task is a signed 64-bit number")
        if "\0" in self.text or len(self.text.encode()) >= TEXT_BYTES:
            raise ValueError(f"a task's text has no zero and under {TEXT_BYTES} bytes")

    def packed_args(self) -> NDArray[np.int64]:
        """The arguments as the mailbox's array, shape (24,); those not given are 0."""
        return np.array([*self.args, *[0] * (ARGS - len(self.args))], np.int64)


@dataclass(frozen=True)
class TaskResult:
    """What came of a task: `status` is 0 or an errno, `values` what tasks.h says, `said` what went wrong."""

    status: int
    values: list[int] = field(default_factory=list)
    said: str = ""

    @property
    def why(self) -> str:
        """What went wrong in words, empty if nothing did."""
        return (self.said or os.strerror(self.status).lower()) if self.status else ""


def unpack_result(status: int, count: int, values: Sequence[int] | NDArray[np.int64], said: bytes) -> TaskResult:
    """A result from the arrays of a mailbox, which another process writes: nothing in it is believed unchecked."""
    if not 0 <= count <= min(VALUES, len(values)) or not 0 <= status < 4096:
        return TaskResult(errno.EPROTO, [], "its result is damaged")
    text = bytes(said).split(b"\0", 1)[0][:TEXT_BYTES].decode(errors="replace")
    return TaskResult(int(status), [int(value) for value in values[:count]], _printable(text))


def _printable(text: Iterable[str]) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class _Result(ctypes.Structure):
    _fields_ = (
        ("status", ctypes.c_int32),
        ("count", ctypes.c_uint32),
        ("value", ctypes.c_int64 * VALUES),
        ("said", ctypes.c_char * TEXT_BYTES),
    )


def run_task(task: Task, timeout_s: float = 60.0) -> TaskResult:
    """Run a task in this thread of this process; ECANCELED if it was not done in `timeout_s` seconds.

    The interpreter is free meanwhile. MissingError if the native library is not there.
    """
    from ghtools.job.native import lib

    run = lib.gh_native_task
    run.restype = None
    run.argtypes = (ctypes.c_uint32, ctypes.POINTER(ctypes.c_int64), ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p)
    args, result = task.packed_args(), _Result()
    until = time.monotonic_ns() + int(timeout_s * 1e9)
    run(task.kind, args.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)), task.text.encode(), until, ctypes.byref(result))
    return unpack_result(result.status, result.count, result.value, result.said)
