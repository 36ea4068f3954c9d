# SPDX-License-Identifier: Apache-2.0
"""gh-import: other formats into a stream."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from ghtools import __version__
from ghtools.commands._cli import Input, Voice, command, output
from ghtools.stream.errors import Exit, GhError

Inputs = Annotated[
    list[Path] | None, typer.Argument(metavar="FILE", help="Files to read instead of stdin.", show_default=False)
]


@command("gh-import")
def main(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="jsonl, series, ... or auto; see --formats.")] = "",
    files: Inputs = None,
    formats: Annotated[bool, typer.Option("--formats", help="List the formats and end.")] = False,
    column: Annotated[str, typer.Option(metavar="NAME", help="Column of a CSV, by name or number.")] = "",
    unit: Annotated[str, typer.Option(metavar="UNIT", help="Unit of the values: s, ms, us, ns.")] = "s",
    rank: Annotated[int, typer.Option(min=-1, help="Rank of records that name none; -1 is the job.")] = -1,
    job: Annotated[str, typer.Option(metavar="ID", help="Job id for the head.")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For one format only.")] = None,
) -> Exit:
    """Turn other formats into a stream: gh-import FORMAT [FILE...]. Files of gzip are unpacked."""
    from ghtools.source import importers
    from ghtools.stream.framing import GOOD_ENDS
    from ghtools.stream.records import End, Head

    if formats:
        for name in importers.IMPORTERS:
            print(f"{name:<12}{importers.importer(name).DOC}")
        return Exit.OK
    if not format_:
        raise GhError("cannot import", "no FORMAT was named", ", ".join([*importers.IMPORTERS, "auto"]))
    more = {key: value for key, _, value in (pair.partition("=") for pair in set_ or [])}
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
