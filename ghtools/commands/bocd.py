# SPDX-License-Identifier: Apache-2.0
"""gh-bocd: iterations to changes of pace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ghtools.stream.errors import Exit, GhError

from ._cli import Files, Keep, Page, Quiet, Verbose, Voice, command, run_filter

if TYPE_CHECKING:
    from ghtools.detect.detector import Detector

SAVE_EVERY_S = 10.0


PAGE = Page(
    reads="iters calls",
    writes="change",
    examples="""
Live, on a running job:

    gh-trace | gh-bocd | gh-alert

On made data, with one planted episode:
""",
    overhead="""
About 100 ns an iteration of one rank for the posterior, in constant memory (some kilobytes a rank); `make bench`
prints samples a second for 1 to 16,384 ranks beside a library from PyPI.
""",
    caveats="""
A change is suspected two or three iterations after it and confirmed five at the earliest where noise is ordinary; more
noise takes more iterations. What lasts less than three iterations is never an episode.

The level learnt first is taken for the healthy one: a job that was slow from its first iteration on is not seen to be.
Times of iterations in phase outlier, gap, warmup and restart are not used. A loss of less than --min-change-pct is
reported, late, as drift when it lasts. A job that starts slow, gets faster and is as slow again within its first 100
iterations is confirmed after some 20 iterations: its times may have two modes.

`--state` is refused when it was made with other options.
""",
    see="gh-period gh-alert gh-score gh-plot",
)


@command("gh-bocd", PAGE)
def main(
    files: Files = None,
    min_change_pct: Annotated[
        float, typer.Option(metavar="PCT", min=1, max=1000, help="Least change of the iteration time to confirm.")
    ] = 10.0,
    level: Annotated[
        str, typer.Option(metavar="rank|job|both", help="Changes of ranks, of the job, or both.")
    ] = "both",
    hazard: Annotated[
        float,
        typer.Option(metavar="P", min=1e-9, max=0.5, help="Prior probability of a change at each iteration."),
    ] = 0.001,
    schedule: Annotated[
        str, typer.Option(metavar="N,N,...", help="Iterations at which the pace changes on purpose.")
    ] = "",
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Go on from the state in FILE, and keep it there.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say the numbers behind each candidate.")] = False,
    keep: Keep = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> Exit:
    """Find changes of the iteration time: onset, relief and drift, suspected and then confirmed.

    A Bayesian online change-point detector for each rank, with the hazard of --hazard, a
    normal-inverse-gamma prior (kappa 0.01, alpha 10, beta 10, in units of the noise at warm-up, on the
    logarithm of the time) and a Student t predictive. It looks back at run lengths of 5 to 32; the mass at 0 is
    always the hazard. What it finds is verified on the raw times before it is confirmed. A change of the job is
    what more than half of its live ranks say. Calls are turned into iterations on the way, as gh-period does.
    """
    from ghtools.detect.detector import Detector
    from ghtools.detect.memory import Settings
    from ghtools.detect.series import Prior
    from ghtools.detect.stage import BocdStage
    from ghtools.stream.records import Calls, Head, Iters

    if level not in ("rank", "job", "both"):
        raise GhError(f"--level {level} is not known", try_="rank, job or both")
    settings = Settings(min_change=min_change_pct / 100, schedule=_schedule(schedule))
    say = Voice("gh-bocd", burst=1_000_000 if explain else 20)
    made: list[Detector] = []

    def make(head: Head) -> BocdStage:
        detector = Detector(settings, Prior(hazard=hazard), level, say if explain else None)  # type: ignore[arg-type]
        made[:] = [detector]
        return BocdStage(head, detector, _keeper(state, detector) if state else None, keep)

    code = run_filter("gh-bocd", files, make, (Iters, Calls), keep=keep, say=say)
    if not quiet:
        for detector in made:
            counts = detector.counts()
            gaps = counts.pop("gap")
            if ignored := {name: n for name, n in counts.items() if n and (verbose or name != "skipped")}:
                say("ignored " + ", ".join(f"{n} {name}" for name, n in ignored.items()))
            if gaps:
                say(f"iterations are missing in {gaps} place{'s' * (gaps > 1)}; what came after was used")
    say.flush()
    return code


def _schedule(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise GhError(f"--schedule {text} is not a list of iterations", try_="--schedule 710,1415") from None


def _keeper(path: Path, detector: Detector) -> Callable[[bool], None]:
    """Restore the detector from `path`; the result saves it there, at once or if it has not been for a while."""
    import time

    from ghtools.detect import persist
    from ghtools.stream.state import load, save

    if found := load(path, persist.MAGIC):
        persist.restore(detector, *found)
    last = time.monotonic()

    def keep(now: bool) -> None:
        nonlocal last
        if now or time.monotonic() - last >= SAVE_EVERY_S:
            save(path, persist.MAGIC, *persist.dump(detector))
            last = time.monotonic()

    return keep
