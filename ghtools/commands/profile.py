# SPDX-License-Identifier: Apache-2.0
"""gh-profile: who is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ghtools.stream.errors import Exit

from ._cli import Files, Keep, Page, Quiet, Verbose, Voice, command, run_filter

if TYPE_CHECKING:
    from ghtools.locate.judge import Judgement
    from ghtools.locate.stage import ProfileStage
    from ghtools.stream.records import Head

PAGE = Page(
    reads="calls iters",
    writes="suspect",
    examples="""\
What was slow in a job that was traced with durations:

    gh-trace --profile 50 > job.ght
    gh-profile --explain job.ght | gh-show

Live, beside the changes that gh-bocd finds, with executions timed when gh-run thinks it is worth it:

    gh-run -- torchrun --nproc-per-node 8 train.py

The same with all executions timed:

    gh-trace --profile 100000 | gh-bocd --keep | gh-profile | gh-alert
""",
    overhead="""\
About a second for some million executions; memory is bounded by the iterations not yet complete. To have executions
timed costs the job about 0.1 microseconds a collective of Gloo while it is asked for, and 0.2 to 0.3 one of NCCL
(not tried on a GPU; see gh-trace); `make bench` prints them for your machine.
""",
    caveats="""\
Without durations it works from the times at which ranks arrive, on one host only, and says so: a late rank is then
told from a slow link only where three or more ranks meet. Broadcasts, gathers and reduces tell nothing, since their
root may leave early. A pipeline stage with a single rank has no peers: without a healthy time before, a heavier
stage and a slow device look the same and the verdict is inconclusive. Where all groups are equally slow and there
is no earlier time to compare with, nobody can be named. Gloo's sends and receives are not timed: between hosts a
rank of a pipeline is named only if a peer that receives between the same hosts goes on as before, and the link
never. On a CPU that others use, a rank is late for seconds at a time: without an onset 10 seconds of it are needed.
""",
    see="gh-trace gh-bocd gh-validate-gemm gh-validate-ring",
)


@command("gh-profile", PAGE)
def main(
    files: Files = None,
    layout: Annotated[
        str, typer.Option(metavar="tp=2,dp=2,...", help="Parallel sizes; order=tp-dp-pp says how ranks are numbered.")
    ] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Print the evidence as a table on stderr.")] = False,
    keep: Keep = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> Exit:
    """Name the slow rank, link or group from the calls of all ranks, without touching the job.

    In a collective all leave together, so the least duration over the members is its transfer and the rest is
    waiting; who waits least came last. A rank is attributed if its own time exceeds that of the ranks that do the
    same work, steadily, if its groups wait for it and no group contradicts. Transfers are compared between groups
    of equal operation, size and kind of link, and with their own past. Heavier stages, uneven sequences, rotating
    pauses and common causes are named as such, and nobody is blamed. Iterations come from gh-period, or are found
    on the way; with a change from gh-bocd before it, the time before the onset is the reference. Tests of pairs (link
    records of two ends, as gh-import nccl-tests makes) are judged at the end: which end is slow, if they can tell.
    """
    from ghtools.locate.layout import parse
    from ghtools.locate.stage import ProfileStage
    from ghtools.stream.records import Calls, Iters

    say = Voice("gh-profile", burst=1_000_000 if explain else 20)
    stated = parse(layout) if layout else None
    made: list[ProfileStage] = []

    def show(judgement: Judgement) -> None:
        from ghtools.locate.explain import lines

        for line in lines(judgement):
            say(line)

    def make(head: Head) -> ProfileStage:
        made.append(ProfileStage(head, stated, show if explain else None))
        return made[-1]

    code = run_filter("gh-profile", files, make, (Calls, Iters), keep=keep, say=say)
    if not quiet:
        for stage in made:
            dropped = {name: n for name, n in vars(stage.profiler.dropped).items() if n}
            if dropped and (verbose or "overflow" in dropped):
                say("not used: " + ", ".join(f"{n} rows {name.replace('_', ' ')}" for name, n in dropped.items()))
    say.flush()
    return code
