# SPDX-License-Identifier: Apache-2.0
"""A command's state in a file: plain values and blobs, replaced atomically, checked before it is believed."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from .errors import GhError, InputError, MissingError

MAX_BYTES = 1 << 32


def save(path: Path, magic: str, meta: dict[str, Any], blobs: list[bytes]) -> None:
    """Write beside `path`, then rename over it; only the owner may read it."""
    body = b"".join(blobs)
    head = {"magic": magic, "meta": meta, "sizes": [len(blob) for blob in blobs], "crc": zlib.crc32(body)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(head).encode() + b"\n")
            file.write(body)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise MissingError(f"cannot write the state {path}", (error.strerror or str(error)).lower()) from None


def load(path: Path, magic: str) -> tuple[dict[str, Any], list[bytes]] | None:
    """What `save` wrote, None if there is no such file; InputError says what is wrong with it."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"cannot use the state {path}", "it is too large", "removing it")
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GhError(f"cannot read the state {path}", (error.strerror or str(error)).lower()) from None
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
        if not isinstance(head, dict) or head.get("magic") != magic:
            raise ValueError(f"it is not a file of {magic}")
        meta, sizes = head["meta"], head["sizes"]
        if not isinstance(meta, dict) or not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError("its header is damaged")
        if sum(sizes) != len(body) or zlib.crc32(body) != head["crc"]:
            raise ValueError("it was cut or changed")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"cannot use the state {path}", str(error), "removing it") from None
    blobs, at = [], 0
    for size in sizes:
        blobs.append(body[at : at + size])
        at += size
    return meta, blobs
