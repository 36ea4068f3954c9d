# SPDX-License-Identifier: Apache-2.0
"""gh-validate-gemm: is a rank's CPU or GPU slow?"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ghtools import __version__
from ghtools.stream.errors import Exit, GhError

from ._cli import Bus, Page, Quiet, Voice, bus_of, command, output, run_filter

if TYPE_CHECKING:
    from ghtools.job.pause import Held
    from ghtools.locate.gemm_session import Session
    from ghtools.locate.gemm_stage import ValidateStage
    from ghtools.stream.records import Head, Record

PAGE = Page(
    reads="suspect change",
    writes="gemm finding",
    exits="0 1 2 3 4 5",
    exits_text="With --suspects the stream says what was found, and the command ends as other filters do: 0 or 3.",
    examples="""\
Is one of this host's CPUs slow, or held back? Eight processes, side by side:

    gh-validate-gemm --ranks 0-7

The same for a lone machine, against its own past; the first run begins the history:

    gh-validate-gemm --ranks 0-3 --baseline ~/.local/state/ghtools/gemm.jsonl

On all hosts of a launcher; rank 0 prints what was found:

    srun gh-validate-gemm --backend gloo
    torchrun --nnodes 2 --nproc-per-node 8 ... --no-python gh-validate-gemm --backend gloo
    srun gh-validate-gemm --gather /shared/empty-directory

In a running job, all ranks, for about two seconds:

    gh-validate-gemm --job "" | gh-show

Behind the one who suspects:

    gh-trace --profile 100000 | gh-bocd --keep | gh-profile | gh-validate-gemm --suspects - | gh-alert
""",
    overhead="""\
The job stands still while it is tested: (repeats + 1/4) windows for each of two tests, 2.6 s as it is set, and some
tenths to start and end. A test that could not tell is made once more if there is time, and the test of memory is left
out if the multiplication has shown who is slow; after 4.5 s in all the job goes on. A rank takes 6 MB for the
multiplication and four times the last-level cache (64 MB to 1 GB) for the memory test, for that time; none of it if
that were, for all ranks of a host together, over half of the memory that is left.

A rank with a GPU has five tests of it, in windows of a quarter, and of its CPU the multiplication alone: 2.9 s as it is
set, and what it takes to fill the matrices and to look at products, which was not measured. That takes up to 2 GB of
the GPU's memory for the time of a test, never over half of what is free: matrices and arrays are halved until they fit
on all GPUs. A handle of cuBLASLt, and the code that it loads, stay in the process.
""",
    caveats="""\
Nothing of what is said of GPUs was ever run on one. In a job each rank's GPU is tested by the rank's own process: FP8,
FP16, BF16 and FP32 by the cuBLASLt that it has loaded (none is loaded for it), and copies in its memory. That part was
checked against NVIDIA's headers, and tested on libraries that stand for a driver and cuBLASLt. It needs a driver of
CUDA 11.2 or newer, and is left out while a stream is captured into a graph. Without a job (--devices gpu) torch does
it; a GPU in use by others, or with MIG, is then skipped. Rates of the two ways are not compared: one multiplies whole
numbers, with which a GPU is faster, the other random ones.

A window should be a whole number of the periods of a CPU quota (100 ms as a rule). Ranks that share CPUs contend in
the test as in the job; a rate is then a share, not what the CPU can do. Peers must be three in all and of one kind:
ranks on different CPUs with the same vector instructions are compared as if they were equal.

In a directory on a network file system ranks may see what rank 0 asks some seconds apart, and then they do not all
contend at once; over torch.distributed (--backend gloo) they do. A history is not locked: of two runs at once, one is
not remembered.
""",
    see="gh-profile gh-validate-ring gh-alert gh-show",
)


@command("gh-validate-gemm", PAGE)
def main(
    ranks: Annotated[
        str, typer.Option(metavar="LIST", help="Ranks to test, as 0-7 or 0,2,5; without a job, so many processes.")
    ] = "",
    job: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Test inside this running job; '' is the newest.", show_default=False),
    ] = None,
    suspects: Annotated[
        str, typer.Option(metavar="-", help="Filter: test when a suspected rank arrives on stdin, forward all.")
    ] = "",
    bus: Bus = "",
    gather: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Started by srun, torchrun or mpirun: where the ranks meet.", show_default=False
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            metavar="gloo",
            help="Started by srun, torchrun or mpirun: meet over torch.distributed, without a directory.",
            show_default=False,
        ),
    ] = "",
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compare with each device's history in this file, and add to it.", show_default=False
        ),
    ] = None,
    devices: Annotated[
        str, typer.Option(metavar="cpu|gpu|0,1", help="What to test without a job: CPUs, all GPUs, or these.")
    ] = "cpu",
    repeats: Annotated[int, typer.Option(min=3, max=16, help="Windows of each test.")] = 3,
    window_ms: Annotated[int, typer.Option(min=10, max=5000, help="Length of a window.")] = 400,
    size: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=32768,
            help="Edge of the matrices; 0 is 384 on a CPU, 8192 on a GPU.",
            show_default=False,
        ),
    ] = 0,
    threads: Annotated[int, typer.Option(min=1, max=512, help="Threads of each rank.")] = 1,
    every_s: Annotated[float, typer.Option(min=0, help="With --suspects: at most one test in so many seconds.")] = 60.0,
    quiet: Quiet = False,
) -> Exit:
    """Multiply matrices on all ranks at once, and say which rank is slow, by how much and why.

    Each rank does as many FP32 multiplications as fit a window, several times, and then the same with a triad over
    memory. A rank is held against the median of the others, and against its own history if there is one; over 1.1
    times, and over three standard errors, is slow. The CPU time that it got, its cgroup's quota and the time it waited
    for a CPU tell whether it was throttled, contended, or slow while it ran. On a terminal the findings are printed as
    text; else all results are records.
    """
    from ghtools.job.rank_list import parse_ranks
    from ghtools.locate.gemm_session import Session
    from ghtools.locate.gemm_test import EDGE, Plan, bandwidth_bytes

    say = Voice("gh-validate-gemm")
    wanted = parse_ranks(ranks) if ranks else None
    plan = Plan(size or (EDGE if devices == "cpu" else 0), bandwidth_bytes(), repeats, window_ms, threads)
    session = Session(plan, baseline)
    if suspects not in ("", "-"):
        raise GhError(f"cannot read suspects from {suspects!r}", "they come on stdin", "--suspects -")
    if suspects:
        return _filter(job, bus, session, every_s, say)
    if devices != "cpu":
        return _devices(devices, session, say, quiet)
    if gather is not None:
        return _launched(gather, wanted, session, say, quiet)
    if backend:
        return _over_torch(backend, wanted, session, say, quiet)
    if job is None and wanted is None and _world() > 1:
        raise GhError(
            "this was started by a launcher",
            "its ranks have no place to meet",
            "--backend gloo, --gather DIR, or --ranks LIST",
        )
    with _held(job, bus, wanted, say) as held:
        measured = session.test(held, wanted)
    return _tell(job or "", session, session.judged(measured), say, quiet)


def _held(job: str | None, bus: str, wanted: list[int] | None, say: Voice) -> AbstractContextManager[Held]:
    """The ranks of a job, or so many processes of our own."""
    if job is not None:
        return _stopped(job, bus, say)
    from ghtools.job.alone import Alone

    return Alone(wanted if wanted is not None else range(max(3, min(8, len(os.sched_getaffinity(0))))))


def _stopped(job: str, bus: str, say: Voice) -> AbstractContextManager[Held]:
    """The ranks of a job on this host, or with a bus on all its hosts."""
    from ghtools.locate.in_job import stopped

    return stopped(job, say, bus=bus_of(bus))


def _world() -> int:
    from ghtools.source.uprobe_process import rank_of

    return rank_of(os.environ)[2]


def _launched(place: Path, wanted: list[int] | None, session: Session, say: Voice, quiet: bool) -> Exit:
    """As one of many ranks that a launcher started."""
    from ghtools.job.gather import Gathered, follow
    from ghtools.source.uprobe_process import rank_of

    rank, _, world = rank_of(os.environ)
    if rank < 0 or world < 1:
        raise GhError("cannot gather", "no launcher says which rank this is", "srun, torchrun or mpirun before it")
    if rank > 0:
        if follow(place, rank):
            return Exit.OK
        say(f"rank 0 was not heard of in {place}")
        return Exit.UNKNOWN
    with Gathered(place, world) as held:
        measured = session.test(held, wanted)
    return _tell("", session, session.judged(measured), say, quiet)


def _over_torch(backend: str, wanted: list[int] | None, session: Session, say: Voice, quiet: bool) -> Exit:
    """As one of many ranks that a launcher started, which meet over torch.distributed."""
    from ghtools.locate.torch_held import held_over_torch

    if backend != "gloo":
        raise GhError(f"cannot gather over {backend!r}", "it is not known", "--backend gloo")
    with held_over_torch("gh-validate-gemm") as held:
        if held is None:
            return Exit.OK  # rank 0 prints
        measured = session.test(held, wanted)
    return _tell("", session, session.judged(measured), say, quiet)


def _devices(devices: str, session: Session, say: Voice, quiet: bool) -> Exit:
    from ghtools.job.rank_list import parse_ranks
    from ghtools.locate.gemm_gpu import measure_gpus

    chosen = None if devices == "gpu" else parse_ranks(devices)
    return _tell("", session, session.judged(measure_gpus(chosen, session.plan)), say, quiet)


def _tell(job: str, session: Session, records: Sequence[Record], say: Voice, quiet: bool) -> Exit:
    """Print text for a person, or write the records."""
    from ghtools.locate.gemm_session import summary
    from ghtools.stream.records import End, Finding
    from ghtools.stream.records import Head as HeadRecord
    from ghtools.view.sentence import one_line

    if os.isatty(1):
        print(one_line(summary(records)))
        for record in records:
            if isinstance(record, Finding):
                known = "" if record.verdict == "could not tell" else f"{record.verdict}: "
                print(one_line(known + record.text))
        return session.worst
    writer = output()
    host = socket.gethostname()
    writer.write(HeadRecord(tool="gh-validate-gemm", version=__version__, host=host, job=job, t_ns=time.time_ns()))
    for record in records:
        writer.write(record)
    writer.write(End())
    if not quiet:
        say(one_line(summary(records)))
    return session.worst


def _filter(job: str | None, bus: str, session: Session, every_s: float, say: Voice) -> Exit:
    """Between two stages of a chain."""
    from ghtools.locate.gemm_stage import ValidateStage

    def make(head: Head) -> ValidateStage:
        def test(ranks: set[int]) -> list[Record]:
            with _stopped(job if job is not None else head.job, bus, say) as held:
                measured = session.test(held)
            return session.judged(measured, ranks)

        return ValidateStage(test, every_s, time.monotonic, time.time_ns, say)

    return run_filter("gh-validate-gemm", None, make, (), say=say)
