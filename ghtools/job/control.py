# SPDX-License-Identifier: Apache-2.0
"""The control page of a job (layout: csrc/control.h): requests to the shim, each with a lease.

A request is the CLOCK_MONOTONIC time until which it holds. Whoever made it may die: it runs out by itself
and the job goes on as before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ghtools.job.layout import CONTROL_ABI, CONTROL_DTYPE, CONTROL_MAGIC, PAGE
from ghtools.job.native import lib
from ghtools.job.paths import CONTROL_NAME
from ghtools.stream.errors import GhError, InputError, MissingError

MAX_LEASE_S = 3600.0

lib.gh_control_init.restype = None
lib.gh_control_init.argtypes = [ctypes.c_void_p]
lib.gh_control_set.restype = ctypes.c_uint64
lib.gh_control_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]

_TRACKING, _PROFILE, _PAUSE = 0, 1, 2  # which request, for gh_control_set


@dataclass(frozen=True)
class Requests:
    """What the page asks for now."""

    tracking: bool
    tracking_left_s: float  # how long tracking stays off; 0 if it is on
    profiling: bool
    profiling_left_s: float
    epoch: int  # grows with each request; a ring's live().control_epoch follows when a call has seen it


class ControlPage:
    """A job's control page, opened for writing.

    `ControlPage.open(job_dir)` takes an existing one; `ControlPage.create(job_dir)` makes it if need be (the
    directory must exist). Raises MissingError, or InputError if the file is not a control page of this ABI.
    """

    def __init__(self, path: Path, make: bool) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise MissingError(f"cannot open {path}", str(error), "a job that runs under gh-run") from error
        try:
            if os.fstat(fd).st_size < PAGE:
                if not make:
                    raise InputError(f"cannot read {path}", "it is too short for a control page")
                os.posix_fallocate(fd, 0, PAGE)
            self._map = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            raise MissingError(f"cannot use {path}", str(error)) from error
        finally:
            os.close(fd)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._base = self._bytes.ctypes.data
        lib.gh_control_init(self._base)
        page = self._page()
        if int(page["magic"]) != CONTROL_MAGIC or int(page["abi"]) != CONTROL_ABI:
            self.close()
            raise InputError(f"cannot use {path}", f"it is not a control page of ABI {CONTROL_ABI}")

    @classmethod
    def open(cls, job_dir: Path) -> ControlPage:
        """Open the page of a job that has one."""
        return cls(job_dir / CONTROL_NAME, make=False)

    @classmethod
    def create(cls, job_dir: Path) -> ControlPage:
        """Open the page, making it if there is none."""
        return cls(job_dir / CONTROL_NAME, make=True)

    def set_tracking(self, on: bool, lease_s: float = 10.0) -> int:
        """Switch tracking on, or off for `lease_s` seconds; the new epoch. Renew by asking again."""
        return self._set(_TRACKING, not on, lease_s)

    def set_profiling(self, on: bool, lease_s: float = 10.0) -> int:
        """Time executions for `lease_s` seconds, or stop; the new epoch."""
        return self._set(_PROFILE, on, lease_s)

    def set_pausing(self, on: bool, lease_s: float = 10.0) -> int:
        """Have all ranks look into their mailboxes (job/pause.py) for `lease_s` seconds; the new epoch."""
        return self._set(_PAUSE, on, lease_s)

    def read(self) -> Requests:
        """What the page asks for now."""
        page = self._page()
        now = time.monotonic_ns()
        off_s = max(0.0, (int(page["off_until_ns"]) - now) / 1e9)
        profile_s = max(0.0, (int(page["profile_until_ns"]) - now) / 1e9)
        return Requests(off_s == 0.0, off_s, profile_s > 0.0, profile_s, int(page["epoch"]))

    def close(self) -> None:
        """Let go of the page; a request that stands runs on to the end of its lease."""
        if not self._map.closed:
            del self._bytes
            self._map.close()

    def __enter__(self) -> ControlPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _page(self) -> np.void:
        page: np.void = np.frombuffer(bytes(self._map[: CONTROL_DTYPE.itemsize]), CONTROL_DTYPE, 1)[0]
        return page

    def _set(self, which: int, wanted: bool, lease_s: float) -> int:
        if wanted and not 0 < lease_s <= MAX_LEASE_S:
            raise GhError(f"cannot lease for {lease_s} s", f"a lease is over 0 and at most {MAX_LEASE_S:.0f} s")
        until = time.monotonic_ns() + int(lease_s * 1e9) if wanted else 0
        return int(lib.gh_control_set(self._base, which, until))
