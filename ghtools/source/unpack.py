# SPDX-License-Identifier: Apache-2.0
"""gzip and zstd unpacked on the way, a bounded number of bytes at a time."""

from __future__ import annotations

import zlib
from typing import Any, Protocol

from ghtools.stream.errors import InputError, MissingError
from ghtools.stream.framing import READ_BYTES, Source

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZSTD_FEED = 1024  # a byte of zstd can stand for 32 KiB: so what one feed makes is at most 32 MiB
ZSTD_WINDOW = 1 << 27  # as the zstd command by default


class _Packing(Protocol):
    """One member of a packed file after another."""

    name: str

    def feed(self, data: bytes, size: int) -> tuple[bytes, bytes]:
        """(unpacked, rest of data); ValueError where it is broken."""
        ...

    def is_whole(self) -> bool:
        """Whether the file may end here."""
        ...


class Unpacked:
    """A source whose bytes are unpacked where they begin as gzip or zstd, and as they are elsewhere.

    Nothing is read before the first use. Raises InputError, with the name, where the packing is broken or cut.
    """

    def __init__(self, source: Source, name: str = "-") -> None:
        self._source, self._name = source, name
        self._packing: _Packing | None = None
        self._raw: bytes | None = None  # read, not unpacked; None before the first use

    def read1(self, size: int, /) -> bytes:
        """Some bytes as soon as there are any."""
        if self._raw is None:
            self._raw = more = self._source.read1(READ_BYTES)
            while more and any(len(self._raw) < len(mark) and mark.startswith(self._raw) for mark in (GZIP, ZSTD)):
                more = self._source.read1(READ_BYTES)
                self._raw += more
            self._packing = _of(self._raw)
        if self._packing is None:
            raw, self._raw = self._raw, b""
            return raw or self._source.read1(size)
        while True:
            self._raw = self._raw or self._source.read1(READ_BYTES)
            if not self._raw:
                if not self._packing.is_whole():
                    where = "" if self._name == "-" else f": {self._name}"
                    raise InputError(f"input cut{where}", f"the {self._packing.name} file is not whole")
                return b""
            try:
                made, self._raw = self._packing.feed(self._raw, size)
            except ValueError as error:
                where = "" if self._name == "-" else f" in {self._name}"
                raise InputError(f"bad input{where}", f"broken {self._packing.name}: {error}") from None
            if made:
                return made

    def waiting(self, timeout_s: float) -> bool:
        """Whether read1 would return at once, or within `timeout_s`; True where the source cannot tell."""
        ask = getattr(self._source, "waiting", None)
        return bool(self._raw) or ask is None or bool(ask(timeout_s))


def _of(first: bytes) -> _Packing | None:
    if first[:2] == GZIP:
        return _Gzip()
    if first[:4] == ZSTD:
        return _Zstd()
    return None


class _Gzip:
    name = "gzip"

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    def feed(self, data: bytes, size: int) -> tuple[bytes, bytes]:
        if self._member.eof:
            self._member = zlib.decompressobj(wbits=31)
        try:
            made = self._member.decompress(data, size)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        return made, self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def is_whole(self) -> bool:
        return self._member.eof


class _Zstd:
    name = "zstd"

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingError(
                "cannot unpack zstd", "zstandard is not installed", "pip install 'ghtools[zstd]'"
            ) from None
        self._error: type[Exception] = zstandard.ZstdError
        self._context = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._frame: Any = self._context.decompressobj()

    def feed(self, data: bytes, size: int) -> tuple[bytes, bytes]:
        if self._frame.eof:
            self._frame = self._context.decompressobj()
        piece = data[:ZSTD_FEED]
        try:
            made: bytes = self._frame.decompress(piece)
        except self._error as error:
            raise ValueError(str(error)) from None
        return made, (self._frame.unused_data if self._frame.eof else b"") + data[ZSTD_FEED:]

    def is_whole(self) -> bool:
        return bool(self._frame.eof)
