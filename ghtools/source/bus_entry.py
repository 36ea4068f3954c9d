# SPDX-License-Identifier: Apache-2.0
"""One entry of a Redis stream as gh-pub writes it: some whole records of one source, numbered (DESIGN section 8).

Fields: v version of this format; s source; j job id; n number of the entry in its source, from 0; e events (rows of a
batch, else records) in all entries before it; x events the source has dropped so far; k "1" for a repeat of what a late
reader needs (head, job, comm, period), which takes no number of its own: its n and e are those of the next entry; d the
records. Whatever is read is somebody else's until checked.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from ghtools.stream.errors import InputError
from ghtools.stream.framing import read_records
from ghtools.stream.records import Record, columns

VERSION = b"1"
ENTRY_BYTES = 64 << 10  # an entry is filled up to this size
RECORD_BYTES = 1 << 20  # batches over this size are cut into several
MAX_ENTRY_BYTES = 4 << 20  # no entry is larger; larger ones are refused
_SOURCE = re.compile(rb"[\w.:@-]{1,200}")
_NUMBER = re.compile(rb"\d{1,18}")


@dataclass(frozen=True)
class Entry:
    """One entry, checked but for its records."""

    source: str
    job: str
    number: int
    before: int  # events in the entries before it
    dropped: int
    repeat: bool
    data: bytes
    events: int = 0  # in this entry; the publisher's own count, not sent


def to_fields(entry: Entry) -> dict[bytes, bytes]:
    """What XADD is given."""
    made = {
        b"v": VERSION,
        b"s": entry.source.encode(),
        b"j": entry.job.encode("utf-8", "surrogateescape"),
        b"n": b"%d" % entry.number,
        b"e": b"%d" % entry.before,
        b"x": b"%d" % entry.dropped,
        b"d": entry.data,
    }
    return made | {b"k": b"1"} if entry.repeat else made


def from_fields(given: Mapping[bytes, bytes]) -> Entry:
    """An entry from what XREAD gave; ValueError says what is wrong with it."""
    version = given.get(b"v")
    if version is None:
        raise ValueError("it is none of gh-pub's")
    if version != VERSION:
        shown = version[:12].decode("ascii", "backslashreplace")
        raise ValueError(f"it is of version {shown}, this is {VERSION.decode()}")
    source = given.get(b"s", b"")
    if not _SOURCE.fullmatch(source):
        raise ValueError("its source is no name")
    numbers = []
    for key in (b"n", b"e", b"x"):
        value = given.get(key, b"")
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"its field {key.decode()} is no number")
        numbers.append(int(value))
    data = given.get(b"d")
    if data is None:
        raise ValueError("there are no records in it")
    if len(data) > MAX_ENTRY_BYTES:
        raise ValueError(f"it is over {MAX_ENTRY_BYTES >> 20} MiB")
    job = given.get(b"j", b"")[:256].decode("utf-8", "replace")
    return Entry(source.decode(), job, numbers[0], numbers[1], numbers[2], given.get(b"k") == b"1", data)


def records_of(entry: Entry) -> list[Record]:
    """Its records; ValueError if any of them is malformed."""
    try:
        return list(read_records(io.BytesIO(entry.data)))
    except InputError as error:
        raise ValueError(str(error)) from None


def events_of(record: Record) -> int:
    """What a record counts when it is lost: the rows of a batch, else one."""
    names = columns(type(record))
    return len(getattr(record, next(iter(names)))) if names else 1


def pieces(record: Record) -> list[Record]:
    """A batch cut into parts of about RECORD_BYTES, oldest first; anything else as it is."""
    names = columns(type(record))
    size = sum(getattr(record, name).nbytes for name in names)
    if size <= RECORD_BYTES:
        return [record]
    rows, step = events_of(record), 0
    step = max(1, rows * RECORD_BYTES // size)
    plain = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in names}
    made = []
    for at in range(0, rows, step):
        cut = {name: getattr(record, name)[at : at + step] for name in names}
        made.append(type(record)(**plain, **cut))
        if "lost" in plain:
            plain["lost"] = 0  # lost before the first part only
    return made
