# SPDX-License-Identifier: Apache-2.0
"""The history of devices in a file: one JSON line a device and test, checked when read, replaced whole when written."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from ghtools.stream.errors import GhError, InputError, MissingError

from .measured import Key, Measured, Past, key_of

VERSION = 1
KEEP = 32  # results of each device and test
MAX_BYTES = 64 << 20
MAX_LINE = 1 << 14
MAX_TEXT = 256
_TEXT = ("host", "device", "kind", "test", "dtype")
_COUNT = ("size", "threads", "together")
assert set(_TEXT + _COUNT) == set(Key._fields)
assert {f.name for f in fields(Past)} == {"rates", "shares", "t_ns"}


def load(path: Path) -> dict[Key, Past]:
    """The history in a file; empty if there is no file. InputError names the line that is no good."""
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
                key, past = _decode(line)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                why = f"line {number}: {_say(error)}"
                raise InputError(f"cannot use the history {path}", why, "removing that line") from None
            history[key] = past
    return history


def _say(error: Exception) -> str:
    text = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:120])


def _decode(line: bytes) -> tuple[Key, Past]:
    if len(line) > MAX_LINE:
        raise ValueError("it is too long")
    item = json.loads(line)
    if not isinstance(item, dict) or item.get("v") != VERSION:
        raise ValueError(f"it is no version {VERSION} line of a history")
    for name in _TEXT:
        if not isinstance(item[name], str) or len(item[name]) > MAX_TEXT:
            raise ValueError(f"{name} is no short text")
    for name in (*_COUNT, "t_ns"):
        if type(item[name]) is not int or not 0 <= item[name] < 1 << 63:
            raise ValueError(f"{name} is no count")
    rates, shares = _numbers(item, "rates"), _numbers(item, "shares")
    if len(rates) != len(shares) or not 0 < len(rates) <= KEEP or min(rates) <= 0:
        raise ValueError("its rates and shares make no sense")
    key = Key(*(item[name] for name in Key._fields))
    return key, Past(rates, shares, item["t_ns"])


def _numbers(item: dict[str, Any], name: str) -> tuple[float, ...]:
    values = item[name]
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise ValueError(f"{name} is no list of numbers")
    try:
        numbers = tuple(float(value) for value in values)
    except OverflowError:
        raise ValueError(f"{name} holds a number that is too large") from None
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} holds what is no number")
    return numbers


def updated(history: Mapping[Key, Past], measured: Iterable[Measured]) -> dict[Key, Past]:
    """The history with one more result for each device and test: the median of the ranks that tested it."""
    groups: dict[Key, list[Measured]] = {}
    for one in measured:
        if one.status == "ok" and one.rate > 0:
            groups.setdefault(key_of(one), []).append(one)
    new = dict(history)
    for key, ones in groups.items():
        past = history.get(key, Past((), ()))
        new[key] = Past(
            (*past.rates, median(one.rate for one in ones))[-KEEP:],
            (*past.shares, median(one.share("cpu_ns") for one in ones))[-KEEP:],
            max(one.repeats[0].t_ns for one in ones),
        )
    return new


def save(path: Path, history: Mapping[Key, Past]) -> None:
    """Write beside `path`, then rename over it; only the owner may read it. MissingError if that cannot be."""
    lines = [
        json.dumps({"v": VERSION, **key._asdict(), "t_ns": past.t_ns, "rates": past.rates, "shares": past.shares})
        for key, past in sorted(history.items())
    ]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write("".join(line + "\n" for line in lines))
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise MissingError(f"cannot write the history {path}", (error.strerror or str(error)).lower()) from None
