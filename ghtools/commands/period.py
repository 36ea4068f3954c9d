# SPDX-License-Identifier: Apache-2.0
"""gh-period: communication calls to iterations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ghtools.stream.errors import Exit

from ._cli import Files, Keep, Page, Quiet, Verbose, Voice, command, run_filter

if TYPE_CHECKING:
    from ghtools.detect.period import PeriodFinder
    from ghtools.stream.records import Head, Record


class PeriodStage:
    """Hand records to the finder and say what it comes to believe."""

    def __init__(self, finder: PeriodFinder, say: Voice, explain: bool, verbose: bool) -> None:
        self._finder, self._say, self._explain, self._verbose = finder, say, explain, verbose

    def feed(self, record: Record) -> Iterator[Record]:
        from ghtools.stream.records import Calls, Comm, Job

        if isinstance(record, Calls):
            yield from self._heard(self._finder.feed(record))
        elif isinstance(record, Comm):
            self._finder.comm(record)
        elif isinstance(record, Job):
            yield from self._heard(self._finder.job(record))

    def finish(self) -> Iterator[Record]:
        yield from self._heard(self._finder.flush())

    def _heard(self, made: Iterable[Record]) -> Iterator[Record]:
        from ghtools.detect.period_say import explain, sentence
        from ghtools.stream.records import Period

        for record in made:
            yield record
            if isinstance(record, Period):
                if self._verbose or self._explain:
                    self._say(sentence(record))
                if self._explain:
                    for line in explain(record):
                        self._say(line)


PAGE = Page(
    reads="calls",
    writes="iters period",
    examples="""
Live, on a running job, with the reasons:

    gh-trace | gh-period --explain | gh-show

On made data:
""",
    overhead="""
Millions of calls a second on one core (`make bench` prints it), in bounded memory a rank. A live iteration is written
one iteration late: when the call that begins the next one arrives.
""",
    caveats="""
Some streams do not tell what an iteration is: layers that all communicate alike, or micro-batches that do, look like
iterations. Then pauses of the host and the other ranks decide, and where they do not, the answer is unknown; `--marker`
names the call that begins an iteration.

Durations are differences of the times at which the host entered a call. On a GPU the host may run ahead by some
iterations; over many iterations the mean is right.
""",
    see="gh-trace gh-bocd",
)


@command("gh-period", PAGE)
def main(
    files: Files = None,
    method: Annotated[
        str, typer.Option(metavar="anchors|acf", help="acf: the smallest lag of autocorrelation 0.95, to compare.")
    ] = "anchors",
    marker: Annotated[
        str,
        typer.Option(metavar="op=NAME,bytes=N,...", help="The call that begins one: op, comm, bytes, peer."),
    ] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Say what else it could be, and why not.")] = False,
    keep: Keep = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> Exit:
    """Find what an iteration is on each rank and write the iterations, live.

    The stream of calls is cut at calls that are made once an iteration, and the pieces are compared by what calls they
    hold, whatever their order. The shortest piece that holds all calls of training is the iteration. Where the
    calls alone do not tell, host times and the other ranks decide; where these do not either, the answer is unknown and
    --explain shows the candidates. An iteration is written when the call that begins the next one arrives.
    """
    from ghtools.detect.period import PeriodFinder
    from ghtools.stream.records import Calls

    say = Voice("gh-period", burst=1_000_000 if explain else 20)
    PeriodFinder(method, marker)  # a wrong option is said before anything is read

    def make(head: Head) -> PeriodStage:
        return PeriodStage(PeriodFinder(method, marker), say, explain, verbose and not quiet)

    return run_filter("gh-period", files, make, (Calls,), keep=keep, say=say)
