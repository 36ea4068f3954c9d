# SPDX-License-Identifier: Apache-2.0
"""gh-import: other formats into a stream."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from ghtools import __version__
from ghtools.commands._cli import Input, Page, Voice, command, output
from ghtools.stream.errors import Exit, GhError

Inputs = Annotated[
    list[Path] | None, typer.Argument(metavar="FILE", help="Files to read instead of stdin.", show_default=False)
]


PAGE = Page(
    writes="job comm calls iters suspect link sample",
    exits="0 2 3 4",
    overhead="Files are read a piece at a time. What a format needs to be held is said under FORMATS.",
    caveats=(
        "Time stamps of logs that name no zone are taken as UTC. A log without time stamps counts from 0.\n\n"
        "A point of a log that stands for N iterations says so in the key `every` of its record; its index is the "
        "last of them and its duration their mean, so what lasted less than N iterations is flattened.\n\n"
        "A step that goes back is a restart: `incarnation` counts them."
    ),
    see="gh-bocd gh-period gh-profile gh-show",
)


@command("gh-import", PAGE)
def main(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="jsonl, series, ... or auto; see --formats.")] = "",
    files: Inputs = None,
    formats: Annotated[bool, typer.Option("--formats", help="List the formats, or all about FORMAT, and end.")] = False,
    column: Annotated[str, typer.Option(metavar="NAME", help="Column of a CSV, by name or number.")] = "",
    unit: Annotated[
        str, typer.Option(metavar="UNIT", help="Unit of the values: s, ms, us, ns; of a table also it/s, it/min.")
    ] = "s",
    pattern: Annotated[
        str, typer.Option(metavar="REGEX", help="Step lines, with groups step, time or total, rank (format steps).")
    ] = "",
    rank: Annotated[int, typer.Option(min=-1, help="Rank of records that name none; -1 is the job.")] = -1,
    job: Annotated[str, typer.Option(metavar="ID", help="Job id for the head.")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For one format only.")] = None,
) -> Exit:
    """Turn other formats into a stream: logs, traces, test results and metrics.

    FORMAT is one of those listed under FORMATS (gh-import --formats), or auto, which looks at the first file; it may
    be left out where files are named.
    Several files are several ranks, or several parts of one log, as the format has it. Files of gzip and zstd are
    unpacked on the way. What a format does not need is passed over; what it needs and does not find is said once.
    Where the input is bad, everything sound before it has been written.
    """
    from ghtools.source import importers
    from ghtools.stream.framing import GOOD_ENDS
    from ghtools.stream.records import End, Head

    if formats:
        for name in importers.IMPORTERS if not format_ else ():
            print(f"{name:<16}{importers.importer(name).DOC}")
        if format_:
            print(importers.about(format_))
        return Exit.OK
    if not format_:
        raise GhError("cannot import", "no FORMAT was named", ", ".join([*importers.IMPORTERS, "auto"]))
    if format_ not in importers.IMPORTERS and format_ != "auto" and Path(format_).exists():
        files, format_ = [Path(format_), *(files or [])], "auto"
    more = {key: value for key, _, value in (pair.partition("=") for pair in set_ or [])}
    if pattern:
        more["pattern"] = pattern
    options = importers.Options(column=column, unit=unit, rank=rank, job=job, more=more)
    inputs = [importers.File(str(path), Input([path])) for path in files or []]
    head = Head(tool="gh-import", version=__version__, host=socket.gethostname(), job=job, t_ns=time.time_ns())
    clean = True
    records = importers.read(format_, inputs or [importers.File("-", Input(None))], options, head, Voice("gh-import"))
    writer = output()
    for record in records:
        clean &= not isinstance(record, End) or record.reason in GOOD_ENDS
        writer.write(record)
    return Exit.OK if clean else Exit.INPUT
