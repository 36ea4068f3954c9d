# SPDX-License-Identifier: Apache-2.0
"""gh-plot: iteration time by rank, as a picture or in the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from ghtools.commands._cli import Files, Input, Page, Voice, command
from ghtools.stream.errors import Exit, GhError

PAGE = Page(
    reads="head job comm calls iters change",
    exits="0 2 3 4",
    overhead=(
        "Memory is bounded: each rank keeps the least and greatest time of at most 4096 stretches of iterations, fewer "
        "of a job with more than 1024 ranks."
    ),
    caveats=(
        "Changes are drawn where the stream holds them, that is after `gh-bocd --keep`. Of more than 16 ranks the "
        "median, the band of 90 % and at most five ranks that stand out by over 10 % are drawn.\n\n"
        "The time axis leaves out a few extreme iterations so that they do not flatten the others; how many is said."
    ),
    see="gh-bocd gh-period gh-show gh-synth",
)


@command("gh-plot", PAGE)
def main(
    files: Files = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.png", help="Picture to write: .png, .svg or .pdf.")
    ] = None,
    term: Annotated[bool, typer.Option("--term", help="Draw in the terminal instead.")] = False,
    heatmap: Annotated[
        bool, typer.Option("--heatmap", help="With --out: who waits in which group, from calls with durations.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="Logarithmic time axis.")] = False,
    width: Annotated[int, typer.Option(min=0, max=1000, help="Columns of --term; 0 is the terminal's.")] = 0,
    height: Annotated[int, typer.Option(min=3, max=200, help="Rows of --term.")] = 16,
) -> Exit:
    """Draw iteration times with slow episodes and phases, and what a synthetic stream has planted.

    A stream of calls is turned into iterations as gh-period does. Reads to the end, in bounded memory. --heatmap
    draws ranks by groups instead, coloured by how long they wait there, and marks the ranks that gh-profile names.
    """
    from ghtools.view import plot, plot_data, plot_term, show

    if bool(out) == term:
        raise GhError("nowhere to draw", "one of --out and --term is needed", "`gh-plot --out job.png FILE.ght`")
    if heatmap and not out:
        raise GhError("cannot draw a heat map in the terminal", try_="`gh-plot --heatmap --out wait.png FILE.ght`")
    if out:
        plot.check(out)
    records = show.Selection(Input(files), Voice("gh-plot"))
    if heatmap and out:
        from ghtools.view import heatmap as heat

        heat.save(heat.collect(records), out)
        return Exit.OK if records.clean else Exit.INPUT
    data = plot_data.collect(records)
    if out:
        plot.save(data, out, log=log)
    else:
        columns = width or shutil.get_terminal_size((100, 24)).columns
        colour = os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        sys.stdout.writelines(line + "\n" for line in plot_term.lines(data, columns, height, log=log, colour=colour))
    return Exit.OK if records.clean else Exit.INPUT
