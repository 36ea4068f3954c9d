# SPDX-License-Identifier: Apache-2.0
"""gh-sub: a stream out of Redis."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from ghtools import __version__
from ghtools.stream.errors import Exit, GhError, InputError

from ._cli import Page, Quiet, Voice, bus_words, command, output, sleep_or_closed, stop

PAGE = Page(
    forwards=False,
    exits="0 2 3 4",
    examples="""
Watch a job of several hosts, and go on after a restart where it stopped:

    gh-sub --state /var/lib/ghtools/3f2a ght:3f2a | gh-bocd | gh-alert

What is in the stream now, as a file:

    gh-sub --until-end ght:3f2a > job.ght
""",
    overhead="""
gh-pub(1) has the rates. What is kept grows with the number of sources and ranks, not with what has been read.
""",
    caveats="""
The heads and ends of the sources are not forwarded. The end record counts as lost what the sources dropped and what
was trimmed from the stream (gh-pub --maxlen) before it was read; calls say how many are missing before them.

With --from now, or after a loss, communicators and ranks come with the next repeat of their source, within ten seconds.

--until-end ends as soon as nothing comes and all sources seen so far have ended: start it when all have begun. After a
crash, records of the last second before it may come twice (the place is written once a second).
""",
    see="gh-pub gh-run gh-bocd gh-profile",
)
MAGIC = "gh-sub 1"
SAVE_S = 1.0
PID_LINGER_S = 20.0  # less than gh-run gives its chain after the job's end


@command("gh-sub", PAGE)
def main(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] STREAM",
            help="Where Redis is (default: $GHT_REDIS_URL), and the name of the stream.",
            show_default=False,
        ),
    ],
    from_: Annotated[
        str, typer.Option("--from", metavar="start|now|ID", help="Where to begin if --state does not say.")
    ] = "start",
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the place here, and go on there next time.", show_default=False),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End when all sources that were seen have ended or are silent.")
    ] = False,
    silent_s: Annotated[float, typer.Option(metavar="S", min=1.0, help="Call a source silent after this long.")] = 30.0,
    until_pid: Annotated[
        int,
        typer.Option(
            metavar="PID",
            envvar="GHT_UNTIL_PID",
            help="As --until-end, but not while this process runs, and at most 20 s longer.",
            show_default=False,
        ),
    ] = 0,
    quiet: Quiet = False,
) -> Exit:
    """Read what gh-pub writes to a Redis stream, from any number of hosts, as one stream.

    Each record comes once, in the order of its source. Redis may be restarted at any time. A source that ends badly or
    goes silent is said on stderr, as is a rank that two sources claim. It runs until Ctrl-C, or --until-end.
    """
    from ghtools.job.process import process_start_ticks
    from ghtools.source.bus_merge import Merger
    from ghtools.source.bus_sub import Subscriber, place
    from ghtools.stream import state as store
    from ghtools.stream.records import End, Head
    from ghtools.stream.writer import Writer

    url, stream, files = bus_words(words)
    if files:
        raise GhError("too many arguments", "there is one stream and no file")
    say = Voice("gh-sub")
    kept = store.load(state, MAGIC) if state else None
    if kept and kept[0].get("stream") != stream:
        raise GhError(f"cannot use the state {state}", "it is of another stream", "another --state FILE")
    merger = Merger(say, silent_s, whole=from_ == "start" and kept is None)
    last = place(from_)
    if kept:
        try:
            merger.restore(kept[0], time.monotonic())
            last = place(str(kept[0]["last"]))
        except (ValueError, KeyError, GhError) as error:
            raise InputError(f"cannot use the state {state}", str(error), "removing it") from None
    subscriber = Subscriber(url, stream, merger, last, say)
    writer: Writer = output()
    begun = False
    saved = ""

    def begin() -> None:
        writer.write(
            Head(tool="gh-sub", version=__version__, host=socket.gethostname(), job=merger.job, t_ns=time.time_ns(),
                 truth=merger.truth)
        )  # fmt: skip

    def save() -> None:
        nonlocal saved
        if state and subscriber.last not in ("$", saved):
            store.save(state, MAGIC, {"stream": stream, "last": subscriber.last, **merger.state()}, [])
            saved = subscriber.last

    born = process_start_ticks(until_pid) if until_pid else None
    late = 0.0  # when to end though sources have not; 0 while the process runs
    reason, ticked = "stopped", time.monotonic()
    try:
        for records in subscriber.batches(sleep_or_closed):
            if records and not begun:
                begin()
                begun = True
            for record in records:
                writer.write(record)
            if (now := time.monotonic()) - ticked >= SAVE_S:
                ticked = now
                merger.tick(now)
                save()
            if not records:
                sleep_or_closed(0.0)
                if until_pid and not late and (born is None or process_start_ticks(until_pid) != born):
                    late = now + PID_LINGER_S
                if (merger.over and (late or (until_end and not until_pid))) or (late and now > late):
                    reason = merger.reason
                    break
            if stop.requested:
                break
        save()
    finally:
        subscriber.close()
    if not begun:
        begin()
    writer.write(End(lost=merger.lost, reason=reason))
    if not quiet and (merger.skipped or merger.repeated):
        say(f"{merger.skipped} entries were left out, {merger.repeated} came twice")
    say.flush()
    return Exit.INPUT if reason.startswith("cut") else Exit.OK
