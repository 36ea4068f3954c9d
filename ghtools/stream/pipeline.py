# SPDX-License-Identifier: Apache-2.0
"""The one loop of every filter: consume some kinds, forward the rest in order, end cleanly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from .errors import InputError
from .framing import GOOD_ENDS, Source, sections
from .records import Head, Record
from .writer import Writer


class Stage(Protocol):
    """What a filter does to one section of a stream."""

    def feed(self, record: Record) -> Iterable[Record]:
        """Records that follow from this one; called for every record between head and end."""
        ...

    def finish(self) -> Iterable[Record]:
        """Records still owed at the end of the section."""
        ...


def run_filter(
    tool: str,
    source: Source,
    writer: Writer,
    make: Callable[[Head], Stage],
    consumes: tuple[type[Record], ...],
    *,
    keep: bool,
    warn: Callable[[str], None],
) -> bool:
    """Run one filter over every section of `source`; False if any section was cut or malformed.

    A new stage is made for each head. Records of the kinds in `consumes` are not forwarded unless `keep`;
    all others are, before what the stage makes of them. Malformed input is reported through `warn`, the
    section is finished with what was sound, and its end record carries the reason on to later stages.
    """
    clean = True

    def cut(error: InputError) -> None:
        warn(str(error))

    for section in sections(source, cut):
        head = section.head
        head.via = [*head.via, tool]
        stage = make(head)
        writer.write(head)
        for record in section:
            if keep or not isinstance(record, consumes):
                writer.write(record)
            for made in stage.feed(record):
                writer.write(made)
        for made in stage.finish():
            writer.write(made)
        end = section.end
        assert end is not None  # the iteration above ends only when it is set
        if end.reason not in GOOD_ENDS:
            clean = False
        writer.write(end)
    return clean
