# SPDX-License-Identifier: Apache-2.0
"""Random records of every kind, and a stream that holds one of each, for all tests of readers."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ghtools.stream.framing import encode
from ghtools.stream.records import KINDS, Calls, Change, Comm, End, Head, Iters, Job, Record, Unknown, columns

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
FLOAT = st.floats().map(lambda value: math.nan if math.isnan(value) else value)  # which NaN is nobody's business
LEAF = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | FLOAT | TEXT | st.binary(max_size=8)
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
MAP = st.dictionaries(TEXT, VALUE, max_size=4)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int": INT64,
    "float": FLOAT,
    "str": TEXT,
    "list[int]": st.lists(INT64, max_size=4),
    "list[str]": st.lists(TEXT, max_size=4),
    "list[dict[str, Any]]": st.lists(MAP, max_size=3),
    "dict[str, int]": st.dictionaries(TEXT, INT64, max_size=3),
    "dict[str, Any]": MAP,
}


@st.composite
def column(draw: st.DrawFn, dtype: str, rows: int) -> np.ndarray[Any, Any]:
    """A column of `rows` values over the whole range of its type."""
    kind = np.dtype(dtype)
    raw = draw(st.binary(min_size=rows * kind.itemsize, max_size=rows * kind.itemsize))
    made = np.frombuffer(raw, kind)
    return np.where(np.isnan(made), np.nan, made) if kind.kind == "f" else made


@st.composite
def record_of(draw: st.DrawFn, cls: type[Record], max_rows: int = 5) -> Record:
    """A record of one kind, with keys of a later version now and then."""
    cols = columns(cls)
    rows = draw(st.integers(0, max_rows)) if cols else 0
    values: dict[str, Any] = {}
    for f in fields(cls):
        if f.name in cols:
            values[f.name] = draw(column(cols[f.name], rows))
        elif f.name != "extra":
            values[f.name] = draw(SCALARS[str(f.type)])
    extra = draw(st.dictionaries(TEXT.map(lambda text: "x_" + text), VALUE, max_size=2))
    return cls(**values, extra=extra)


@st.composite
def unknown(draw: st.DrawFn) -> Record:
    """A record of a kind that is not known yet."""
    kind = draw(TEXT.filter(lambda text: text not in KINDS))
    return Unknown(extra={"kind": kind, **draw(st.dictionaries(TEXT.filter(lambda t: t != "kind"), VALUE, max_size=4))})


BODY = st.one_of(*(record_of(cls) for cls in KINDS.values() if cls not in (Head, End)), unknown())


def same(one: Record, other: Record) -> bool:
    """Whether two records are equal on the wire (dataclasses with arrays and NaN have no useful ==)."""
    return type(one) is type(other) and encode(one) == encode(other)


def sample() -> list[Record]:
    """A small plausible stream: head, job, communicator, calls, iterations, a change, an end."""
    count = 6
    at = 1_767_225_600_000_000_000 + np.arange(count, dtype=np.int64) * 300_000_000
    return [
        Head(tool="gh-test", version="1", job="j1", t_ns=int(at[0])),
        Job(job="j1", world_size=1, backend="gloo", ranks=[{"rank": 0, "host": "n1", "state": "running"}]),
        Comm(comm=0xDEADBEEFCAFEF00D, rank=0, comm_rank=0, size=1, ranks=[0], name="world"),
        Calls(
            rank=0, t_ns=at, op=np.ones(count, "u1"), dtype=np.full(count, 9, "u1"), flags=np.zeros(count, "u2"),
            peer=np.full(count, -1, "i4"), comm=np.full(count, 0xDEADBEEFCAFEF00D, "u8"),
            bytes=np.full(count, 4 << 20), seq=np.arange(count), dur_ns=np.full(count, -1),
        ),
        Iters(
            rank=0, index=np.arange(count), t_ns=at, dur_ns=np.full(count, 300_000_000), phase=np.zeros(count, "u1"),
            calls=np.ones(count, "i4"), seq=np.arange(count),
        ),
        Change(
            stage="confirmed", level="job", verdict="fail-slow", before_ns=300_000_000, after_ns=600_000_000, ratio=2.0,
            onset_index=3, said_index=6, onset_t_ns=int(at[3]), said_t_ns=int(at[5]),
        ),
        Unknown(extra={"kind": "later", "t_ns": 5, "blob": b"\x00\xff", "deep": {"a": [1, None]}}),
        End(count=6),
    ]  # fmt: skip


def wire(records: list[Record]) -> bytes:
    """The bytes of some records."""
    return b"".join(encode(record) for record in records)


# Changes to valid bytes: a byte overwritten, some taken out, some put in, or the rest cut off.
MUTATIONS = st.lists(
    st.tuples(st.sampled_from("wdic"), st.integers(0, 1 << 16), st.binary(min_size=1, max_size=6)),
    min_size=1,
    max_size=6,
)


def mutated(data: bytes, mutations: list[tuple[str, int, bytes]]) -> bytes:
    """`data` after some mutations."""
    made = bytearray(data)
    for how, where, what in mutations:
        at = where % (len(made) + 1)
        if how == "w":
            made[at : at + len(what)] = what
        elif how == "d":
            del made[at : at + len(what)]
        elif how == "i":
            made[at:at] = what
        else:
            del made[max(at, 1) :]
    return bytes(made)
