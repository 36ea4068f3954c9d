# SPDX-License-Identifier: Apache-2.0
"""Calls as they are found, 44 bytes each, in any order; made into records sorted by time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.records import Calls

BATCH = 1 << 16
MAX_NS = 1 << 62


class CallTable:
    """Columns of calls. `group` is a number of the reader's own, made a communicator by `records`."""

    def __init__(self) -> None:
        self.t_ns, self.dur_ns, self.bytes, self.seq = (array("q") for _ in range(4))
        self.op, self.dtype = array("B"), array("B")
        self.flags = array("H")
        self.peer, self.group = array("i"), array("i")

    def __len__(self) -> int:
        return len(self.t_ns)

    def add(
        self, t_ns: int, dur_ns: int, op: int, dtype: int, size: int, *,
        flags: int = 0, peer: int = -1, group: int = -1, seq: int = -1,
    ) -> None:  # fmt: skip
        """One call; all numbers must fit their column."""
        self.t_ns.append(t_ns)
        self.dur_ns.append(dur_ns)
        self.bytes.append(size)
        self.seq.append(seq)
        self.op.append(op)
        self.dtype.append(dtype)
        self.flags.append(flags)
        self.peer.append(peer)
        self.group.append(group)

    def records(self, rank: int, comms: NDArray[np.uint64], shift_ns: int = 0) -> Iterator[Calls]:
        """Batches, oldest call first; equal times in the order they were added.

        `comms[group]` is the communicator of a row; group -1 takes the last of `comms`.
        """
        t_ns = np.array(self.t_ns, np.int64)
        order = np.argsort(t_ns, kind="stable")
        group, peer = np.array(self.group, np.int32), np.array(self.peer, np.int32)
        op, dtype, flags = np.array(self.op, np.uint8), np.array(self.dtype, np.uint8), np.array(self.flags, np.uint16)
        size, seq, dur_ns = (np.array(column, np.int64) for column in (self.bytes, self.seq, self.dur_ns))
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            yield Calls(
                rank=rank, t_ns=t_ns[rows] + shift_ns, op=op[rows], dtype=dtype[rows], flags=flags[rows],
                peer=peer[rows], comm=comms[group[rows]], bytes=size[rows], seq=seq[rows], dur_ns=dur_ns[rows],
            )  # fmt: skip
