# SPDX-License-Identifier: Apache-2.0
"""The history of devices in a file: one JSON line a device and test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from . import history_file
from .history_file import KEEP
from .measured import Key, Measured, Past, key_of

VERSION = 1
_TEXT = ("host", "device", "kind", "test", "dtype")
_COUNT = ("size", "threads", "together")
assert set(_TEXT + _COUNT) == set(Key._fields)
assert {f.name for f in fields(Past)} == {"rates", "shares", "t_ns"}


def load(path: Path) -> dict[Key, Past]:
    """The history in a file; empty if there is no file. InputError names the line that is no good."""
    return history_file.load(path, VERSION, _decode)


def _decode(item: dict[str, Any]) -> tuple[Key, Past]:
    parts: dict[str, Any] = {name: history_file.text(item, name) for name in _TEXT}
    parts |= {name: history_file.count(item, name) for name in _COUNT}
    rates, shares = history_file.numbers(item, "rates"), history_file.numbers(item, "shares")
    if len(rates) != len(shares) or not rates or min(rates) <= 0:
        raise ValueError("its rates and shares make no sense")
    return Key(**parts), Past(rates, shares, history_file.count(item, "t_ns"))


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
    """Replace the file; only the owner may read it. MissingError if that cannot be."""
    lines = (
        {**key._asdict(), "t_ns": past.t_ns, "rates": past.rates, "shares": past.shares}
        for key, past in sorted(history.items())
    )
    history_file.save(path, VERSION, lines)
