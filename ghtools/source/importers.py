# SPDX-License-Identifier: Apache-2.0
"""The frame of gh-import: what an importer is, where they are, and the head and end around what they read.

An importer is one file in source/ and one line in IMPORTERS. Its module has

    NAME: str                                           the FORMAT of the command line
    DOC: str                                            one line for the page; names the options it takes
    def looks_like(first: bytes) -> bool                could this be the begin (64 KiB at most) of such a file?
    def read(files: Sequence[File], options: Options) -> Iterator[Record]

`read` yields records as soon as it has them and in bounded memory where the format allows it. It need not yield a
head or an end. Where the input is bad it raises InputError, best with the file and the line; what it has yielded
before is delivered. It must expect hostile bytes: bound every size, and let no other exception out. Files of gzip
or zstd are unpacked before `read` sees them. Modules are imported when they are asked for, so that --help stays quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Protocol, cast

from ghtools.stream.errors import Exit, GhError, InputError
from ghtools.stream.framing import READ_BYTES, Source, Stopped
from ghtools.stream.records import STREAM_MAJOR, End, Head, Record

from .unpack import Unpacked

IMPORTERS: dict[str, str] = {
    "jsonl": "ghtools.source.jsonl",
    "kineto": "ghtools.source.import_kineto",
    "flight-recorder": "ghtools.source.import_flight",
    "nsys": "ghtools.source.import_nsys",
    "what-if": "ghtools.source.import_what_if",
    "megatron": "ghtools.source.import_megatron",
    "mllog": "ghtools.source.import_mllog",
    "steps": "ghtools.source.import_steps",
    "golden": "ghtools.source.import_golden",
    "nccl-tests": "ghtools.source.import_nccl_tests",
    "nccl-log": "ghtools.source.import_nccl_log",
    "nccl-inspector": "ghtools.source.import_nccl_inspector",
    "prom": "ghtools.source.import_prom",
    "allreduce-bench": "ghtools.source.import_allreduce_bench",
    "superbench": "ghtools.source.import_superbench",
    "nvidia-smi": "ghtools.source.import_nvidia_smi",
    "xid": "ghtools.source.import_xid",
    "rows": "ghtools.source.import_rows",
    "series": "ghtools.source.series",
}
PEEK_BYTES = READ_BYTES


@dataclass
class File:
    """One input: its name for messages ('-' is stdin) and its bytes."""

    name: str
    source: Source


@dataclass(frozen=True)
class Options:
    """What the user said beside the format; an importer takes what concerns it."""

    column: str = ""  # name or number (from 1) of the column that holds the values
    unit: str = "s"  # of the values: s, ms, us, ns
    rank: int = -1  # rank of records that know none; -1 is the job as a whole
    job: str = ""
    more: dict[str, str] = field(default_factory=dict)  # --set KEY=VALUE, for what only one format needs
    warn: Callable[[str], None] = lambda text: None  # a line for the person: what is missing, once


class Importer(Protocol):
    """The module of one format."""

    NAME: str
    DOC: str

    def looks_like(self, first: bytes) -> bool: ...
    def read(self, files: Sequence[File], options: Options) -> Iterator[Record]: ...


def importer(name: str) -> Importer:
    """The importer of a format; GhError if there is none."""
    if name not in IMPORTERS:
        raise GhError(f"cannot import {name}", "no such format", ", ".join([*IMPORTERS, "auto"]))
    return cast(Importer, import_module(IMPORTERS[name]))


def about(name: str) -> str:
    """All that is said of a format: its line, then where such files come from and what they can tell."""
    made = importer(name)
    text = inspect.cleandoc(import_module(IMPORTERS[name]).__doc__ or "")
    return f"{made.DOC[:1].upper()}{made.DOC[1:]}.\n\n{text}"


def guess(first: bytes) -> Importer:
    """The importer whose format `first` looks like; GhError if there is none."""
    for name in IMPORTERS:
        made = importer(name)
        if made.looks_like(first):
            return made
    raise GhError("cannot tell the format", "no importer knows such a file", "one of " + ", ".join(IMPORTERS))


class Peeked:
    """A source whose first bytes can be looked at; gzip and zstd are unpacked on the way, some bytes at a time.

    Nothing is opened or read before the first use, so that a thousand files need not be open at once.
    """

    def __init__(self, source: Source, name: str = "-") -> None:
        self._source = Unpacked(source, name)
        self._ahead: bytes | None = None  # looked at, not yet read

    def peek(self) -> bytes:
        """The first bytes, which read1 will give again."""
        if self._ahead is None:
            self._ahead = self._source.read1(PEEK_BYTES)
        return self._ahead

    def read1(self, size: int, /) -> bytes:
        """Some bytes as soon as there are any; InputError where the packing is broken or cut."""
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        return self._source.read1(size)

    def waiting(self, timeout_s: float) -> bool:
        """Whether read1 would return at once, or within `timeout_s`; True where the source cannot tell."""
        return bool(self._ahead) or self._source.waiting(timeout_s)


def read(
    name: str, files: Sequence[File], options: Options, head: Head, warn: Callable[[str], None]
) -> Iterator[Record]:
    """A whole stream from files of format `name` ('auto' looks at the first file).

    `head` is used if the importer yields none. Bad input is told to `warn` and stands in the end record.
    """
    sources = [Peeked(file.source, file.name) for file in files]
    made = guess(sources[0].peek()) if name == "auto" else importer(name)
    peeked = [File(file.name, source) for file, source in zip(files, sources, strict=True)]
    is_open = any_ = False
    reason = "done"
    records = made.read(peeked, replace(options, warn=warn))
    while True:
        try:
            record = next(records)
            if isinstance(record, Head) and record.v[:1] != [STREAM_MAJOR]:
                raise InputError("cannot read this stream", f"it is version {record.v}, this is {STREAM_MAJOR}.x")
        except StopIteration:
            if any_:
                break
            warn("empty input: nothing to import was read")
            reason = "cut: empty input"
            break
        except Stopped:
            reason = "stopped"
            break
        except GhError as error:
            if error.code != Exit.INPUT:
                raise
            warn(str(error))
            reason = f"cut: {error.what}"
            break
        any_ = True
        if isinstance(record, Head):
            if is_open:
                yield End()
            is_open = True
        elif not is_open:
            yield head
            is_open = True
        if isinstance(record, End):
            is_open = False
        yield record
    if not is_open and reason != "done":
        yield head
        is_open = True
    if is_open:
        yield End(reason=reason)
