# SPDX-License-Identifier: Apache-2.0
"""gh-synth: seeded synthetic streams whose head carries the planted truth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ghtools import __version__
from ghtools.commands._cli import Page, command, output, stop
from ghtools.stream.errors import Exit, GhError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ghtools.stream.records import Record

Pct = Annotated[float, typer.Option(metavar="PCT", min=0, max=50, help="Noise of each iteration.")]


PAGE = Page(
    writes="head job comm calls iters end",
    exits="0 2 4",
    overhead="About 3 million iterations or 1 million calls a second on one core; memory does not grow.",
    caveats=(
        "Each rank of `gh-synth iters` has a time of its own, as a rank that is measured alone would have. In a "
        "synchronous job all ranks show the slowest rank's time: --coupled, and always so in `gh-synth calls`.\n\n"
        "The numbers of bytes, layers and micro-batches of `gh-synth calls` are drawn by the seed where --layout and "
        "--sizes leave them open; head.truth says what was drawn."
    ),
    see="gh-bocd gh-period gh-plot gh-show",
)


@command("gh-synth", PAGE)
def main(
    what: Annotated[str, typer.Argument(metavar="iters|calls|profile", help="Which records to make.")] = "iters",
    ranks: Annotated[
        int | None, typer.Option(min=1, max=1 << 20, help="Ranks of the job.  [default: 4, or of the layout]")
    ] = None,
    iters: Annotated[int, typer.Option(min=1, help="Iterations.")] = 300,
    iter_ms: Annotated[float, typer.Option(min=0.001, help="Time of a healthy iteration.")] = 312.0,
    noise_pct: Pct = 1.0,
    tails: Annotated[bool, typer.Option("--tails", help="Heavy-tailed noise and spikes.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same bytes.")] = 0,
    change: Annotated[list[str] | None, typer.Option(metavar="AT:RATIO[:RANK[:END]]", help="A step.")] = None,
    ramp: Annotated[list[str] | None, typer.Option(metavar="AT:RATIO:FULL[:RANK[:END]]", help="A ramp.")] = None,
    blip: Annotated[list[str] | None, typer.Option(metavar="AT:RATIO[:RANK]", help="One slow iteration.")] = None,
    coupled: Annotated[bool, typer.Option("--coupled", help="All ranks take the slowest rank's time.")] = False,
    eval_every: Annotated[int, typer.Option(min=0, help="An evaluation every N iterations.")] = 0,
    ckpt_every: Annotated[int, typer.Option(min=0, help="A checkpoint every N iterations.")] = 0,
    warmup_iters: Annotated[int, typer.Option(min=0, help="Slow first iterations.")] = 0,
    restart: Annotated[list[int] | None, typer.Option(metavar="AT", help="All ranks restart here.")] = None,
    family: Annotated[str, typer.Option(metavar="NAME", help="calls: ddp, loop, fsdp, megatron, moe, pipeline.")] = "",
    layout: Annotated[str, typer.Option(metavar="tp=2,dp=2,pp=2", help="calls: parallel sizes.")] = "",
    sizes: Annotated[str, typer.Option(metavar="layers=4,micro=8", help="calls: sizes; default by seed.")] = "",
    log_every: Annotated[int, typer.Option(min=0, help="calls: a scalar all_reduce every N iterations.")] = 0,
    lost_pct: Annotated[float, typer.Option(min=0, max=90, help="calls: share lost in the ring.")] = 0.0,
    fault: Annotated[
        str,
        typer.Option(metavar="KIND[:RANK[:RATIO[:AT]]]", help="profile: compute, input, link, both, none..."),
    ] = "none",
    unmarked: Annotated[bool, typer.Option("--unmarked", help="Leave every phase 'steady'.")] = False,
    batch_iters: Annotated[int, typer.Option(min=1, max=1 << 16, help="Iterations a record holds.")] = 64,
    pace: Annotated[float, typer.Option(metavar="SPEED", min=0, help="Emit in time, 1 = real; 0 = at once.")] = 0.0,
    now: Annotated[bool, typer.Option("--now", help="Begin now, not at a fixed time.")] = False,
) -> Exit:
    """Make a synthetic stream of iterations or calls with planted changes; the head's truth names them.

    Iterations are numbered from 0. --change 120:1.5 makes all ranks half as slow again from 120 on,
    --change 120:2:2:210 doubles rank 2 from 120 to before 210. gh-synth profile makes calls with durations, of
    ranks that wait for each other, with one --fault.
    """
    from ghtools.source import synth, synth_job
    from ghtools.stream.records import End, Head

    if what not in ("iters", "calls", "profile"):
        raise GhError(f"cannot make {what}", "there are iters, calls and profile", "gh-synth iters")
    sized = synth_job.parse_sizes(layout)
    if sized and ranks not in (None, synth_job.ranks_of(sized)):
        raise GhError("cannot make this job", f"the layout has {synth_job.ranks_of(sized)} ranks, --ranks says {ranks}")
    spec = synth.Spec(
        ranks=ranks or (synth_job.ranks_of(sized) if sized else 4), iters=iters, iter_ns=round(iter_ms * 1e6),
        noise_pct=noise_pct, tails=tails, seed=seed, changes=synth.parse(change or [], ramp or [], blip or []),
        coupled=coupled, eval_every=eval_every, ckpt_every=ckpt_every, warmup=warmup_iters,
        restarts=tuple(restart or ()), marked=not unmarked, batch=1 if pace else batch_iters,
        t0_ns=time.time_ns() if now else synth.T0_NS,
    )  # fmt: skip
    head = Head(tool="gh-synth", version=__version__)
    records: Iterator[Record]
    if what == "profile":
        from ghtools.source import synth_profile

        records = synth_profile.profile_job(synth_profile.parse(spec, sized, fault, noise_pct / 100), head)
    elif what == "calls":
        job = synth_job.JobSpec(
            family=family or ("megatron" if sized else "ddp"), layout=sized or {"dp": spec.ranks},
            sizes=synth_job.parse_sizes(sizes), log_every=log_every, lost_pct=lost_pct,
        )  # fmt: skip
        records = synth_job.job_calls(spec, job, head)
    else:
        records = synth.iters(spec, head)
    if pace:
        records = synth.pace(records, pace, time.monotonic, stop.sleep)
    writer = output()
    for record in records:
        if stop.requested:
            writer.write(End(reason="stopped"))
            return Exit.OK
        writer.write(record)
    writer.write(End())
    return Exit.OK
