# SPDX-License-Identifier: Apache-2.0
"""Feeds bytes to an importer the way gh-import does, for the tests of importers."""

from __future__ import annotations

import io
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ghtools.source import importers
from ghtools.stream.framing import encode
from ghtools.stream.records import End, Head, Iters, Record

DATA = Path(os.environ.get("GHT_PUBLIC_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))


class Slow:
    """A source that gives a few bytes at a time and says that more is not there yet."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = io.BytesIO(data), size

    def read1(self, size: int, /) -> bytes:
        return self._data.read(min(size, self._size))

    def waiting(self, timeout_s: float) -> bool:
        return False


@dataclass
class Fed:
    """What came of it."""

    records: list[Record] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    reason: str = ""

    def of(self, kind: type[Record]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def iters(self, rank: int = -1) -> dict[str, np.ndarray]:
        """The columns of all iterations of a rank, with `every` and `incarnation` as columns, too."""
        batches = [record for record in self.of(Iters) if record.rank == rank]
        names = ("index", "t_ns", "dur_ns", "phase")
        made = {name: np.concatenate([getattr(b, name) for b in batches] or [np.empty(0, "<i8")]) for name in names}
        made["every"] = np.concatenate([np.full(len(b.index), b.extra.get("every", 1)) for b in batches] or [[]])
        made["incarnation"] = np.concatenate([np.full(len(b.index), b.incarnation) for b in batches] or [[]])
        return made


def feed(name: str, *datas: bytes | str, names: list[str] | None = None, size: int = 0, **options: Any) -> Fed:
    """Run importer `name` over files with these contents (`size` > 0: so many bytes at a time)."""
    files = []
    for n, data in enumerate(datas):
        raw = data.encode() if isinstance(data, str) else data
        source = Slow(raw, size) if size else io.BytesIO(raw)
        files.append(importers.File(names[n] if names else f"file{n}", source))
    fed = Fed()
    more = options.pop("more", {})
    for record in importers.read(name, files, importers.Options(more=more, **options), Head(), fed.said.append):
        encode(record)  # what cannot be written is a fault of the importer
        if isinstance(record, End):
            fed.reason = record.reason
        fed.records.append(record)
    return fed


def mutate(data: bytes, seed: int) -> bytes:
    """A few random bytes changed, removed, doubled, or the end cut off."""
    rng = random.Random(seed)
    made = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(5)
        if kind == 0 and made:
            made[at % len(made)] = rng.randrange(256)
        elif kind == 1:
            del made[at : at + rng.randint(1, 30)]
        elif kind == 2:
            made[at:at] = made[at : at + rng.randint(1, 60)]
        elif kind == 3:
            made[at:at] = rng.choice([b"\n", b"\x00", b"9" * 40, b"-", b"1e999", b"nan", b"{", b"]", b'"', b"\xff\xfe"])
        else:
            made = made[: max(at, 1)]
    return bytes(made)


def public(*parts: str) -> bytes:
    """A file of the public data; skips the test where it is not there."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no public data at {path} (GHT_PUBLIC_DATA)")
    return path.read_bytes()
