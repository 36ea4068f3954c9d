# SPDX-License-Identifier: Apache-2.0
"""The one loader of ghtools' own native library, and the place of the preload shim."""

from __future__ import annotations

import ctypes
from pathlib import Path

from ghtools.stream.errors import MissingError

LIB_DIR = Path(__file__).resolve().parent.parent / "_lib"
SHIM = LIB_DIR / "libghtools_shim.so"


def _load() -> ctypes.CDLL:
    path = LIB_DIR / "libghtools_native.so"
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingError(
            "cannot load ghtools' native library", str(error), "`make shim` or `pip install .`"
        ) from error


lib = _load()
