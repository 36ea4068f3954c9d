# SPDX-License-Identifier: Apache-2.0
"""gh-alert: confirmed changes to alerts for people and machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ghtools.stream.errors import Exit

from ._cli import Files, Input, Keep, Page, Verbose, Voice, command, output

PAGE = Page(
    reads="change suspect finding",
    writes="alert",
    exits="0 1 2 3",
    examples="""
Beside a job, for Prometheus' node exporter and a chat:

    gh-trace | gh-bocd --keep | gh-profile | gh-alert --prom /var/lib/node_exporter/gh.prom --webhook https://chat.example/hook

On made data:
""",
    caveats="""
A webhook is posted by a thread of its own with time-outs and retries; when its queue is full, alerts are dropped and
counted, and the stream goes on. The Prometheus file is written at most every 30 s, whole or not at all.

If the input was cut, that comes first: the exit code is 3 even when something is still slow.
""",
    see="gh-bocd gh-profile gh-run",
)


@command("gh-alert", PAGE)
def main(
    files: Files = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON lines of alerts, and nothing else.")] = False,
    prom: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep Prometheus metrics in FILE (every 30 s at most).")
    ] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="POST each alert as JSON to URL.")] = None,
    syslog: Annotated[bool, typer.Option("--syslog", help="Send each alert to the log daemon (/dev/log).")] = False,
    syslog_address: Annotated[
        str | None, typer.Option(metavar="ADDR", help="--syslog to HOST:PORT (UDP) or another socket's path.")
    ] = None,
    keep: Keep = False,
    verbose: Verbose = False,
    # Not the shared option: gh-run silences its other stages (GHT_QUIET), and the sentences are what it runs for.
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no sentences.")] = False,
) -> Exit:
    """Turn confirmed changes into alerts: one at the onset, one when it changes by much, one when it is over.

    Each alert is a sentence on stderr and a record on stdout; on a terminal only the sentences are shown.
    Warm-up, restarts, planned changes and blips are no alerts; -v tells of them. A change of one rank is only
    alerted when the job's own change does not cover it.

    Suspects of an episode (gh-profile) name its slow part in an alert of the same id, once; a test's finding
    (gh-validate-gemm, gh-validate-ring) confirms or clears it in another. Each alert lists the parts named so far.
    Where nobody can be named, the reason is said once. Suspects of no episode alert nobody, unless they have stalled.
    Suspects and findings are passed on like other records.

    Exits 1 if something is still slow at the end, and 3 (which comes first) if the input was cut.
    """
    import os
    import sys
    import time

    from ghtools.stream.pipeline import run_filter
    from ghtools.stream.records import Change
    from ghtools.view.alerting import Desk
    from ghtools.view.notify import Discard, JsonLines
    from ghtools.view.prom import Metrics, PromFile
    from ghtools.view.syslog import Syslog
    from ghtools.view.webhook import Webhook

    warn = Voice("gh-alert")
    # Sentences are the product, not diagnostics: one voice of their own, in the name people know.
    say = Voice("ghtools") if not quiet else lambda text: None
    writer = JsonLines(_put) if json else Discard() if os.isatty(1) else output()
    metrics = Metrics() if prom else None
    desk = Desk(
        writer,
        say,
        warn,
        verbose=verbose,
        metrics=metrics,
        prom=PromFile(prom, metrics, time.monotonic, warn) if prom and metrics else None,
        syslog=Syslog(syslog_address or "/dev/log") if syslog or syslog_address else None,
        webhook=Webhook(webhook, warn) if webhook else None,
    )
    with desk:
        clean = run_filter("gh-alert", Input(files, desk.tick), writer, desk.stage, (Change,), keep=keep, warn=warn)
    for text in desk.slow():
        say(text)
    sys.stdout.flush()
    return Exit.INPUT if not clean else Exit.SLOW if desk.slow() else Exit.OK


def _put(line: str) -> None:
    import sys

    sys.stdout.write(line)
    sys.stdout.flush()
