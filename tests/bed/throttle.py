# SPDX-License-Identifier: Apache-2.0
"""Make a running process slow for real: a CPU quota by cgroup v1 or v2, else a SIGSTOP/SIGCONT duty cycle."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

PERIOD_US = 100_000
V1 = Path("/sys/fs/cgroup/cpu")
V2 = Path("/sys/fs/cgroup")


class Throttle:
    """Gives a process `share` of one CPU until lifted; `how` says by what means.

    A context manager; `lift` may be called more than once and is called at the end whatever happens.
    """

    def __init__(self, pid: int, share: float) -> None:
        self.pid, self.share = pid, share
        self._group: Path | None = None
        self._home: Path | None = None
        self._cycle: threading.Thread | None = None
        self._stop = threading.Event()
        try:
            self.how = self._by_cgroup()
        except OSError:
            self._drop_group()
            self.how = self._by_signals()

    def _by_cgroup(self) -> str:
        """Move all threads of the process into a cgroup of its own with a quota; OSError where that cannot be."""
        quota = int(PERIOD_US * self.share)
        if (V1 / "cpu.cfs_quota_us").exists():
            self._home = V1 / _cgroup_of(self.pid, "cpu").lstrip("/")
            self._group = self._home / f"ghtools-test-{self.pid}"
            self._group.mkdir()
            (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._group / "cpu.cfs_quota_us").write_text(str(quota))
            how = "cgroup v1 quota"
        else:
            self._home = V2 / _cgroup_of(self.pid, "").lstrip("/")
            parent = self._home.parent if self._home != V2 else V2
            if "cpu" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+cpu")
            self._group = parent / f"ghtools-test-{self.pid}"
            self._group.mkdir()
            (self._group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            how = "cgroup v2 quota"
        (self._group / "cgroup.procs").write_text(str(self.pid))
        return f"{how} of {100 * self.share:.0f} % of a CPU"

    def _by_signals(self) -> str:
        """Stop and continue the process by turns."""

        def cycle() -> None:
            while not self._stop.is_set():
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGSTOP)
                    self._stop.wait((1 - self.share) * PERIOD_US / 1e6)
                    os.kill(self.pid, signal.SIGCONT)
                time.sleep(self.share * PERIOD_US / 1e6)

        self._cycle = threading.Thread(target=cycle, daemon=True)
        self._cycle.start()
        return f"SIGSTOP/SIGCONT, {100 * self.share:.0f} % running"

    def lift(self) -> None:
        """Give the process its CPU back."""
        self._stop.set()
        if self._cycle:
            self._cycle.join()
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
        if self._group and self._home and self._group.exists():
            with suppress(OSError):  # the process may have ended
                (self._home / "cgroup.procs").write_text(str(self.pid))
            self._drop_group()

    def _drop_group(self) -> None:
        for _ in range(50):
            if self._group is None or not self._group.exists():
                return
            with suppress(OSError):
                self._group.rmdir()
                return
            time.sleep(0.02)  # a process that has just ended still counts for a moment

    def __enter__(self) -> Throttle:
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()


def _cgroup_of(pid: int, controller: str) -> str:
    """Path of a process's cgroup below the controller's mount."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(",") or (not controller and not names):
            return path
    raise OSError(f"no {controller or 'unified'} cgroup")
