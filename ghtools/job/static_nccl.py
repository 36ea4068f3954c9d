# SPDX-License-Identifier: Apache-2.0
"""Find NCCL that is linked statically into another file: preload cannot hook it (FIELD, nccl in jaxlib).

Such a file holds NCCL's code but its dynamic symbol table does not offer `ncclAllReduce`. Code is known by the
symbol table if it was kept, else by the texts that NCCL prints.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from ghtools.job.process import mapped_files

MAX_SECTIONS = 4096
SYMBOL_BYTES = 24
WANTED = b"ncclAllReduce"
TEXT = b"NCCL version "


def static_nccl_objects(pid: int) -> list[str]:
    """Paths of files mapped executable by process `pid` that hold an NCCL which cannot be hooked.

    Empty also if the process may not be asked; files that cannot be read are passed over.
    """
    return [path for path in mapped_files(pid) or [] if ".so" in Path(path).name and has_hidden_nccl(Path(path))]


def has_hidden_nccl(path: Path) -> bool:
    """Whether an ELF file holds NCCL without offering it to others. False for anything that is no ELF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _hidden_in(data)
    except (OSError, ValueError, struct.error):
        return False


def _hidden_in(data: mmap.mmap) -> bool:
    if data[:6] != b"\x7fELF\x02\x01":  # 64 bit, little endian: all that NCCL runs on
        return False
    dynamic, static = False, False
    for kind, symbols, strings in _symbol_tables(data):
        defined, mentioned = _look_for(data, symbols, strings)
        if kind == 11 and mentioned:  # SHT_DYNSYM: offered to others, or taken from others
            dynamic = True
        if kind == 2 and defined:  # SHT_SYMTAB: the code is here
            static = True
    if dynamic:
        return False
    return static or (data.find(TEXT) >= 0 and data.find(b"NCCL_DEBUG") >= 0)


def _symbol_tables(data: mmap.mmap) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """(section type, (offset, size) of the symbols, (offset, size) of their strings)."""
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    if size < 64 or count > MAX_SECTIONS:
        return []
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    tables = []
    for section in sections:
        kind, link = section[1], section[6]
        if kind in (2, 11) and link < count:
            strings = sections[link]
            tables.append((kind, (section[4], section[5]), (strings[4], strings[5])))
    return tables


def _look_for(data: mmap.mmap, symbols: tuple[int, int], strings: tuple[int, int]) -> tuple[bool, bool]:
    """(defined here, mentioned at all) for the symbol WANTED."""
    start, end = strings[0], min(strings[0] + strings[1], len(data))
    table = data[symbols[0] : symbols[0] + symbols[1]]
    mentioned = False
    at = data.find(WANTED + b"\0", start, end)  # the name itself or the tail of pncclAllReduce: linkers share them
    while at >= 0:
        needle = struct.pack("<I", at - start)
        entry = table.find(needle)
        while entry >= 0:
            if entry % SYMBOL_BYTES == 0:
                mentioned = True
                if struct.unpack_from("<H", table, entry + 6)[0] != 0:  # the section it is defined in
                    return True, True
            entry = table.find(needle, entry + 1)
        at = data.find(WANTED + b"\0", at + 1, end)
    return False, mentioned
