# SPDX-License-Identifier: Apache-2.0
"""Writing a stream: each record leaves at once, whole, and is counted."""

from __future__ import annotations

from typing import Protocol

from .framing import encode
from .records import End, Head, Record


class Sink(Protocol):
    """A binary file; `flush` may be a no-op."""

    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> object: ...


class Writer:
    """Writes records to a binary sink, flushing each (a live pipeline must never wait for a full buffer)."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.count = 0

    def write(self, record: Record) -> None:
        """Write one record; a head restarts the count, an end carries it."""
        if isinstance(record, End):
            record.count = self.count
        self._sink.write(encode(record))
        self._sink.flush()
        self.count = 0 if isinstance(record, Head) else self.count + 1
