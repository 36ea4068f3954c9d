# SPDX-License-Identifier: Apache-2.0
"""gh-show: any stream as a table for people, as JSON lines, or as one-line text."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ghtools.commands._cli import Files, Input, Page, Voice, command
from ghtools.stream.errors import Exit, GhError

PAGE = Page(
    reads="head end job comm calls iters period change suspect gemm link finding alert sample",
    overhead="About 300,000 rows a second with --json. Memory does not grow with the stream.",
    caveats=(
        "A table is for people and may change; --json is the form for programs.\n\n"
        "jq before 1.7 keeps only 53 bits of a number: times then move by up to 256 ns. Communicators are text "
        "there, so that they survive it."
    ),
    see="gh-import gh-plot gh-alert",
)


@command("gh-show", PAGE)
def main(
    files: Files = None,
    json: Annotated[bool, typer.Option("--json", help="JSON lines; a batch becomes one line a row.")] = False,
    text: Annotated[bool, typer.Option("--text", help="One line a record, with dates, for logs and grep.")] = False,
    expand: Annotated[bool, typer.Option("--expand", "-x", help="Print every row of a batch.")] = False,
    kinds: Annotated[str, typer.Option(metavar="LIST", help="Only these kinds: change,iters.")] = "",
    head: Annotated[int, typer.Option(metavar="N", min=0, help="Stop after N records; 0 is all.")] = 0,
) -> Exit:
    """Show a stream: a table, JSON lines (--json) or plain text (--text).

    Each record is printed as it comes. JSON lines are turned back into the same stream by gh-import jsonl.
    """
    from ghtools.view import jsonl, show

    if json and text:
        raise GhError("cannot print both --json and --text", "they are two forms of the same", "one of them")
    wanted = frozenset(kind.strip() for kind in kinds.split(",") if kind.strip())
    out = sys.stdout
    colour = os.isatty(1) and not (json or text or os.environ.get("NO_COLOR")) and os.environ.get("TERM") != "dumb"
    header = "" if json or text else show.HEADER + "\n"
    records = show.Selection(Input(files), Voice("gh-show"), wanted, head)
    for record in records:
        out.write(header)
        header = ""
        if json:
            lines = jsonl.lines(record)
        else:
            lines = show.plain(record, expand=expand) if text else show.human(record, expand=expand)
        code = show.colour_of(record) if colour else ""
        out.writelines(f"\x1b[{code}m{line}\x1b[0m\n" if code else line + "\n" for line in lines)
        out.flush()
    return Exit.OK if records.clean else Exit.INPUT
