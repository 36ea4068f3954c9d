# SPDX-License-Identifier: Apache-2.0
"""Where rings live, which jobs are there, and clearing away what crashed jobs left.

A job's directory is `ROOT/JOB` (0700) with one `rank-R.PID.MADE.ring` per process that made a communicator
and one `control` page (0600). ROOT is `GHT_DIR`, else `/dev/shm/ghtools-UID`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from ghtools.stream.errors import GhError

SHM = Path("/dev/shm")
RING_NAME = re.compile(r"^rank-(-?\d{1,9})\.(\d{1,10})\.(\d{1,20})\.ring$")
CONTROL_NAME = "control"


@dataclass(frozen=True)
class RingFile:
    """A ring file by its name; nothing of its content has been read."""

    path: Path
    rank: int
    pid: int
    made_ns: int


@dataclass(frozen=True)
class JobDir:
    """A job's directory on this host."""

    job: str
    path: Path
    uid: int
    made_ns: int  # when its newest ring was made (0 = none yet), ns since the epoch
    rings: list[RingFile] = field(default_factory=list)  # by rank, then oldest first

    @property
    def ranks(self) -> list[int]:
        """Ranks that have a ring here, ascending."""
        return sorted({ring.rank for ring in self.rings})

    @property
    def alive(self) -> bool:
        """Whether any process of the job still runs."""
        from ghtools.job.ring import ring_state

        return any(ring_state(ring.path) == "running" for ring in reversed(self.rings))

    @property
    def age_s(self) -> float:
        """Seconds since its newest ring was made."""
        return max(0.0, time.time() - self.made_ns / 1e9)


def safe_job_id(job: str) -> str:
    """The directory name of a job id, as the shim makes it: letters, digits, `._-`, at most 63 bytes."""
    raw = job.encode("utf-8", "surrogateescape")[:63]
    name = "".join(chr(b) if chr(b).isascii() and (chr(b).isalnum() or chr(b) in "._-") else "_" for b in raw)
    if not name:
        return "job"
    return "_" + name[1:] if name[0] == "." else name


def ring_root() -> Path:
    """The directory of this user's jobs: `GHT_DIR`, else `/dev/shm/ghtools-UID`; it may not exist."""
    if given := os.environ.get("GHT_DIR"):
        return Path(given)
    return SHM / f"ghtools-{os.getuid()}"


def roots() -> list[Path]:
    """All directories to look for jobs in: one user's own, for root everybody's."""
    if os.environ.get("GHT_DIR") or os.geteuid() != 0:
        return [ring_root()]
    return sorted({ring_root(), *SHM.glob("ghtools-*")})


def job_path(job: str, root: Path | None = None) -> Path:
    """The directory of one job."""
    return (root or ring_root()) / safe_job_id(job)


def make_job_dir(job: str, root: Path | None = None) -> Path:
    """Make a job's directory (0700) before the job starts, so that a control page can be put there.

    Raises GhError if it cannot be made or is not this user's own.
    """
    path = job_path(job, root)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise GhError(f"cannot make {path}", str(error), "GHT_DIR=DIRECTORY with space you may write") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise GhError(f"cannot use {path}", "it is not a directory of this user's own", "another GHT_DIR")
    return path


def rings_in(path: Path) -> list[RingFile]:
    """The ring files of one job directory, by rank, then oldest first. Anything else there is ignored."""
    found = []
    try:
        entries = list(os.scandir(path))
    except OSError:
        return []
    for entry in entries:
        match = RING_NAME.match(entry.name)
        if match and entry.is_file(follow_symlinks=False):
            rank, pid, made_ns = (int(part) for part in match.groups())
            found.append(RingFile(Path(entry.path), rank, pid, made_ns))
    return sorted(found, key=lambda ring: (ring.rank, ring.made_ns))


def jobs(root: Path | None = None) -> list[JobDir]:
    """Jobs on this host that have a directory, newest first; those that still run before those that do not.

    A directory that cannot be read, a link, or a file in its place is left out.
    """
    found = []
    for base in [root] if root is not None else roots():
        try:
            entries = list(os.scandir(base))
        except OSError:
            continue
        for entry in entries:
            try:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                uid = entry.stat(follow_symlinks=False).st_uid
            except OSError:
                continue
            path = Path(entry.path)
            rings = rings_in(path)
            if rings or (path / CONTROL_NAME).is_file():
                newest = max((ring.made_ns for ring in rings), default=0)
                found.append(JobDir(entry.name, path, uid, newest, rings))
    return sorted(found, key=lambda job: (job.alive, job.made_ns), reverse=True)


def stale_jobs(root: Path | None = None, min_age_s: float = 3600.0) -> list[JobDir]:
    """Jobs none of whose processes runs any more and nothing of which was touched for `min_age_s` seconds."""
    now = time.time()
    stale = []
    for job in jobs(root):
        try:
            touched = max(p.lstat().st_mtime for p in [job.path, *(r.path for r in job.rings)])
        except OSError:
            continue
        if not job.alive and now - max(touched, job.made_ns / 1e9) >= min_age_s:
            stale.append(job)
    return stale


def remove_job(job: JobDir) -> None:
    """Remove a job's directory. Running ranks keep their mapping and go on unseen; OSError if it cannot be."""
    shutil.rmtree(job.path)


def clean_stale(root: Path | None = None, min_age_s: float = 3600.0) -> list[str]:
    """Remove the directories of stale jobs; the job ids that were removed."""
    removed = []
    for job in stale_jobs(root, min_age_s):
        try:
            remove_job(job)
        except OSError:
            continue
        removed.append(job.job)
    return removed


def space_bytes(root: Path | None = None) -> int:
    """Free bytes where rings are made; -1 if the place does not exist yet and neither does its parent."""
    place = root or ring_root()
    for candidate in (place, place.parent):
        try:
            found = os.statvfs(candidate)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return -1
