# SPDX-License-Identifier: Apache-2.0
"""The mailbox in a rank's ring file, as the tool that asks sees it (layout and rules: csrc/mail.h)."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from ghtools.job.layout import HEAD_PAGES, MAIL_AT, MAIL_DTYPE, PAGE
from ghtools.job.native import lib
from ghtools.job.task import Task, TaskResult, unpack_result
from ghtools.stream.errors import InputError, MissingError

_PAGE_P = ctypes.c_void_p
lib.gh_mail_ask.restype = None
lib.gh_mail_ask.argtypes = [_PAGE_P, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
lib.gh_mail_renew.restype = None
lib.gh_mail_renew.argtypes = [_PAGE_P, ctypes.c_int64]
lib.gh_mail_release.restype = None
lib.gh_mail_release.argtypes = [_PAGE_P, ctypes.c_uint64]
lib.gh_mail_number.restype = ctypes.c_uint64
lib.gh_mail_number.argtypes = [_PAGE_P]
lib.gh_mail_state.restype = ctypes.c_uint32
lib.gh_mail_state.argtypes = [_PAGE_P, ctypes.c_uint64]
lib.gh_mail_task.restype = ctypes.c_uint64
lib.gh_mail_task.argtypes = [_PAGE_P, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_char_p]
lib.gh_mail_done.restype = ctypes.c_int
lib.gh_mail_done.argtypes = [_PAGE_P, ctypes.c_uint64]


class PauseState(IntEnum):
    """What a rank answers to a pause; GH_PAUSE_* of csrc/mail.h."""

    NONE = 0
    ARRIVED = 1
    DRAINED = 2
    UNDRAINED = 3
    REFUSED = 4
    LEFT = 5


@dataclass(frozen=True)
class Answer:
    """A rank's answer to a pause; times are CLOCK_MONOTONIC ns, 0 = not yet."""

    state: PauseState
    at_seq: int
    arrived_ns: int
    drained_ns: int
    left_ns: int


class Mailbox:
    """The mailbox of one rank. MissingError if its ring cannot be opened for writing, InputError if it was cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise MissingError(f"cannot ask the rank of {path}", str(error), "the job's own user") from error
        try:
            if os.fstat(fd).st_size < HEAD_PAGES * PAGE:
                raise InputError(f"cannot use {path}", "it is too short for a ring")
            self._map = mmap.mmap(fd, HEAD_PAGES * PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            raise MissingError(f"cannot use {path}", str(error)) from error
        finally:
            os.close(fd)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._base = self._bytes.ctypes.data + MAIL_AT

    def close(self) -> None:
        """Let go of the page; what was asked for stands to the end of its lease."""
        if not self._map.closed:
            del self._bytes
            self._map.close()

    @property
    def number(self) -> int:
        """Number of the last pause that was asked for."""
        return int(lib.gh_mail_number(self._base))

    def ask(self, pause: int, stop_seq: int, until_ns: int, drain_ns: int) -> None:
        """Ask the rank to stop before call `stop_seq`, until then (CLOCK_MONOTONIC) at the latest."""
        lib.gh_mail_ask(self._base, pause, stop_seq, until_ns, drain_ns)

    def renew(self, until_ns: int) -> None:
        """Prolong the lease."""
        lib.gh_mail_renew(self._base, until_ns)

    def release(self, pause: int) -> None:
        """End this pause and all before."""
        lib.gh_mail_release(self._base, pause)

    def answer(self, pause: int) -> Answer:
        """What the rank says to a pause."""
        state = PauseState(min(int(lib.gh_mail_state(self._base, pause)), int(PauseState.LEFT)))
        mail = self._read()
        return Answer(
            state, int(mail["at_seq"]), int(mail["arrived_ns"]), int(mail["drained_ns"]), int(mail["left_ns"])
        )

    def give(self, task: Task) -> int:
        """Hand over a task; its number."""
        args = task.packed_args()
        return int(lib.gh_mail_task(self._base, task.kind, args.ctypes.data, task.text.encode()))

    def result(self, number: int) -> TaskResult | None:
        """The result of task `number`, None while it runs."""
        if not lib.gh_mail_done(self._base, number):
            return None
        mail = self._read()
        return unpack_result(int(mail["status"]), int(mail["count"]), mail["value"], bytes(mail["said"]))

    def _read(self) -> Any:
        return np.frombuffer(bytes(self._map[MAIL_AT : MAIL_AT + MAIL_DTYPE.itemsize]), MAIL_DTYPE, 1)[0]
