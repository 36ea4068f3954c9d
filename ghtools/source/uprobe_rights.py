# SPDX-License-Identifier: Apache-2.0
"""What a machine lacks for attaching by uprobes, in words that help."""

from __future__ import annotations

import errno
import os
import platform

from ghtools.stream.errors import GhError

from . import bpf
from .elf import functions
from .uprobe_process import code_of
from .uprobe_program import STATE, build
from .uprobe_table import GLOO

RIGHTS = "root, or the capabilities CAP_BPF, CAP_PERFMON and (for other users' processes) CAP_SYS_PTRACE"


def check() -> list[str]:
    """What this machine lacks for attaching, one sentence each; empty if nothing (gh-doctor)."""
    if missing := machine_lacks():
        return [missing]
    try:
        states, ring = bpf.Map(bpf.MAP_ARRAY, STATE.itemsize, 1), bpf.Map(bpf.MAP_RINGBUF, 0, 4096)
    except OSError as error:
        return [f"cannot make maps for tracing: {why(error)}; it needs {RIGHTS}"]
    found = []
    program = event = -1
    try:
        program = bpf.load_program(build(0, 0, GLOO[0], states.fd, ring.fd))
        code = next(iter(code_of(os.getpid(), ("libc.so", "libm.so", "ld-linux-x86-64.so")).values()))
        place = functions(code.open_path, ["getppid", "fmod", "_dl_catch_exception"])
        event = bpf.attach_uprobe(str(code.open_path), next(iter(place.values())).offset, os.getpid(), program)
    except OSError as error:
        found.append(f"cannot set a probe: {why(error)}; it needs {RIGHTS}")
    except (GhError, StopIteration) as error:
        found.append(f"cannot set a probe: {error or 'no library to try it on'}")
    finally:
        for fd in (program, event):
            if fd >= 0:
                os.close(fd)
        states.close()
        ring.close()
    return found


def machine_lacks() -> str:
    """What is wrong with machine and kernel; empty = nothing."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return f"attaching works on x86-64 Linux, this is {platform.machine()} {platform.system()}"
    if not bpf.UPROBE_TYPE.exists():
        return (
            f"the kernel has no uprobes ({bpf.UPROBE_TYPE.parent} is missing: CONFIG_UPROBE_EVENTS, or /sys is hidden)"
        )
    return ""


def why(error: OSError) -> str:
    """An error of the kernel in words that help."""
    text = (error.strerror or str(error)).lower()
    if error.errno in (errno.EPERM, errno.EACCES):
        return "not permitted"
    if error.errno in (errno.EINVAL, errno.ENOSYS):
        return f"{text} (a kernel before 5.15, or one without BPF?)"
    return text + (f" ({error.filename})" if error.filename else "")
