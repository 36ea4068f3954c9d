# SPDX-License-Identifier: Apache-2.0
"""A history in a file: JSON lines that are checked when they are read, replaced whole when they are written."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ghtools.stream.errors import GhError, InputError, MissingError

KEEP = 32  # results of each thing
MAX_BYTES = 64 << 20
MAX_LINE = 1 << 14
MAX_TEXT = 256

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")


def load(path: Path, version: int, decode: Callable[[dict[str, Any]], tuple[K, P]]) -> dict[K, P]:
    """The history in a file by key; empty if there is no file. InputError names the line that is no good.

    `decode` raises ValueError, KeyError or TypeError for a map that makes no sense.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hang us
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise GhError(f"cannot read the history {path}", (error.strerror or str(error)).lower()) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        os.close(fd)
        why = "it is too large" if stat.S_ISREG(status.st_mode) else "it is no file"
        raise InputError(f"cannot use the history {path}", why, "another file, or removing it")
    history = {}
    with os.fdopen(fd, "rb") as file:
        for number, line in enumerate(file.read(MAX_BYTES).splitlines(), 1):
            try:
                key, past = decode(_map_of(line, version))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                why = f"line {number}: {_say(error)}"
                raise InputError(f"cannot use the history {path}", why, "removing that line") from None
            history[key] = past
    return history


def _say(error: Exception) -> str:
    text = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:120])


def _map_of(line: bytes, version: int) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise ValueError("it is too long")
    item = json.loads(line)
    if not isinstance(item, dict) or item.get("v") != version:
        raise ValueError(f"it is no version {version} line of a history")
    return item


def text(item: dict[str, Any], name: str) -> str:
    """A short text of a line. ValueError, KeyError."""
    value = item[name]
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{name} is no short text")
    return value


def count(item: dict[str, Any], name: str) -> int:
    """A whole number that is not negative. ValueError, KeyError."""
    value = item[name]
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is no count")
    return value


def numbers(item: dict[str, Any], name: str) -> tuple[float, ...]:
    """Finite numbers, `KEEP` at most. ValueError, KeyError."""
    values = item[name]
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise ValueError(f"{name} is no list of numbers")
    try:
        made = tuple(float(value) for value in values)
    except OverflowError:
        raise ValueError(f"{name} holds a number that is too large") from None
    if not all(map(math.isfinite, made)):
        raise ValueError(f"{name} holds what is no number")
    if len(made) > KEEP:
        raise ValueError(f"{name} holds more than is kept")
    return made


def save(path: Path, version: int, lines: Iterable[dict[str, Any]]) -> None:
    """Write beside `path`, then rename over it; only the owner may read it. MissingError if that cannot be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write("".join(json.dumps({"v": version, **line}) + "\n" for line in lines))
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise MissingError(f"cannot write the history {path}", (error.strerror or str(error)).lower()) from None
