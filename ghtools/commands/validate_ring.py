# SPDX-License-Identifier: Apache-2.0
"""gh-validate-ring: which link is slow."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ghtools.stream.errors import Exit, GhError

from ._cli import Bus, Input, Page, Quiet, Verbose, Voice, bus_of, command, output, stop

if TYPE_CHECKING:
    from ghtools.job.gather import Gathered
    from ghtools.job.pause import Held
    from ghtools.locate.ring_fabric import Fabric, Plan
    from ghtools.locate.ring_history import History
    from ghtools.locate.ring_plan import Graph
    from ghtools.locate.ring_test import RingTest
    from ghtools.stream.records import Head, Job, Record, Suspect

PAGE = Page(
    reads="suspect change",
    writes="job link finding",
    exits="0 1 2 3 4 5",
    exits_text="With --suspects the stream says what was found, and the command ends as other filters do: 0 or 3.",
    examples="""\
Sixteen ranks on this host, each a process of this command, as a ring and as NCCL's double tree:

    gh-validate-ring --ranks 0-15 --topology both | gh-show

The links of a job that runs under the shim, while it stands still for some seconds at the begin of an iteration:

    gh-validate-ring --job my-job > links.ght

The same from GPU to GPU, by NCCL on a communicator of the job:

    gh-validate-ring --job my-job --backend nccl > links.ght

Over hosts, a process a rank: over TCP by a directory that all see, or by torch.distributed:

    srun -N 16 --ntasks-per-node 1 gh-validate-ring --gather /shared/tmp.1 > links.ght
    srun -N 16 --ntasks-per-node 1 gh-validate-ring --backend gloo > links.ght
    torchrun --nnodes 2 --nproc-per-node 8 ... --no-python gh-validate-ring --backend nccl > links.ght

The link between two hosts, which has no other to be compared with, against earlier runs; the first begins the history:

    gh-validate-ring --job my-job --bus unix:///run/redis.sock --baseline ~/.local/state/ghtools/links.jsonl

In a chain: a link or host that gh-profile suspects is tested:

    gh-trace --profile 100000 | gh-bocd --keep | gh-profile | gh-validate-ring --suspects - | gh-alert
""",
    overhead="""\
An even ring takes 2 passes, an odd one 3, one tree 3, both trees of the double tree 4, whatever the number of ranks;
in a pass all its pairs exchange at once, so a test takes as long as 2 to 7 exchanges of the slowest pair. An exchange
moves 16, 32 and 64 MB three times both ways, 0.7 GB; it begins no transfer after 5 s. What looks slow costs more
exchanges, one after another, 8 links at most. Each rank needs half a MB of buffers.

In a job an exchange moves 1 and 4 MB, too, again and again for 0.3 s, two links at most are looked at twice, and after
4.5 s in all the job goes on, whatever could not be told by then. By NCCL each size is moved five times in a row, of
which four are timed; each GPU then needs two buffers of the largest size, an eighth of its free memory at most (larger
sizes are left out), and 1 GiB that is free. The first exchange of two ranks makes NCCL connect them, with buffers of
its own that stay in the communicator; it is not timed.

With more ranks than CPUs on one host the time goes into copying, and there it grows with the ranks. Measured on a busy
host with 2 CPUs: 4 ranks 2.8 s, 8 ranks 5.9 s, 16 ranks 7.7 s, and 14 s with --topology both (5 passes); starting 16
processes is 0.3 s of it. A job of 4 ranks there stood still for 0.6 s, and for 3.4 to 4.5 s with a slow rank in it.
Schedules for 100,000 ranks are made in a tenth of a second (make bench).
""",
    caveats="""\
Over TCP the kernel's network stack and the CPU are part of the link: a rank whose CPU is throttled or contended is
slow to all its partners in both directions, which gh-validate-gemm tells apart. RDMA, NVLink and PCIe are not seen over
TCP; --backend nccl measures them, and was not tried on GPUs yet. Over TCP a link inside a host is of type loopback, any
other of type network; links are compared with those of their own type only.

--job with --backend nccl puts sends and receives on the job's own communicator, the smallest that has all the ranks
tested. A send whose receive does not come would keep a GPU for ever, so both ends say over TCP that they are ready
before each step, and only then call NCCL. What is left: a rank that dies, is stopped for seconds, or is refused by NCCL
between its word and its call leaves the other's GPU waiting, and the job with it; its buffers are then left to the
GPU, which the last line says, and nothing is begun again. Where the ranks cannot (no such communicator, other work in
NCCL or a capture under way, too little memory, ranks on other hosts by --bus), the test goes over TCP and says why.
Latency is then the mean from GPU to GPU, and a link inside a host is of type unknown where NVML does not tell.

A link that is slow only while others are busy, as behind an oversubscribed switch, is not named: the last line says
that it is sound alone. Without --baseline, where all links of a type are slow alike, none is, and a single link, or a
slow one among three, has too little to be compared with (exit 5). Which end of a slow link is slow is said only if
other partners can tell; else it is one of two. On a host with more ranks than CPUs, a rank must be slower than its
share of a CPU to be seen.

With the trees of one host only, NCCL makes a chain; here each rank is then a node of the tree. Rings of over some 25
ranks are whole in a log of NCCL only with NCCL_DEBUG_SUBSYS=INIT,GRAPH and the lines of all ranks. --job reaches the
ranks of this host, with --bus those of all hosts.
""",
    see="gh-profile gh-validate-gemm gh-trace",
)


@command("gh-validate-ring", PAGE)
def main(
    ranks: Annotated[
        str, typer.Option(metavar="0-15", help="Ranks to test: a list. Alone, so many are started here.")
    ] = "",
    topology: Annotated[
        str, typer.Option(metavar="ring|tree|both", help="Links to test; tree is NCCL's double tree.")
    ] = "ring",
    sizes: Annotated[
        str, typer.Option(help="Message sizes, as nccl-tests: K, M, G are powers of 1024.")
    ] = "16M,32M,64M",
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Transfers of each size.")] = 3,
    direction: Annotated[
        str, typer.Option(metavar="both|one", help="Both ends send at once, or the first alone.")
    ] = "both",
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="NCCL_DEBUG=INFO log that tells the library's rings and trees."),
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="ID", help="Test inside this running job; empty: the newest one.")
    ] = None,
    suspects: Annotated[
        str, typer.Option(metavar="-", help="Filter: test when a suspected link arrives on stdin, forward all.")
    ] = "",
    every_s: Annotated[float, typer.Option(min=0, help="With --suspects: at most one test in so many seconds.")] = 60.0,
    backend: Annotated[
        str,
        typer.Option(
            metavar="tcp|gloo|nccl", help="By what to exchange: gloo under a launcher, nccl there or in a job."
        ),
    ] = "tcp",
    interface: Annotated[
        str, typer.Option(metavar="IF", help="Interface or address to use, or host=IF,...; else what Gloo uses.")
    ] = "",
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compare with earlier runs in this file, too, and add to it.", show_default=False
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, max=3600, help="An exchange that takes longer has no result.")
    ] = 30,
    bus: Bus = "",
    gather: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Started by srun, torchrun or mpirun: where the ranks meet, without torch."),
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> Exit:
    """Test the links between ranks by disjoint pairs, in a number of passes that does not grow with the ranks.

    In each pass every rank exchanges data with one other, all pairs at once. Bandwidth is compared between links of
    the same type; what looks slow is tested again alone, beside links that do not, and then its ends with other
    partners, which tells the slow end from the slow link. Without --job the ranks are processes of this command on this
    host (or, with --backend, those of torchrun, srun or mpirun); with it, those of a running job, which stands still
    meanwhile and goes on in every case. A table is on stderr, records are on stdout.
    """
    from ghtools.job.alone import Alone
    from ghtools.job.rank_list import parse_ranks
    from ghtools.locate.ring_fabric import MAX_SIZES, Plan
    from ghtools.locate.ring_history import History
    from ghtools.locate.ring_out import job_of
    from ghtools.locate.ring_plan import parse_sizes, parse_where

    if direction not in ("both", "one"):
        raise GhError(f"cannot test the direction {direction!r}", "it is not known", "both or one")
    if backend not in ("tcp", "gloo", "nccl"):
        raise GhError(f"cannot use the backend {backend!r}", "it is not known", "tcp, gloo or nccl")
    if suspects not in ("", "-"):
        raise GhError(f"cannot read suspects from {suspects!r}", "they come on stdin", "--suspects -")
    chosen = parse_ranks(ranks) if ranks else []
    inside = job is not None or bool(suspects)
    plan = Plan(parse_sizes(sizes, MAX_SIZES), repeats, direction == "both", hard_s=timeout_s)
    plan = plan.for_job() if inside else plan
    say = Voice("gh-validate-ring", burst=1_000_000)
    tell = (lambda text: None) if quiet else say

    def show(row: str) -> None:
        if not quiet:
            print(row, file=sys.stderr, flush=True)

    where = parse_where(interface)
    told = _graph(graph, len(chosen), tell)  # now, while no job stands still; so the next
    history = History(baseline) if baseline else None

    def make(fabric: Fabric, hosts: dict[int, str], left_s: Callable[[], float] = lambda: math.inf) -> RingTest:
        from ghtools.locate.ring_plan import plan as plan_links
        from ghtools.locate.ring_test import RingTest

        schedule, how = plan_links(sorted(fabric.ends), hosts, topology, told)
        tell(f"{len(schedule.links)} links of {len(fabric.ends)} ranks in {schedule.passes} passes: {how}")
        return RingTest(fabric, schedule, plan, how, tell, show, left_s, history)

    @contextmanager
    def over_tasks(held: Held) -> Iterator[RingTest]:
        """One test over held ranks; the listeners are let go after it."""
        from ghtools.job.budget import left_s
        from ghtools.locate.ring_fabric import TaskFabric
        from ghtools.locate.ring_nccl import nccl_or_tcp

        these = chosen or held.ranks
        if missing := sorted(set(these) - set(held.ranks)):
            raise GhError(f"cannot test rank {missing[0]}", "it is not among the ranks of the job", "--ranks of it")
        fabric = nccl_or_tcp(held, these, where, tell) if backend == "nccl" else TaskFabric(held, these, where)
        try:
            yield make(fabric, dict(held.hosts), lambda: left_s(held))
        finally:
            fabric.close()

    if inside and backend == "gloo":
        raise GhError("cannot test a job by torch.distributed", "only its own ranks can", "--backend tcp or nccl")
    if suspects:
        return _filter(job or "", bus, over_tasks, every_s, history, tell)
    if backend != "tcp" and not inside:
        return _launched(backend, chosen, make, history, plan)
    with ExitStack() as stack:
        held: Held
        own = None
        if job is not None:
            from ghtools.locate.in_job import stopped

            held = stack.enter_context(stopped(job, tell, bus=bus_of(bus)))
        elif gather is not None:
            together = _gathered(gather)
            if together is None:
                return Exit.OK  # rank 0 writes
            held = stack.enter_context(together)
        elif chosen:
            held = own = stack.enter_context(Alone(chosen, strict=True, stopping=lambda: stop.requested))
            if verbose:
                say("pids: " + ", ".join(f"{rank}: {pid}" for rank, pid in sorted(own.pids.items())))
        else:
            raise GhError("no ranks are named", "", "--ranks 0-15, or --job ID")
        ran = _run(stack.enter_context(over_tasks(held)))
        ranks_of_ours = job_of(own) if own else None
    return _written(job or "", ran, ranks_of_ours, history)


def _graph(path: Path | None, size: int, warn: Callable[[str], None]) -> Graph | None:
    if path is None:
        return None
    from ghtools.source.nccl_graph import read_graph

    return read_graph(Input([path]), path.name, size, warn)


def _gathered(place: Path) -> Gathered | None:
    """All ranks that a launcher started, in rank 0; None in the others, after rank 0 has let them go."""
    from ghtools.job.gather import Gathered, follow
    from ghtools.source.uprobe_process import rank_of

    rank, _, world = rank_of(os.environ)
    if rank < 0 or world < 1:
        raise GhError("cannot gather", "no launcher says which rank this is", "srun, torchrun or mpirun before it")
    if rank == 0:
        return Gathered(place, world)
    if not follow(place, rank):
        raise GhError("cannot gather", f"rank 0 was not heard of in {place}", code=Exit.UNKNOWN)
    return None


@dataclass
class _Ran:
    """What a test made, kept until no job stands still any more: a reader that is slow must not hold it."""

    records: list[Record]
    code: Exit
    error: GhError | None = None


def _run(test: RingTest) -> _Ran:
    records: list[Record] = []
    try:
        for record in test.run():
            records.append(record)  # those before an error count
    except GhError as error:
        return _Ran(records, error.code, error)
    return _Ran(records, test.code)


def _written(job: str, ran: _Ran, ranks: Job | None, history: History | None) -> Exit:
    """Write a test's records, on a terminal the table alone, and what is to be remembered of it."""
    from ghtools.locate.ring_out import head_of
    from ghtools.stream.records import End

    if not os.isatty(1):
        writer = output()
        writer.write(head_of("gh-validate-ring", job))
        for record in ([ranks] if ranks else []) + ran.records:
            writer.write(record)
        writer.write(End(reason=str(ran.error)) if ran.error else End())
    if ran.error:
        raise ran.error
    if history:
        history.save()
    return ran.code


def _filter(
    job: str,
    bus: str,
    over_tasks: Callable[[Held], AbstractContextManager[RingTest]],
    every_s: float,
    history: History | None,
    say: Callable[[str], None],
) -> Exit:
    """Forward stdin; test the job when a suspect asks for it."""
    import time

    from ghtools.locate.in_job import stopped
    from ghtools.locate.ring_stage import RingStage
    from ghtools.stream.pipeline import run_filter

    def make(head: Head) -> RingStage:
        def test(suspect: Suspect) -> Iterator[Record]:
            with stopped(job or head.job, say, bus=bus_of(bus)) as held, over_tasks(held) as one:
                yield from one.run()
            if history:
                history.save()

        return RingStage(test, every_s, time.monotonic, say)

    clean = run_filter("gh-validate-ring", Input(None), output(), make, (), keep=True, warn=say)
    return Exit.OK if clean else Exit.INPUT


def _launched(
    backend: str,
    chosen: list[int],
    make: Callable[[Fabric, dict[int, str]], RingTest],
    history: History | None,
    plan: Plan,
) -> Exit:
    """One process of several that a launcher has started: rank 0 writes, the others exchange."""
    from ghtools.locate.ring_torch import joined

    with joined(backend, chosen, plan) as fabric:
        if fabric is None:  # not rank 0: all was done on entering
            return Exit.OK
        ran = _run(make(fabric, {rank: end.host for rank, end in fabric.ends.items()}))
    return _written("", ran, None, history)
