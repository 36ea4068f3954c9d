# SPDX-License-Identifier: Apache-2.0
"""Look at a machine and at a running job: can it be watched, is it watched (gh-doctor, issue 2).

A tool that was loaded and reports success while it records nothing is what people complain of most (FIELD), so
each check looks at what really happened: which library file the calls resolved to, and whether records flow.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Literal

from ghtools.job.layout import RING_ABI
from ghtools.job.native import SHIM
from ghtools.job.paths import JobDir, ring_root, roots, space_bytes, stale_jobs
from ghtools.job.process import mapped_files
from ghtools.job.ring import RingReader
from ghtools.stream.errors import GhError

Mark = Literal["ok", "note", "bad"]
LOW_SPACE = 64 << 20  # below this the rings get smaller than their default, sixteen ranks a host taken


@dataclass(frozen=True)
class Check:
    """One line of the doctor's: what was looked at, how it is, what to do."""

    mark: Mark
    what: str
    text: str


def machine_checks() -> list[Check]:
    """The machine, without any job."""
    return [_shim(), _directory(), _space(), _stale()]


def _shim() -> Check:
    if not SHIM.exists():
        return Check("bad", "shim", f"{SHIM} is not built; try `make shim` or `pip install .`")
    # Asked in a process of its own that has it preloaded, as a job has: a late load could fail where that works.
    ask = "import ctypes; print(ctypes.c_uint32.in_dll(ctypes.CDLL(None), 'gh_shim_abi').value)"
    asked = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "LD_PRELOAD": str(SHIM)},
        capture_output=True,
        text=True,
        check=False,
    )
    if not asked.stdout.strip().isdigit():
        why = (asked.stderr.strip().splitlines() or ["no answer"])[0]
        return Check("bad", "shim", f"{SHIM} cannot be preloaded: {why}")
    abi = int(asked.stdout)
    if abi != RING_ABI:
        return Check("bad", "shim", f"{SHIM} has ABI {abi}, the reader {RING_ABI}; try `make shim`")
    return Check("ok", "shim", f"{SHIM}, ABI {abi} as the reader")


def _directory() -> Check:
    root = ring_root()
    place = root if root.exists() else root.parent
    try:
        found = place.stat()
    except OSError as error:
        return Check("bad", "rings", f"{place}: {(error.strerror or str(error)).lower()}; try GHT_DIR=DIRECTORY")
    if not os.access(place, os.W_OK | os.X_OK):
        return Check("bad", "rings", f"{place} may not be written; jobs run, unwatched; try GHT_DIR=DIRECTORY")
    if place == root and found.st_uid != os.geteuid():
        return Check("bad", "rings", f"{root} belongs to user {found.st_uid}; try GHT_DIR=DIRECTORY")
    if place == root and stat.S_IMODE(found.st_mode) & 0o077:
        return Check(
            "note", "rings", f"{root} can be read by others (mode {stat.S_IMODE(found.st_mode):o}); chmod 700 it"
        )
    return Check("ok", "rings", f"{root}" + ("" if place == root else " (made by the first job)"))


def _space() -> Check:
    free = space_bytes()
    text = f"{free / 1e6:.0f} MB free where rings are made; a rank takes 4.3 MB, or less where space is short"
    return Check("ok" if free >= LOW_SPACE else "note" if free > 1 << 20 else "bad", "space", text)


def _stale() -> Check:
    stale = [job for root in roots() for job in stale_jobs(root)]
    if not stale:
        return Check("ok", "left over", "no directory of a job that is gone")
    return Check("note", "left over", f"{len(stale)} directories of jobs that are gone; gh-doctor --clean removes them")


def job_checks(job: JobDir, watch_s: float = 2.0) -> list[Check]:
    """A job's ranks: which library was hooked, and do records flow (looked at for `watch_s` seconds)."""
    checks: list[Check] = []
    readers: list[RingReader] = []
    latest = {ring.rank: ring for ring in job.rings}
    for ring in latest.values():
        try:
            readers.append(RingReader(ring.path, start="now"))
        except GhError as error:
            checks.append(Check("bad", f"rank {ring.rank}", str(error)))
    before = [reader.live() for reader in readers]
    time.sleep(watch_s)
    for reader, first in zip(readers, before, strict=True):
        checks += _rank(reader, reader.live().written - first.written, watch_s)
        reader.close()
    world = max((reader.info.world_size for reader in readers), default=0)
    if len(latest) < world:
        checks.append(Check("note", "ranks", f"{len(latest)} of {world} ranks have a ring on this host"))
    return checks


def _rank(reader: RingReader, written: int, watch_s: float) -> list[Check]:
    """One rank's ring."""
    what, live, info = f"rank {reader.info.rank}", reader.live(), reader.info
    state = reader.state(max_age_s=0.0)
    checks = []
    paths = [path for path in (live.gloo_path, live.nccl_path) if path]
    hooked = f"{', '.join(live.backends) or 'no library'} hooked" + (f" in {', '.join(paths)}" if paths else "")
    if state != "running":
        return [Check("note", what, f"pid {info.pid} has {state}; {live.calls} calls, {hooked}")]
    if not live.tracking:
        checks.append(
            Check("note", what, f"pid {info.pid}: tracking is switched off for now; {live.calls} calls, {hooked}")
        )
    elif written:
        checks.append(Check("ok", what, f"pid {info.pid}: {written / watch_s:.0f} calls a second, {hooked}"))
    else:
        checks.append(
            Check("note", what, f"pid {info.pid}: no call in {watch_s:.0f} s ({live.calls} before), {hooked}")
        )
    if live.unmatched:
        text = f"{live.unmatched} calls on communicators that were not seen made; their identity is 0"
        checks.append(Check("note", what, text))
    if live.comm_lost:
        checks.append(Check("note", what, f"{live.comm_lost} communicators found no place in the table"))
    if live.dropped:
        checks.append(Check("note", what, f"{live.dropped} records given up by their writer, counted as lost"))
    return checks


def process_checks(pid: int) -> list[Check]:
    """A process that has no ring: why not."""
    from ghtools.job.static_nccl import static_nccl_objects

    what = f"pid {pid}"
    files = mapped_files(pid)
    if files is None:
        return [Check("bad", what, "its memory map may not be read (is it there, is it yours?)")]
    checks = []
    if not any(path.endswith(SHIM.name) for path in files):
        checks.append(Check("bad", what, "the shim is not loaded; start it by gh-run, or use gh-trace --attach"))
    static = static_nccl_objects(pid)
    for path in static:
        checks.append(
            Check("bad", what, f"{path} holds its own NCCL, statically linked: it cannot be hooked by preload")
        )
    libraries = [path for path in files if "libnccl.so" in path or "libtorch_cpu.so" in path]
    if len([path for path in libraries if "libnccl.so" in path]) > 1:
        checks.append(Check("note", what, f"several NCCL libraries are loaded: {', '.join(libraries)}"))
    if libraries and not checks:
        text = f"{', '.join(libraries)}: no communicator made yet, or opened by RTLD_DEEPBIND or dlsym, past the shim"
        checks.append(Check("note", what, text))
    if not libraries and not static:
        checks.append(Check("note", what, "no communication library is loaded"))
    return checks
