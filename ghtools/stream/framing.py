# SPDX-License-Identifier: Apache-2.0
"""msgpack framing: bytes to records and back (DESIGN section 3). Only this room knows msgpack.

What is read is hostile until checked: sizes are bounded before anything is built, every field's type is
checked, a column's length must fit its dtype and agree with its siblings. An error names the byte offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Protocol

import msgpack
import numpy as np

from .errors import InputError
from .records import KINDS, STREAM_MAJOR, End, Head, Record, Unknown, columns

MAX_RECORD_BYTES = 64 << 20
MAX_RECORD_VALUES = 1 << 22  # list items and map entries of one record: a byte on the wire can cost 60 in memory
READ_BYTES = 1 << 16
GOOD_ENDS = ("", "done", "stopped")


class Source(Protocol):
    """A binary file with `read1` (sys.stdin.buffer, io.BufferedReader, io.BytesIO)."""

    def read1(self, size: int, /) -> bytes: ...


class Stopped(Exception):
    """Raised inside a blocked read when the user asked to end; see commands/_cli.py."""


def _check(kind: str, name: str, want: str, value: object) -> None:
    """Refuse a value whose type is not that of the field."""
    if want == "int":
        ok = isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < (1 << 64)
    elif want == "float":
        ok = isinstance(value, int | float) and not isinstance(value, bool)
    elif want == "str":
        ok = isinstance(value, str)
    elif want == "list[int]":
        ok = isinstance(value, list) and all(type(item) is int for item in value)
    elif want == "list[str]":
        ok = isinstance(value, list) and all(isinstance(item, str) for item in value)
    elif want.startswith("list[dict"):
        ok = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    elif want.startswith("dict[str, int]"):
        ok = isinstance(value, dict) and all(type(item) is int for item in value.values())
    else:
        ok = isinstance(value, dict)
    if not ok:
        raise ValueError(f"field {name} of {kind} is {type(value).__name__}, not {want}")


def _schema(cls: type[Record]) -> tuple[dict[str, str], dict[str, np.dtype[Any]]]:
    """Plain fields with their type's text, and columns with their dtype."""
    cols = {name: np.dtype(dtype) for name, dtype in columns(cls).items()}
    plain = {f.name: str(f.type) for f in fields(cls) if f.name not in cols and f.name != "extra"}
    return plain, cols


_SCHEMAS = {cls.kind: _schema(cls) for cls in KINDS.values()}


def decode(item: object) -> Record:
    """One unpacked map to its record; ValueError says what is wrong with it."""
    if not isinstance(item, dict):
        raise ValueError(f"{type(item).__name__} where a map should be (is this a ghtools stream?)")
    kind = item.pop("kind", None)
    if not isinstance(kind, str):
        raise ValueError("a map without a kind")
    cls = KINDS.get(kind)
    if cls is None:
        return Unknown(extra={"kind": kind, **item})
    plain, cols = _SCHEMAS[kind]
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    length = -1
    for name, value in item.items():
        if name in plain:
            _check(kind, name, plain[name], value)
            values[name] = float(value) if plain[name] == "float" else value
        elif name in cols:
            size = cols[name].itemsize
            if not isinstance(value, bytes) or len(value) % size:
                raise ValueError(f"column {name} of {kind} is not bytes of {cols[name].name}")
            if length not in (-1, len(value) // size):
                raise ValueError(f"column {name} of {kind} has {len(value) // size} values, its siblings {length}")
            length = len(value) // size
            values[name] = np.frombuffer(value, cols[name])
        else:
            extra[name] = value
    if missing := [name for name in cols if name not in values]:
        if length > 0:
            raise ValueError(f"column {missing[0]} of {kind} is missing")
        values.update({name: np.empty(0, cols[name]) for name in missing})
    return cls(**values, extra=extra)


def encode(record: Record) -> bytes:
    """A record to its bytes on the wire."""
    if isinstance(record, Unknown):
        return msgpack.packb(record.extra)  # type: ignore[no-any-return]
    plain, cols = _SCHEMAS[record.kind]
    item: dict[str, Any] = {"kind": record.kind}
    for name in plain:
        item[name] = getattr(record, name)
    for name, dtype in cols.items():
        item[name] = np.ascontiguousarray(getattr(record, name), dtype).tobytes()
    item.update(record.extra)
    return msgpack.packb(item, default=_number)  # type: ignore[no-any-return]


def _number(value: object) -> object:
    """numpy scalars become numbers at the edge (STYLE 7)."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot write a {type(value).__name__} into a stream")


def extension(code: int, data: bytes) -> object:
    """A value of msgpack's extension type, for keys that records do not know; -1 is its time stamp."""
    return msgpack.Timestamp.from_bytes(data) if code == -1 else msgpack.ExtType(code, data)


class _Budget:
    """Counts what a record's lists and maps hold, so that a hostile one cannot fill the memory."""

    def __init__(self) -> None:
        self.left = MAX_RECORD_VALUES

    def spend(self, made: list[Any] | dict[Any, Any]) -> Any:
        """Called by msgpack for each list and map it has made."""
        self.left -= len(made) + 1
        if self.left < 0:
            raise ValueError(f"a record of over {MAX_RECORD_VALUES} values")
        return made


def read_records(source: Source) -> Iterator[Record]:
    """Records of a byte source, each as soon as its last byte is there.

    Raises InputError with the byte offset at the first malformed or cut record; whatever was sound before
    has been yielded by then. Does not look at heads and ends; see `sections`.
    """
    budget = _Budget()
    unpacker = msgpack.Unpacker(
        raw=False,
        max_buffer_size=MAX_RECORD_BYTES,
        max_str_len=1 << 20,
        max_array_len=1 << 20,
        max_map_len=1 << 16,
        list_hook=budget.spend,
        object_hook=budget.spend,
    )
    given = start = 0  # start: where the record that is being read began (tell() moves inside a record, too)
    while True:
        chunk = source.read1(READ_BYTES)
        if not chunk:
            break
        given += len(chunk)
        try:
            unpacker.feed(chunk)
            while True:
                try:
                    item = unpacker.unpack()
                except msgpack.OutOfData:
                    break
                record = decode(item)
                start, budget.left = unpacker.tell(), MAX_RECORD_VALUES
                yield record
        except msgpack.BufferFull:
            raise InputError(f"bad input at byte {start}", f"a record of over {MAX_RECORD_BYTES >> 20} MiB") from None
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
            # ValueError covers msgpack's format, stack and UTF-8 errors and decode()'s own.
            why = str(error) or type(error).__name__
            raise InputError(f"bad input at byte {start}", why) from None
    if start != given:
        raise InputError(f"input cut at byte {given}", f"the record that began at byte {start} is not whole")


class Section:
    """One head-to-end stretch of a stream, as `cat a.ght b.ght` makes several."""

    def __init__(self, head: Head, records: Iterator[Record]) -> None:
        self.head = head
        self.end: End | None = None
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        """The records between head and end; `end` is set when this is done, whatever went wrong."""
        yield from self._records


def sections(source: Source, on_cut: Callable[[InputError], None]) -> Iterator[Section]:
    """Split a source at its heads and ends.

    A section that stops without an end gets one whose reason says so, and `on_cut` hears of it. A malformed
    record ends the section and the whole input. A stream of another major version, or records before any
    head, raise InputError.
    """
    records = read_records(source)
    pending: list[Record] = []
    seen = False

    def body(section: Section) -> Iterator[Record]:
        while section.end is None:
            try:
                record = next(records)
            except StopIteration:
                why = "the stage before stopped without an end record"
                section.end = End(reason=f"cut: {why}")
                on_cut(InputError("input cut", why))
            except InputError as error:
                section.end = End(reason=f"cut: {error.what}")
                on_cut(error)
            except Stopped:
                section.end = End(reason="stopped")
            else:
                if isinstance(record, End):
                    section.end = record
                elif isinstance(record, Head):
                    pending.append(record)
                    section.end = End(reason="cut: another head before the end")
                    on_cut(InputError("input cut", "a head came before the end of the stream before it"))
                else:
                    yield record

    while True:
        try:
            first = pending.pop() if pending else next(records, None)
        except Stopped:
            return
        if first is None:
            if not seen:
                raise InputError(
                    "empty input",
                    "no ghtools stream was read",
                    "gh-trace, gh-synth or a .ght file before the pipe",
                )
            return
        if not isinstance(first, Head):
            raise InputError(
                "bad input",
                f"a record of kind {first.kind or 'unknown'} before any head",
                "`gh-import jsonl` to add one",
            )
        if not first.v or first.v[0] != STREAM_MAJOR:
            raise InputError(
                "cannot read this stream",
                f"it is version {first.v}, this is {STREAM_MAJOR}.x",
                "the same version of ghtools on both sides",
            )
        seen = True
        section = Section(first, iter(()))
        section._records = body(section)
        yield section
        for _ in section:  # what the reader left unread
            pass
