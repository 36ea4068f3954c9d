# SPDX-License-Identifier: Apache-2.0
"""Pickles of plain data: equal to Python's reading, and nothing else is done for them."""

from __future__ import annotations

import os
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.source.plain_pickle import loads
from ghtools.stream.errors import InputError

from .feed import mutate

KEY = st.text(max_size=5) | st.integers(-5, 300)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9)
PLAIN = st.recursive(
    SCALAR,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(KEY, v, max_size=4) | st.lists(v, max_size=5).map(tuple),
    max_leaves=20,
)


class Evil:
    """What a hostile pickle holds."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


@settings(deadline=None)
@given(PLAIN, st.integers(0, 5))
def test_equals_python(value: Any, protocol: int) -> None:
    raw = pickle.dumps([value, value], protocol)
    if protocol < 3 and (b"_codecs" in raw or b"__builtin__" in raw):  # bytes are made by a function there
        with pytest.raises(InputError, match="asks for the global"):
            loads(raw, "f")
        return
    if protocol == 0:  # text lines with escapes are left as they are
        loads(raw, "f")
        return
    assert loads(raw, "f") == [value, value]


@pytest.mark.parametrize("protocol", range(6))
def test_a_global_is_refused_by_name(protocol: int) -> None:
    with pytest.raises(InputError, match=r"asks for the global (posix|nt)\.system"):
        loads(pickle.dumps({"entries": [Evil()]}, protocol), "f")


@pytest.mark.parametrize(
    "raw",
    [b"cos\nsystem\n.", b"(ios\nsystem\n.", b"Pid\n.", b"Vx\nQ.", b"\x82\x01.", b"]R.", b"]}b.", b"(o.", b"]]\x81.",
     b"Vos\nVsystem\n\x93."],
)  # fmt: skip
def test_every_instruction_that_acts_is_refused(raw: bytes) -> None:
    with pytest.raises(InputError, match=r"refused: f: its pickle asks for"):
        loads(raw, "f")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo number that would reserve 16 GiB
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x",  # a text of a TiB
        b"\x80\x04B" + struct.pack("<I", (1 << 32) - 1) + b"x.",
        b"\x80\x02\x8b" + struct.pack("<i", -1) + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",  # a frame of an EiB
        b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"Ns.",  # a key of nested tuples: hashing it overruns the stack
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",  # nested lists
        b"\x80\x02\x8f.", b"\x80\x09N.", b"", b".", b"N", b"a.", b"(", b"h\x05.", b"Ixyz\n.", b"V" + b"x" * 10_000,
        b"\x80\x02}N.s", b"]]e.", b"\x80\x02NNu.",
    ],
)  # fmt: skip
def test_bombs_and_nonsense(raw: bytes) -> None:
    """An error, or a value that took no more than the input's size."""
    try:
        value = loads(raw, "f")
    except InputError as error:
        assert "f" in str(error)
    else:
        assert value is None or isinstance(value, list)


@pytest.mark.parametrize("seed", range(300))
def test_fuzz(seed: int) -> None:
    raw = pickle.dumps({"entries": [{"a": (1, 2.5, "x"), "b": [None, True, -7, 1 << 70]}] * 3}, seed % 6)
    try:
        loads(mutate(raw, seed), "f")
    except InputError as error:
        assert str(error)
