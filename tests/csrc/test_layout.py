# SPDX-License-Identifier: Apache-2.0
"""Two lists that must agree: csrc's layouts and codes as compiled, and Python's."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

from ghtools.job import layout
from ghtools.job.native import lib
from ghtools.stream import records
from tests.csrc.build import CSRC

DTYPES: dict[str, np.dtype[Any]] = {
    "record": layout.RECORD_DTYPE,
    "header": layout.HEADER_DTYPE,
    "live": layout.LIVE_DTYPE,
    "comm": layout.COMM_DTYPE,
    "control": layout.CONTROL_DTYPE,
    "mail": layout.MAIL_DTYPE,
}


def compiled() -> dict[str, dict[str, tuple[str, int]]]:
    """struct -> field -> (numpy code, offset) as the native library was compiled."""
    found: dict[str, dict[str, tuple[str, int]]] = {}
    name, code, offset = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_uint64()
    for i in range(1000):
        if not lib.gh_layout(i, ctypes.byref(name), ctypes.byref(code), ctypes.byref(offset)):
            break
        assert name.value and code.value
        struct, field = name.value.decode().split(".")
        found.setdefault(struct, {})[field] = (code.value.decode(), offset.value)
    return found


@pytest.mark.parametrize("struct", DTYPES)
def test_numpy_dtype_equals_compiled_struct(struct: str) -> None:
    dtype = DTYPES[struct]
    assert dtype.fields is not None
    ours = {field: (dtype.fields[field][0], dtype.fields[field][1]) for field in dtype.names or ()}
    theirs = {field: (np.dtype(code), offset) for field, (code, offset) in compiled()[struct].items()}
    assert ours == theirs


def test_abi_number() -> None:
    assert lib.gh_ring_abi() == layout.RING_ABI


def macro_list(name: str) -> list[str]:
    """Second arguments (lower-case names) of the X(...) entries of a list in ops.h."""
    text = (CSRC / "ops.h").read_text()
    body = text.split(f"#define {name}(X)")[1].split("\n\n")[0]
    return re.findall(r"X\(\w+, (\w+)", body)


def test_codes_equal_records() -> None:
    assert tuple(macro_list("GH_OPS")) == records.OPS
    assert tuple(macro_list("GH_DTYPES")) == records.DTYPES


def test_flags_equal_records() -> None:
    text = (CSRC / "ops.h").read_text().split("#define GH_FLAGS(X)")[1].split("\n\n")[0]
    ours = {name: int(value) for name, value in re.findall(r"X\((\w+), (\d+)\)", text)}
    theirs = {name[5:]: value for name, value in vars(records).items() if name.startswith("FLAG_")}
    assert ours == theirs


def test_calls_columns_come_from_the_ring() -> None:
    names = layout.RECORD_DTYPE.names or ()
    for column, code in records.columns(records.Calls).items():
        assert column in names
        assert layout.RECORD_DTYPE[column] == np.dtype(code)
