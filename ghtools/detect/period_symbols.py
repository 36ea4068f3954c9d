# SPDX-License-Identifier: Apache-2.0
"""Calls as symbols: a 64-bit hash of (op, dtype, communicator, peer, bytes), summable over a piece.

The sum of the hashes of a piece of the stream (modulo 2^64) names its multiset of calls: two pieces with
the same calls in a different order (overlapped buckets, calls from several threads) have the same sum.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.job.native import lib
from ghtools.stream.records import FLAG_BYTES_UNKNOWN, FLAG_EXEC, FLAG_PAUSED, OP_CODE, OPS, Calls

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
_K1, _K2, _K3 = (np.uint64(k) for k in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_S31, _S29 = np.uint64(31), np.uint64(29)

lib.gh_period_symbols.argtypes = [ctypes.c_size_t, *[ctypes.c_void_p] * 7]
lib.gh_period_symbols.restype = None

REDUCING = frozenset(OP_CODE[o] for o in ("all_reduce", "reduce_scatter", "reduce"))
SCALAR_BYTES = 128  # at most 16 numbers: a loss, a norm, a flag
UNKNOWN_BYTES = 1 << 50  # stands for a size that could not be read: taken for large
VARIED_SHARE = 0.3  # a family with more of its calls in sizes seen once or twice has no size


def _mix(x: U64) -> U64:
    """splitmix64's finaliser, in place."""
    x ^= x >> _S29
    x *= _K2
    x ^= x >> _S31
    x *= _K3
    x ^= x >> _S29
    return x


@dataclass
class Columns:
    """Calls of one rank without execution records; all arrays have the same length."""

    t: I64
    seq: I64
    family: U64  # hash of (op, dtype, communicator, peer)
    h: U64  # hash of family and bytes
    op: NDArray[np.uint8]
    comm: U64
    bytes: I64
    broken: NDArray[np.bool_]  # calls were lost just before this one, or the rank was held there

    def __len__(self) -> int:
        return len(self.t)

    def cut(self, lo: int, hi: int | None = None) -> Columns:
        """Rows lo to hi, as views."""
        return Columns(*(getattr(self, f)[lo:hi] for f in self.__dataclass_fields__))

    def copy(self) -> Columns:
        """The same rows in arrays of their own, so that the batch they came from can go."""
        return Columns(*(getattr(self, f).copy() for f in self.__dataclass_fields__))


def join(parts: list[Columns]) -> Columns:
    """Rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return Columns(*(np.concatenate([getattr(p, f) for p in parts]) for f in Columns.__dataclass_fields__))


def empty() -> Columns:
    """No rows."""
    kinds = ("i8", "i8", "u8", "u8", "u1", "u8", "i8", "?")
    return Columns(*(np.empty(0, k) for k in kinds))


def executed(calls: Calls) -> NDArray[np.bool_]:
    """Which records of a batch are executions, not calls."""
    return np.asarray((calls.flags & np.uint16(FLAG_EXEC)) != 0)


def columns_of(
    calls: Calls, last: tuple[int, int], sizeless: U64, executions: bool = False
) -> tuple[Columns, tuple[int, int]]:
    """Symbols of a batch, and (seq of its last call, execution records after it) for the next one.

    `last` is what this returned for the batch before, (-1, 0) at first. Sizes of families in `sizeless` are
    left out of the hash. A jump of seq, `lost` of the batch, or a pause marks the call after it as broken; execution
    records are no calls, and may or may not have taken numbers of their own; with `executions` they stand for them.
    """
    run = executed(calls) & (not executions)
    where: Any = slice(None)
    seq = np.asarray(calls.seq, np.int64)
    if run.any():
        where = np.flatnonzero(~run)
        seq = seq[where]
        between = np.diff(where, prepend=-1) - 1
        behind = len(calls.t_ns) - 1 - int(where[-1]) if len(where) else len(calls.t_ns)
    else:
        between, behind = np.zeros(1, np.int64), 0
    broken = np.zeros(len(seq), bool)
    if len(seq):
        np.greater(seq[1:] - seq[:-1], 1 + (between[1:] if run.any() else 0), out=broken[1:])
        broken[0] = calls.lost > 0 or (last[0] >= 0 and int(seq[0]) > last[0] + last[1] + int(between[0]) + 1)
        last = max(last[0], int(seq[-1])), behind
    else:
        last = last[0], last[1] + behind
    broken |= (calls.flags[where] & np.uint16(FLAG_PAUSED)) != 0
    op, comm, size = calls.op[where], calls.comm[where], calls.bytes[where]
    unknown = (calls.flags[where] & np.uint16(FLAG_BYTES_UNKNOWN)) != 0
    if unknown.any():
        size = np.where(unknown, UNKNOWN_BYTES, size)
    family, h = symbols(op, calls.dtype[where], calls.peer[where], comm, size)
    c = Columns(np.asarray(calls.t_ns, np.int64)[where], seq, family, h, op, comm, size, broken)
    if len(sizeless):
        c = resize(c, sizeless)
    return c, last


def symbols(op: Any, dtype: Any, peer: Any, comm: Any, size: Any) -> tuple[U64, U64]:
    """(hash of op, dtype, communicator and peer; hash of these and the size) of each call, by the native library."""
    n = len(op)
    family, h = np.empty(n, np.uint64), np.empty(n, np.uint64)
    kinds = (np.uint8, np.uint8, np.int32, np.uint64, np.int64)
    columns = [np.ascontiguousarray(x, k) for x, k in zip((op, dtype, peer, comm, size), kinds, strict=True)]
    lib.gh_period_symbols(n, *(x.ctypes.data for x in columns), family.ctypes.data, h.ctypes.data)
    return family, h


def symbols_plain(op: Any, dtype: Any, peer: Any, comm: Any, size: Any) -> tuple[U64, U64]:
    """The same by numpy alone; what csrc/native/period.c is compared with."""
    small = op.astype(np.uint64)
    small |= dtype.astype(np.uint64) << np.uint64(8)
    small |= peer.astype(np.uint32).astype(np.uint64) << np.uint64(16)
    small *= _K1
    small += comm.astype(np.uint64)
    family = _mix(small)
    h = size.astype(np.uint64)
    h *= _K1
    h += family
    return family, _mix(h)


def varied_families(c: Columns, known: U64) -> U64:
    """Families whose size changes from call to call (token counts, dynamic shapes), besides `known`."""
    fam, inv = np.unique(c.family, return_inverse=True)
    _, first, of, count = np.unique(c.h, return_index=True, return_inverse=True, return_counts=True)
    total = np.bincount(inv)
    rare = np.bincount(inv, weights=(count[of] <= 2))
    kinds = np.bincount(inv[first], minlength=len(fam))
    varied = fam[(total >= 24) & (kinds >= 8) & (rare > VARIED_SHARE * total)]
    return np.setdiff1d(varied, known)


def resize(c: Columns, sizeless: U64) -> Columns:
    """The same calls with `h` computed again without the sizes of `sizeless` families."""
    h = c.bytes.astype(np.uint64)
    h[np.isin(c.family, sizeless)] = np.uint64((1 << 64) - 1)
    h *= _K1
    h += c.family
    return Columns(c.t, c.seq, c.family, _mix(h), c.op, c.comm, c.bytes, c.broken)


def human_bytes(n: int) -> str:
    """Size for people: 26.2 MB."""
    value, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def describe(c: Columns, i: int, names: dict[int, str]) -> str:
    """Call i for people: `all_reduce of 26.2 MB on dp`."""
    comm, code = int(c.comm[i]), int(c.op[i])
    op = OPS[code] if code < len(OPS) else f"op{code}"  # of a newer version
    plain = op == "barrier" or c.bytes[i] == UNKNOWN_BYTES
    size = "" if plain else f" of {human_bytes(int(c.bytes[i]))}"
    return f"{op}{size} on {names.get(comm) or f'communicator {comm:x}'[:20]}"
