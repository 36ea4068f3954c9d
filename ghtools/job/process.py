# SPDX-License-Identifier: Apache-2.0
"""What /proc says of a process: is it the one that made a ring, and what has it mapped."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def process_start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat); None if it is gone.

    A zombie counts as gone: it makes no calls any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 2 :].split()  # the name may hold blanks and brackets
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


@cache
def pid_namespace() -> int:
    """Inode of this process's PID namespace; 0 if it cannot be read."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def find_in_namespace(namespace: int, pid: int, start_ticks: int) -> int | None:
    """Our number of the process that has number `pid` in another PID namespace (a container); None if gone."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or process_start_ticks(int(entry.name)) != start_ticks:
            continue
        try:
            status = Path(f"/proc/{entry.name}/status").read_text(errors="replace")
            if Path(f"/proc/{entry.name}/ns/pid").stat().st_ino != namespace:
                continue
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("NSpid:") and line.split()[-1] == str(pid):
                return int(entry.name)
    return None


def mapped_files(pid: int) -> list[str] | None:
    """Paths of the files a process has mapped, in order of address, each once; None if it may not be asked."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    except OSError:
        return None
    seen: dict[str, None] = {}
    for line in text.splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith("/"):
            seen[parts[5]] = None
    return list(seen)


def process_has_mapped(pid: int, path: Path) -> bool | None:
    """Whether a process has mapped this very file (by device and inode); None if that cannot be told."""
    try:
        want = path.stat()
        with open(f"/proc/{pid}/maps", "rb") as file:
            text = file.read()
    except OSError:
        return None
    if not text:
        return None
    inode = b"%d" % want.st_ino
    device = b"%02x:%02x" % (os.major(want.st_dev), os.minor(want.st_dev))
    for line in text.splitlines():
        parts = line.split(None, 5)
        if len(parts) >= 5 and parts[4] == inode and parts[3] == device:
            return True
    # Stacked filesystems show another device in maps than stat does: then only the inode can speak.
    return any(line.split(None, 5)[4] == inode for line in text.splitlines() if len(line.split(None, 5)) >= 5)
