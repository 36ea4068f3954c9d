# SPDX-License-Identifier: Apache-2.0
"""gh-doctor: can this machine watch jobs, and is a job watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ghtools.stream.errors import Exit, GhError

from ._cli import Page, Voice, command, stop

if TYPE_CHECKING:
    from ghtools.job.doctor import Check
    from ghtools.job.paths import JobDir

PAGE = Page(
    exits="0 1 2 4 5",
    examples="""
Look at the machine and at the job that runs on it:

    gh-doctor

Measure what the shim costs that job:

    gh-doctor --overhead
""",
    caveats="""
A library that was opened with RTLD_DEEPBIND, or whose functions a program looked up by dlsym on its handle, calls
past any preloaded library. That cannot be seen from outside with certainty: a process that has such a library
loaded, makes no record and runs on is reported as a note.

`--overhead` switches tracking off for some seconds at a time; other readers of the job see a gap then. The switch has
a lease and ends by itself if the command is killed.
""",
    see="gh-run gh-trace",
)


@command("gh-doctor", PAGE)
def main(
    job: Annotated[
        str,
        typer.Option(
            metavar="ID",
            envvar="GHT_JOB",
            help="The job to look at; default: the newest that runs, if any.",
            show_default=False,
        ),
    ] = "",
    pid: Annotated[
        list[int] | None, typer.Option(metavar="PID", help="Say why this process has no ring.", show_default=False)
    ] = None,
    overhead: Annotated[
        bool, typer.Option("--overhead", help="Measure the shim's cost on the job by switching tracking off and on.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=3, max=200, help="Pairs of windows for --overhead.")] = 10,
    window_iters: Annotated[int, typer.Option(min=1, help="Iterations a window of --overhead has.")] = 10,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the directories of jobs that are gone.")] = False,
) -> Exit:
    """Check a machine and a running job: shim, rings, space, hooks, records flowing.

    One line a check, marked ok, note (works, with a limit) or bad. Exit 1 if something is bad.
    """
    from ghtools.job.doctor import job_checks, machine_checks, process_checks
    from ghtools.job.paths import clean_stale, jobs, roots
    from ghtools.source.live import choose_job

    if clean:
        removed = [name for root in roots() for name in clean_stale(root, min_age_s=60)]
        print(f"removed {', '.join(removed)}" if removed else "nothing to remove")
        return Exit.OK
    running = [found for found in jobs() if found.alive]
    chosen = choose_job(running, job) if job or overhead else (running[0] if running else None)
    if overhead:
        assert chosen is not None  # choose_job raises where there is none
        return _overhead(chosen, pairs, window_iters)
    checks = [*machine_checks(), *_attach_rights()]
    for number in pid or []:
        checks += process_checks(number)
    checks += job_checks(chosen) if chosen else []
    for line in _lines(checks):
        print(line)
    if chosen is None and not pid:
        print("note  job        none is running under the shim")
    return Exit.SLOW if any(check.mark == "bad" for check in checks) else Exit.OK


def _attach_rights() -> list[Check]:
    from ghtools.job.doctor import Check
    from ghtools.source.uprobe import check

    missing = check()
    return [Check("note", "attach", f"gh-trace --attach will not work: {text}") for text in missing] or [
        Check("ok", "attach", "uprobes can be used (gh-trace --attach)")
    ]


def _lines(checks: list[Check]) -> list[str]:
    return [f"{check.mark:<5} {check.what:<10} {check.text}" for check in checks]


def _overhead(job: JobDir, pairs: int, window_iters: int) -> Exit:
    """Find the iteration, then time alternating windows of it."""
    import time

    from ghtools.detect.overhead import paired_overhead
    from ghtools.detect.period import PeriodFinder
    from ghtools.job.overhead import alternate
    from ghtools.source.live import LiveSource
    from ghtools.stream.records import Calls, Comm, Iters

    say = Voice("gh-doctor")
    say("looking for the iteration first")
    source, finder = LiveSource(job.path, time.monotonic, time.time_ns, None, say), PeriodFinder()
    rank = min(job.ranks)
    found: list[int] = []
    deadline = time.monotonic() + 120
    while len(found) < 8 and not source.done and not stop.requested:
        for record in source.poll():
            if isinstance(record, Comm):
                finder.comm(record)
            if isinstance(record, Calls):
                made = [m for m in finder.feed(record) if isinstance(m, Iters) and m.rank == rank]
                found += [
                    n for m in made for n, phase in zip(m.calls.tolist(), m.phase.tolist(), strict=True) if phase == 0
                ]
        if time.monotonic() > deadline:
            raise GhError(
                "cannot measure the overhead",
                "no iteration was found in two minutes",
                "gh-trace | gh-period --explain",
                Exit.UNKNOWN,
            )
        time.sleep(0.05)
    source.close()
    if len(found) < 8:
        raise GhError("cannot measure the overhead", "the job ended meanwhile", code=Exit.UNKNOWN)
    calls = sorted(found)[len(found) // 2] * window_iters
    ring = [ring for ring in job.rings if ring.rank == rank][-1]
    on, off = alternate(
        job.path, ring.path, calls, pairs, lambda: stop.requested, lambda n: say(f"pair {n} of {pairs}")
    )
    result = paired_overhead(on, off)
    print(
        f"tracking costs {result.pct:+.2f} % of the iteration time, 95 % interval {result.lo_pct:+.2f} to "
        f"{result.hi_pct:+.2f} % ({result.pairs} pairs of windows of {window_iters} iterations)"
    )
    if not result.told:
        say("that interval is too wide to tell; try more --pairs or a larger --window-iters")
        return Exit.UNKNOWN
    return Exit.OK
