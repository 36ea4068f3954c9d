# SPDX-License-Identifier: Apache-2.0
"""gh-score: changes against labelled episodes."""

from __future__ import annotations

import json as to_json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ghtools.commands._cli import Input, Page, Voice, command
from ghtools.stream.errors import Exit, GhError, InputError

MOST_BYTES = 32 << 20

PAGE = Page(
    reads="head iters change suspect finding",
    forwards=False,
    overhead="Memory holds the changes of one section, not its iterations.",
    caveats=(
        "Delays are counted from the label's onset to the iteration at which the change was said. An episode that is "
        "said twice inside one label is no false alarm, and is counted apart. Shares have Wilson intervals, rates "
        "exact Poisson intervals, quantiles those of order statistics.\n\n"
        "A planned change that nobody announced looks like a slow-down; `gh-bocd --schedule` announces it. Where it is "
        "called fail-slow that is counted apart, too.\n\n"
        "Onsets are matched by iteration, accused parts by rank only."
    ),
    see="gh-bocd gh-synth gh-plot",
)


@command("gh-score", PAGE)
def main(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LABELS [FILE]...", help="Labels, then streams to read instead of stdin; - is stdin."),
    ] = None,
    truth: Annotated[bool, typer.Option("--truth", help="No LABELS: take what gh-synth planted.")] = False,
    level: Annotated[
        str, typer.Option(metavar="auto|job|rank", help="Score the job's changes, or each rank's.")
    ] = "auto",
    early_iters: Annotated[
        int, typer.Option(metavar="N", min=-1, help="How early a change may be said; -1: the file's, or 2.")
    ] = -1,
    within_iters: Annotated[
        int, typer.Option(metavar="N", min=-1, help="How late it may be said; -1: the file's, or 60.")
    ] = -1,
    iters: Annotated[
        int, typer.Option(metavar="N", min=0, help="Iterations of each series; 0: the file's, or those in the stream.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
) -> Exit:
    """Score changes against labelled episodes: found, missed, false, how late, with 95 % intervals.

    LABELS is CSV with a header line (onset,end,kind,ratio,rank,...) or JSON, a list of such maps. Only `onset` is
    needed: the first iteration that differs. `end` is the first that is as before; without it the change lasts.
    `kind` is slow (the default), drift or faster, which must be found, or planned, warm-up, restart or blip, which
    must not be called fail-slow. `rank` (3 or 0-3,8) and `cause` are compared with suspects and findings, `series`
    (a job id, or the number of the section in the input) says which section a label is about.

    Each section of the input is one series, or one a rank. Without --level it is the ranks where a label names some
    and they do not wait for each other.
    """
    from ghtools.detect import labels as made
    from ghtools.detect.score import Report, Tolerance
    from ghtools.detect.score_stream import add_section
    from ghtools.stream.framing import sections
    from ghtools.view.score import table

    given = list(paths or [])
    if not truth and not given:
        raise GhError("there is nothing to score against", try_="a LABELS file, or --truth")
    labels = None if truth else made.parse(_read(given.pop(0)), str((paths or [])[0]))
    early = early_iters if early_iters >= 0 else labels.early if labels and labels.early is not None else 2
    within = within_iters if within_iters >= 0 else labels.within if labels and labels.within is not None else 60
    say, clean, report = Voice("gh-score"), True, Report()
    for number, section in enumerate(sections(Input(given), lambda error: say(str(error))), 1):
        add_section(report, section.head, section, labels, number, Tolerance(early, within), level, iters)
        clean &= section.end is not None and section.end.reason in ("", "done", "stopped")
    if json:
        sys.stdout.write(to_json.dumps(report.as_dict(), allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in table(report))
    return Exit.OK if clean else Exit.INPUT


def _read(path: Path) -> str:
    """The text of a labels file; one line of error for anything that is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InputError(f"cannot read the labels {path}", f"it is larger than {MOST_BYTES >> 20} MiB")
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"cannot read the labels {path}", "it is not text (UTF-8)") from None
    except OSError as error:
        raise InputError(f"cannot read the labels {path}", (error.strerror or str(error)).lower()) from None
