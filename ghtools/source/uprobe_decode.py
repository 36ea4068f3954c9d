# SPDX-License-Identifier: Apache-2.0
"""From what a probe copied to what a call was: pure functions on numpy arrays of uprobe_program.RECORD."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.records import DTYPES, FLAG_BYTES_UNKNOWN, FLAG_GROUPED, OP_CODE, Array, Calls

from .uprobe_program import DUMP_AT, DUMP_WORDS, MORE, RECORD
from .uprobe_table import NCCL_TYPES, SCALARS, SILENT, TAIL_CALLS, Probe

BUSY = 1 << 31
INLINE = 5  # c10::impl::SizesAndStrides keeps this many sizes and strides in place
NUMEL_MAX = 1 << 48


def take(ring: NDArray[np.uint8], consumed: int, produced: int) -> tuple[Array, int]:
    """Finished records between two positions of a ring (bytes, growing for ever), and the position after them.

    Stops at the first record that is still being written. `ring` is the data area mapped twice in a row.
    """
    size = len(ring) // 2
    begin = consumed % size
    raw = ring[begin : begin + (produced - consumed)].view(RECORD)
    busy = np.flatnonzero(raw["header"] & np.uint64(BUSY))
    count = int(busy[0]) if len(busy) else len(raw)
    return raw[:count].copy(), consumed + count * RECORD.itemsize


class TensorLayout:
    """Where a TensorImpl has its numel_ and, after it, its type: found by looking at live tensors.

    The offsets are private to each torch version. But a contiguous tensor proves its own layout: number of
    dimensions, sizes in place, strides that follow from the sizes, storage offset, and numel, the product of
    the sizes, stand in a row. The place that fits tensors of at least 8 elements, more than twice as often as
    any other, is it.
    """

    def __init__(self) -> None:
        self._votes = np.zeros(DUMP_WORDS, np.int64)
        self.word = -1  # index of numel_ in the dump, -1 = not known yet

    @property
    def numel_at(self) -> int:
        """Offset of numel_ in a TensorImpl in bytes, 0 = not known yet."""
        return DUMP_AT + 8 * self.word if self.word >= 0 else 0

    def learn(self, dumps: Array) -> None:
        """Look at dumps, shape (n, DUMP_WORDS), of tensors."""
        if self.word >= 0 or not len(dumps):
            return
        for dump in np.unique(dumps[-64:], axis=0).astype(np.int64):
            for at in range(DUMP_WORDS - 2 * INLINE - 3):
                if _fits(dump[at : at + 2 * INLINE + 4]):
                    self._votes[at + 2 * INLINE + 2] += 1
        second, first = np.sort(self._votes)[-2:]
        if first > 2 * second:
            self.word = int(np.argmax(self._votes))


def _fits(words: NDArray[np.int64]) -> bool:
    dims = int(words[0])
    if not 1 <= dims <= INLINE:
        return False
    sizes = [int(x) for x in words[1 : 1 + dims]]
    numel, expected = 1, []
    for size in reversed(sizes):
        expected.append(numel)
        if not 1 <= size < NUMEL_MAX:
            return False
        numel *= size
    strides = [int(x) for x in words[1 + INLINE : 1 + INLINE + dims]]
    return (
        numel >= 8
        and numel == int(words[2 * INLINE + 2])
        # The stride of a dimension of one element may be anything.
        and all(s == e or n == 1 for s, e, n in zip(strides, reversed(expected), sizes, strict=True))
        and 0 <= int(words[2 * INLINE + 1]) < NUMEL_MAX
        and int(words[2 * INLINE + 3]) & 0xFFFF in SCALARS
    )


def _lookup(types: dict[int, tuple[str, int]], top: int) -> tuple[Array, Array]:
    """A map of element types as two arrays: our code, and bytes (0 = no such type)."""
    code, size = np.zeros(top, np.uint8), np.zeros(top, np.int64)
    for number, (name, bytes_) in types.items():
        code[number], size[number] = DTYPES.index(name), bytes_
    return code, size


_SCALAR_CODE, _SCALAR_BYTES = _lookup(SCALARS, 256)
_NCCL_CODE, _NCCL_BYTES = _lookup(NCCL_TYPES, 256)


def _sizes(numel: Array, kind: Array) -> tuple[Array, Array, Array]:
    """(bytes, element type, good) of tensors from their numel_ and type words."""
    kind = np.minimum(kind & np.uint64(0xFFFF), np.uint64(255)).astype(np.int64)
    each = _SCALAR_BYTES[kind]
    good = (each > 0) & (numel < NUMEL_MAX)
    return np.where(good, numel.astype(np.int64) * each, 0), _SCALAR_CODE[kind], good


@dataclass
class Decoder:
    """Turns the records of one target into calls.

    `places` are the address ranges [begin, end) of the probed functions in this process: a call that comes
    from inside one of them is part of that call, not one of its own.
    """

    probes: tuple[Probe, ...]
    places: list[tuple[int, int]] = field(default_factory=list)
    layout: TensorLayout = field(default_factory=TensorLayout)
    calls: int = 0  # so far, those that were lost included
    _last: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # thread -> probe, sp, caller
    _depth: dict[int, int] = field(default_factory=dict)  # thread -> open groups

    def decode(self, records: Array, comms: Array, rank: int, incarnation: int, lost: int) -> Calls:
        """Calls of records, oldest first; `comms` is the identity of each record's communicator."""
        self.layout.learn(records["dump"][records["begin"] < records["end"]])
        keep, grouped = self._own(records)
        r, comms = records[keep], comms[keep]
        n = len(r)
        number = r["probe"].astype(np.int64)
        op = np.array([OP_CODE.get(p.op, 0) for p in self.probes], np.uint8)[number]
        flags = np.array([p.flags for p in self.probes], np.uint16)[number]
        flags = flags | np.where(grouped[keep], FLAG_GROUPED, 0).astype(np.uint16)
        size, dtype, known = np.zeros(n, np.int64), np.zeros(n, np.uint8), np.ones(n, bool)
        peer = np.full(n, -1, np.int32)
        for i in np.unique(number):
            rows = np.flatnonzero(number == i)
            size[rows], dtype[rows], known[rows] = self._size(self.probes[i], r[rows])
            peer[rows] = _peer(self.probes[i], r[rows])
        size[~known] = 0
        flags = flags | np.where(known, 0, FLAG_BYTES_UNKNOWN).astype(np.uint16)
        first = self.calls + lost
        self.calls = first + n
        return Calls(
            rank=rank,
            incarnation=incarnation,
            lost=lost,
            t_ns=r["t"].astype(np.int64),
            op=op,
            dtype=dtype,
            flags=flags,
            peer=peer,
            comm=comms.astype(np.uint64),
            bytes=size,
            seq=np.arange(first, first + n, dtype=np.int64),
            dur_ns=np.full(n, -1, np.int64),
        )

    def _own(self, records: Array) -> tuple[Array, Array]:
        """Which records are calls of their own, and which are inside a group."""
        keep, grouped = np.ones(len(records), bool), np.zeros(len(records), bool)
        caller = records["caller"].astype(np.uint64)
        for begin, end in self.places:
            keep &= ~((caller >= np.uint64(begin)) & (caller < np.uint64(end)))
        columns = (records[name].tolist() for name in ("thread", "probe", "sp", "caller"))
        for row, (thread, number, sp, back) in enumerate(zip(*columns, strict=True)):
            probe = self.probes[number]
            if probe.op in SILENT:
                keep[row] = False
                if probe.op != "made":
                    step = 1 if probe.op == "group_start" else -1
                    self._depth[thread] = max(self._depth.get(thread, 0) + step, 0)
            elif keep[row]:
                before = self._last.get(thread)
                if before is not None and before[1:] == (sp, back) and self._jumps(before[0], number):
                    keep[row] = False
                grouped[row] = self._depth.get(thread, 0) > 0
                self._last[thread] = (number, sp, back)
        if len(self._last) > 4096:  # threads come and go; what is forgotten only matters inside a call
            self._last.clear()
            self._depth = {thread: depth for thread, depth in self._depth.items() if depth}
        return keep, grouped

    def _jumps(self, outer: int, inner: int) -> bool:
        a, b = self.probes[outer].symbol, self.probes[inner].symbol
        return any(first in a and second in b for first, second in TAIL_CALLS)

    def _size(self, probe: Probe, r: Array) -> tuple[Array, Array, Array]:
        """(bytes, element type, whether they are known)."""
        n = len(r)
        nothing = np.zeros(n, np.int64), np.zeros(n, np.uint8)
        if probe.count >= 0:
            kind = np.minimum(r["args"][:, probe.count + 1] & np.uint64(0xFFFFFFFF), np.uint64(255)).astype(np.int64)
            count = r["args"][:, probe.count]
            # NCCL's all-to-all is given the part of one peer, and how many there are is not known here.
            good = (_NCCL_BYTES[kind] > 0) & (count < NUMEL_MAX) & (probe.op != "all_to_all")
            return np.where(good, count.astype(np.int64) * _NCCL_BYTES[kind], 0), _NCCL_CODE[kind], good
        if probe.vector < 0 and probe.tensor < 0:
            return *nothing, np.full(n, "sparse" not in probe.symbol)
        tensors = (r["end"] - r["begin"]).astype(np.int64) // 8
        if self.layout.word < 0:
            return *nothing, tensors == 0
        word = self.layout.word
        size, dtype, good = _sizes(r["dump"][:, word], r["dump"][:, word + 1])
        size, dtype, good = np.where(tensors > 0, size, 0), np.where(tensors > 0, dtype, 0), good | (tensors == 0)
        for i in range(MORE):
            more, _, fine = _sizes(r["more"][:, i, 0], r["more"][:, i, 1])
            there = tensors > i + 1
            size, good = size + np.where(there, more, 0), good & (fine | ~there)
        return size, dtype.astype(np.uint8), good & (tensors >= 0) & (tensors <= MORE + 1)


def _peer(probe: Probe, r: Array) -> Array:
    """Peer or root of calls of one function, -1 = none or not known."""
    if probe.peer >= 0:
        return r["args"][:, probe.peer].astype(np.uint32).astype(np.int32)
    if probe.op == "wait_signal":
        # ncclWaitSignalDesc_t begins with two ints, a count and the peer; argument 0 says how many there are.
        one = (r["args"][:, 0] & np.uint64(0xFFFFFFFF)) == 1
        return np.where(one, r["options"][:, 0] >> 32, -1).astype(np.int32)
    if probe.root_at >= 0:
        root, beside = r["options"][:, 0], r["options"][:, 1]
        # A reduction's root is at a place that depends on torch's version: believed if what is beside it fits.
        good = (root >= 0) & (root < 1 << 31) & ((beside == 0) | (probe.op != "reduce"))
        return np.where(good, root, -1).astype(np.int32)
    return np.full(len(r), -1, np.int32)
