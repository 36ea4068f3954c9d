# SPDX-License-Identifier: Apache-2.0
"""An anchor named by hand: `op=all_reduce,bytes=4`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import GhError
from ghtools.stream.records import OP_CODE, Calls

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Marker:
    """What the call that begins an iteration looks like; None = anything."""

    op: int | None = None
    bytes: int | None = None
    peer: int | None = None
    comm: str | None = None  # a name, or an identity in hexadecimal (0x...) or decimal

    def matches(self, calls: Calls, names: dict[int, str]) -> NDArray[np.bool_]:
        """Which calls of a batch the marker names, shape (n,)."""
        hit = np.ones(len(calls.t_ns), bool)
        if self.op is not None:
            hit &= calls.op == self.op
        if self.bytes is not None:
            hit &= calls.bytes == self.bytes
        if self.peer is not None:
            hit &= calls.peer == self.peer
        if self.comm is not None:
            ids = {number for number, name in names.items() if name == self.comm}
            if self.comm.lower().startswith("0x") or self.comm.isdigit():
                ids.add(int(self.comm, 0))
            hit &= np.isin(calls.comm, np.array(sorted(ids), np.uint64))
        return hit


def parse(text: str) -> Marker:
    """Marker of `key=value,...`; keys op, bytes, peer, comm. GhError names what is wrong."""
    bad = f"--marker {text} is not understood"
    found: dict[str, str] = {}
    for word in text.split(","):
        key, equals, value = word.strip().partition("=")
        if not equals or key not in ("op", "bytes", "peer", "comm") or not value:
            raise GhError(bad, f"'{word}'", "op=all_reduce,bytes=4 (keys op, comm, bytes, peer)")
        found[key] = value
    if "op" in found and found["op"] not in OP_CODE:
        raise GhError(bad, f"no operation is called {found['op']}", ", ".join(OP_CODE))
    try:
        size = found.get("bytes")
        scale = _UNITS[size[-1].lower()] if size and not size[-1].isdigit() else 1
        return Marker(
            op=OP_CODE.get(found.get("op", ""), None),
            bytes=None if size is None else int(size if size[-1].isdigit() else size[:-1]) * scale,
            peer=int(found["peer"]) if "peer" in found else None,
            comm=found.get("comm"),
        )
    except (ValueError, KeyError):
        raise GhError(bad, "bytes and peer are numbers", "op=all_reduce,bytes=4") from None
