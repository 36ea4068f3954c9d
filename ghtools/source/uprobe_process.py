# SPDX-License-Identifier: Apache-2.0
"""What /proc says about a process to be traced: who it is, what it has mapped, what is in its memory."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

LAUNCHERS = (  # in the order of DESIGN section 4; the first whose rank is there is believed as a whole
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)
JOBS = ("GHT_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
RANKS_MAX = 1 << 24


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty if it may not be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in raw.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else -1


def rank_of(env: Mapping[str, str]) -> tuple[int, int, int]:
    """(rank, local rank, world size) as the launcher said; -1 where it did not."""
    for rank, local_rank, world_size in LAUNCHERS:
        if (number := _number(env.get(rank))) >= 0:
            return number, _number(env.get(local_rank)), _number(env.get(world_size))
    return -1, -1, -1


def job_of(env: Mapping[str, str]) -> str:
    """The job's id as the launcher said, empty if it did not (torchrun's default id is "none")."""
    return next((env[name] for name in JOBS if env.get(name) and env[name] != "none"), "")


def children(pid: int) -> list[int]:
    """Processes started by any thread of a process."""
    found = []
    for task in _tasks(pid):
        try:
            found += [int(part) for part in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except OSError:
            continue
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(f"/proc/{pid}/task")]
    except OSError:
        return []


@dataclass(frozen=True)
class Mapping_:
    """A library's code in a process."""

    path: str  # as the process sees it
    open_path: Path  # where we can open the very same file
    begin: int  # address of the code segment
    end: int
    offset: int  # of its begin in the file

    def address(self, offset: int) -> int:
        """Where the file's byte `offset` is in memory."""
        return self.begin + offset - self.offset


def code_of(pid: int, names: tuple[str, ...]) -> dict[str, Mapping_]:
    """Mapped code of libraries whose file name begins with one of `names`, by that name. OSError if not allowed."""
    found: dict[str, Mapping_] = {}
    for line in Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines():
        parts = line.split(None, 5)
        if len(parts) < 6 or "x" not in parts[1]:
            continue
        path = parts[5].removesuffix(" (deleted)")
        file = path.rpartition("/")[2]
        for name in names:
            if name not in found and re.match(re.escape(name) + r"(\.|$)", file):
                begin, end = (int(part, 16) for part in parts[0].split("-"))
                # The link names the mapped file itself, also when its path was replaced or is of a container.
                link = Path(f"/proc/{pid}/map_files/{parts[0]}")
                found[name] = Mapping_(
                    path,
                    link if os.access(link, os.R_OK) else Path(f"/proc/{pid}/root{path}"),
                    begin,
                    end,
                    int(parts[2], 16),
                )
    return found


def torch_version(pid: int, library: str) -> tuple[int, int]:
    """Version of the torch that a libtorch_cpu.so belongs to, (0, 0) = not known."""
    path = Path(f"/proc/{pid}/root{library}").parent.parent / "version.py"
    try:
        match = re.search(r"^__version__ = ['\"](\d+)\.(\d+)", path.read_text(), re.M)
    except (OSError, UnicodeDecodeError):
        return 0, 0
    return (int(match[1]), int(match[2])) if match else (0, 0)


def peek(pid: int, address: int, size: int) -> bytes:
    """`size` bytes of a process's memory; empty if they cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), size, address)
    except (OSError, OverflowError, ValueError):
        return b""


@dataclass(frozen=True)
class Group:
    """What a Gloo process group says of itself."""

    rank: int
    size: int
    uid: str  # the same on all its ranks
    name: str  # for people


def _string(pid: int, at: int, words: bytes) -> str | None:
    """A std::string of libstdc++ at address `at` whose 32 bytes are `words`; None if it is none."""
    data, length = struct.unpack_from("<QQ", words)
    if length > 4096:
        return None
    raw = words[16 : 16 + length] if data == at + 16 and length < 16 else peek(pid, data, length)
    if len(raw) != length or data == 0:
        return None
    text = raw.decode("ascii", "replace")
    return text if text.isprintable() else None


def gloo_group(pid: int, address: int) -> Group | None:
    """Read a ProcessGroupGloo: c10d::Backend has int rank, int size, a debug level and two strings in a row.

    Where that row begins depends on the size of the reference counts (torch before and since 2.10), so the
    places are tried and one is taken if all of it makes sense; else None.
    """
    raw = peek(pid, address, 24 + 16 + 64)
    for at in (16, 24):
        if len(raw) < at + 80:
            return None
        rank, size, debug = struct.unpack_from("<iii", raw, at)
        uid = _string(pid, address + at + 16, raw[at + 16 : at + 48])
        desc = _string(pid, address + at + 48, raw[at + 48 : at + 80])
        if 0 <= rank < size <= RANKS_MAX and 0 <= debug <= 2 and uid is not None and desc is not None:
            return Group(rank, size, uid, desc if desc not in ("", "undefined") else uid)
    return None


def identity(*parts: object) -> int:
    """64 bits, not 0, that the same parts always give."""
    digest = blake2b("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
