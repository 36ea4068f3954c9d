# SPDX-License-Identifier: Apache-2.0
"""Where functions lie in a shared library: its symbol tables (ELF, 64 bits, little-endian)."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import InputError

SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
FUNCTION, INDIRECT = 2, 10  # STT_FUNC, STT_GNU_IFUNC
SYMTAB, DYNSYM = 2, 11  # SHT_SYMTAB, SHT_DYNSYM
LOAD = 1  # PT_LOAD


@dataclass(frozen=True)
class Function:
    """A function in a file."""

    offset: int  # of its first instruction in the file, bytes
    size: int  # bytes, 0 = not said


def functions(path: Path, names: Iterable[str]) -> dict[str, Function]:
    """Those of `names` that the library defines. InputError if the file is no sound ELF file of this kind."""
    wanted = set(names)
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise InputError(f"cannot read {path}", "it is empty") from None
        with data:
            try:
                return _functions(data, wanted)
            except (struct.error, ValueError, IndexError, OverflowError) as error:
                raise InputError(f"cannot read {path}", f"it is no sound 64-bit ELF file ({error})") from None


def _functions(data: mmap.mmap, wanted: set[str]) -> dict[str, Function]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("magic, class or byte order")
    phoff, shoff = struct.unpack_from("<QQ", data, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<4H", data, 54)
    loads = []
    for i in range(phnum):
        kind, _, offset, vaddr, _, filesz = struct.unpack_from("<IIQQQQ", data, phoff + i * phentsize)
        if kind == LOAD:
            loads.append((vaddr, vaddr + filesz, offset - vaddr))
    found: dict[str, Function] = {}
    for i in range(shnum):
        at = shoff + i * shentsize
        kind, _, _, offset, size, link = struct.unpack_from("<IQQQQI", data, at + 4)
        if kind not in (SYMTAB, DYNSYM):
            continue
        strings, strings_size = struct.unpack_from("<QQ", data, shoff + link * shentsize + 24)
        table = np.frombuffer(data[offset : offset + size], SYMBOL)
        for name, vaddr, length in _search(data, table, strings, strings_size, wanted - set(found)):
            for low, high, shift in loads:
                if low <= vaddr < high:
                    found[name] = Function(vaddr + shift, length)
                    break
    return found


def _search(
    data: mmap.mmap, table: NDArray[Any], strings: int, size: int, wanted: set[str]
) -> Iterable[tuple[str, int, int]]:
    """(name, address, size) of wanted functions that the table defines."""
    kind = table["info"] & 15
    table = table[((kind == FUNCTION) | (kind == INDIRECT)) & (table["section"] != 0)]
    for name in sorted(wanted):
        # A name may be the tail of a longer one (linkers merge them), so every place it occurs at is tried.
        text, at = name.encode() + b"\0", strings
        while (at := data.find(text, at, strings + size)) >= 0:
            rows = table[table["name"] == at - strings]
            if len(rows):
                yield name, int(rows["value"][0]), int(rows["size"][0])
                break
            at += 1
