# SPDX-License-Identifier: Apache-2.0
"""gh-pub: a stream into Redis."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Annotated

import typer

from ghtools.stream.errors import Exit, GhError, InputError

from ._cli import Input, Page, Quiet, Voice, bus_words, command, output, stop

PAGE = Page(
    forwards=False,
    exits="0 2 3 4",
    examples="""
On each host, beside the job; and on one of them, for all:

    export GHT_REDIS_URL=rediss://user:password@redis.example:6380
    gh-trace | gh-period | gh-pub ght:3f2a
    gh-sub ght:3f2a | gh-bocd | gh-alert

Local detection goes on whatever becomes of Redis:

    gh-trace | gh-period | gh-pub --tee ght:3f2a | gh-bocd | gh-alert
""",
    overhead="""
Here, two processes and Redis on a busy machine of two cores: 27,000 records/s of one row, or 1.7 million rows/s (80
MB/s) in batches of 1,000; 47 microseconds of CPU a record of one row in gh-pub and gh-sub together. A lone record is
out of gh-sub a millisecond after it went into gh-pub (median); one that follows another within 50 ms waits for the
rest of them. `make bench` measures it.

Redis needs memory for --maxlen entries of up to 64 KiB, 1.3 GB at most by default, and a small part of that for
iterations.
""",
    caveats="""
A URL on the command line can be read by every user of the host (ps): put it into GHT_REDIS_URL. It is never printed.
In a password, `%2F` stands for /, `%40` for @, `%23` for #. `?ssl_ca_certs=FILE` names who signed the server's
certificate.

Entries of the last five seconds that the server acknowledged and then lost (a crash without an append-only file) are
sent again; what it loses beyond that is lost, and gh-sub counts it where a number is missing. A record that is larger
than 4 MiB and no batch is dropped and counted.

Who may write to the stream may put anything into it: give each its own user in Redis (ACL).
""",
    see="gh-sub gh-run gh-trace gh-period",
)
STOP_LINGER_S = 2.0  # after Ctrl-C


@command("gh-pub", PAGE)
def main(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] STREAM [FILE]...",
            help="Where Redis is (default: $GHT_REDIS_URL), the name of the stream, and streams to read, not stdin.",
            show_default=False,
        ),
    ],
    tee: Annotated[bool, typer.Option("--tee", help="Write the records to stdout as well.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for Redis rather than drop records; so it is for files.")
    ] = False,
    maxlen: Annotated[
        int, typer.Option(metavar="N", min=1, help="Entries (of up to 64 KiB) the stream is trimmed to, about.")
    ] = 20_000,
    buffer: Annotated[
        int, typer.Option("--buffer-mib", metavar="MIB", min=1, help="Memory for records while Redis is away.")
    ] = 64,
    linger_s: Annotated[
        float, typer.Option(metavar="S", min=0.0, help="How long to wait for Redis when the input has ended.")
    ] = 10.0,
    quiet: Quiet = False,
) -> Exit:
    """Publish a stream of records to a Redis stream, for gh-sub on any host.

    Nothing waits for Redis: while it is away or slow, records wait in memory; when that is full the oldest calls are
    dropped first, and counted. Several gh-pub may write to one stream. Each section of the input is a source of its
    own. The URL is redis://HOST:PORT, rediss:// for TLS, unix:///PATH; with USER:PASSWORD@ before the host.
    """
    from ghtools.source.bus_pub import Publisher
    from ghtools.stream.framing import sections
    from ghtools.stream.records import End

    url, stream, files = bus_words(words)
    say = Voice("gh-pub")
    source = Input(files)
    forward = output() if tee else None
    publisher = Publisher(
        url, stream, say, host=socket.gethostname(), pid=os.getpid(), maxlen=maxlen, buffer_bytes=buffer << 20,
        wait=wait or _from_files(files), stopped=lambda: stop.requested,
    )  # fmt: skip
    cuts: list[InputError] = []

    def cut(error: InputError) -> None:
        cuts.append(error)
        say(str(error))

    try:
        for section in sections(source, cut):
            head = section.head
            head.via = [*head.via, "gh-pub"]
            publisher.begin(head)
            if forward:
                forward.write(head)
            for record in section:
                publisher.put(record)
                if forward:
                    forward.write(record)
            if section.end:
                publisher.end(section.end)
                if forward:
                    forward.write(section.end)
    except BrokenPipeError:  # the reader of --tee has gone: an end all the same
        publisher.end(End(reason="stopped"))
        raise
    finally:
        sent = publisher.close(min(linger_s, STOP_LINGER_S) if stop.requested else linger_s)
        if sent.dropped:
            say(f"{sent.dropped} events were dropped, since Redis was away or too slow")
        if sent.undelivered:
            say(f"{sent.undelivered} events were not delivered")
        elif not quiet:
            say(f"{sent.events} events in {sent.entries} entries to {stream}")
        say.flush()
    if sent.undelivered:
        raise GhError("could not publish everything", f"{url.label} was away at the end", code=Exit.MISSING)
    return Exit.INPUT if cuts else Exit.OK


def _from_files(files: list[Path] | None) -> bool:
    """Whether the input is files and nobody is hurt by waiting."""
    modes = [
        os.fstat(0) if str(name) == "-" else name.stat()
        for name in files or [Path("-")]
        if str(name) == "-" or name.exists()
    ]
    return all(stat.S_ISREG(mode.st_mode) for mode in modes)
