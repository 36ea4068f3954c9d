# SPDX-License-Identifier: Apache-2.0
"""A detector's whole state as plain values and blobs, and back. What is read back is checked, not trusted."""

from __future__ import annotations

import ctypes as c
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from ghtools.stream.errors import InputError
from ghtools.stream.records import Change

from .consensus import Event, Seen
from .detector import Detector
from .memory import Episode, Memory, Pending
from .series import KEPT, State
from .watch import Watch

MAGIC = "ghtools-bocd-state-2"
SAMPLES = ("base", "anchor", "prior")

T = TypeVar("T")


def dump(detector: Detector) -> tuple[dict[str, Any], list[bytes]]:
    """All of a detector's state: JSON-able values, and one blob a rank."""
    con = detector.consensus
    watches = list(detector.watches.values())
    meta = {
        "settings": _settings(detector),
        "watches": [{"rank": w.rank, **_memory(w.memory)} for w in watches],
        "consensus": {
            "seen": [[rank, asdict(s)] for rank, s in con.seen.items()],
            "listed": [[rank, state] for rank, state in con.listed.items()],
            "events": [_event(e) for e in con.events],
            "alone": [_event(e) for e in con.alone],
            "episodes": con.episodes,
            "newest_ns": con.newest_ns,
            "records": con.records,
            "counted": con.counted,
            "known": con.known,
            "left": sorted(con.left),
        },
    }
    return meta, [_blob(w) for w in watches]


def restore(detector: Detector, meta: dict[str, Any], blobs: list[bytes]) -> None:
    """Put the state into a new detector of the same settings; InputError says why it cannot be."""
    try:
        if meta["settings"] != _settings(detector):
            raise InputError("cannot use the state", "it was made with other options", "the same ones, or removing it")
        if len(meta["watches"]) != len(blobs):
            raise ValueError("ranks and their states differ in number")
        for item, blob in zip(meta["watches"], blobs, strict=True):
            rank = _whole(item.pop("rank"))
            memory = _plain(Memory, item)
            hot, samples = blob[: c.sizeof(State)], np.frombuffer(blob[c.sizeof(State) :], "<f4")
            if not np.isfinite(samples).all() or sum(map(_whole, item["sizes"])) != len(samples):
                raise ValueError("the samples of a rank are damaged")
            for name, size in zip(SAMPLES, item["sizes"], strict=True):
                if not 0 <= size <= KEPT:
                    raise ValueError(f"a sample of {size}")
                setattr(memory, name, samples[:size].copy())
                samples = samples[size:]
            memory.pending = _plain(Pending, item["pending"]) if item["pending"] else None
            memory.episode = _plain(Episode, item["episode"]) if item["episode"] else None
            detector.watches[rank] = Watch(rank, detector.model, detector.settings, detector.explain, hot, memory)
        con, saved = detector.consensus, meta["consensus"]
        con.seen = {_whole(rank): _plain(Seen, item) for rank, item in saved["seen"]}
        con.listed = {_whole(rank): str(state) for rank, state in saved["listed"]}
        con.events = [_to_event(item) for item in saved["events"]]
        con.alone = [_to_event(item) for item in saved["alone"]]
        con.episodes, con.newest_ns = _whole(saved["episodes"]), _whole(saved["newest_ns"])
        con.records, con.counted, con.known = (_whole(saved[name]) for name in ("records", "counted", "known"))
        con.left = {_whole(rank) for rank in saved["left"]}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError("cannot use the state", f"it is damaged ({error})", "removing it") from None


def _memory(memory: Memory) -> dict[str, Any]:
    """The plain values; the samples go with the hot state's bytes, as there may be thousands of ranks."""
    item: dict[str, Any] = {f.name: getattr(memory, f.name) for f in fields(memory) if f.name not in SAMPLES}
    for name in ("pending", "episode"):
        item[name] = asdict(item[name]) if item[name] is not None else None
    return {**item, "sizes": [len(getattr(memory, name)) for name in SAMPLES]}


def _blob(watch: Watch) -> bytes:
    return watch.series.to_bytes() + b"".join(getattr(watch.memory, name).tobytes() for name in SAMPLES)


def _settings(detector: Detector) -> dict[str, Any]:
    s, p = detector.settings, detector.model.prior
    return {"min_change": s.min_change, "schedule": list(s.schedule), "hazard": p.hazard}


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} is not a whole number")
    return value


def _plain(cls: type[T], item: Any) -> T:
    """A dataclass whose fields are numbers, words and flags (others are left at their defaults)."""
    values = {}
    for f in fields(cls):  # type: ignore[arg-type]
        want = {"int": (int,), "float": (float, int), "str": (str,), "bool": (bool,)}.get(str(f.type))
        if want is None:
            continue
        value = item[f.name]
        if not isinstance(value, want) or (isinstance(value, bool) and bool not in want):
            raise ValueError(f"{f.name} is {type(value).__name__}")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{f.name} is no number")
        values[f.name] = value
    return cls(**values)


def _event(event: Event) -> dict[str, Any]:
    item = asdict(event)
    for name in ("onset", "doubt", "relief", "update"):
        item[name] = [asdict(change) for change in getattr(event, name).values()]
    return item


def _to_event(item: Any) -> Event:
    event = _plain(Event, item)
    for name in ("onset", "doubt", "relief", "update"):
        for saved in item[name]:
            change = _plain(Change, saved)
            change.ranks = [_whole(rank) for rank in saved["ranks"]]
            getattr(event, name)[change.rank] = change
    return event
