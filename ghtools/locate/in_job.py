# SPDX-License-Identifier: Apache-2.0
"""Hold a running job at a boundary that is found in its own calls (gh-validate-gemm and gh-validate-ring --job)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ghtools.job.budget import Bounded
from ghtools.job.paths import JobDir
from ghtools.job.pause import DEADLINE_S, CouldNotTell, newest_rings, pause
from ghtools.job.ring import RingReader, Tallies
from ghtools.source.live import LiveSource, job_path_of
from ghtools.stream.bus_link import BusUrl

from .boundary import Boundary, BoundaryFinder, Place, meet
from .cut import Known

FIND_S = 60.0  # for the iteration to be found
COME_S = 5.0  # for ranks that have not made a call yet
POLL_S = 0.01
CALLS_S = 0.2  # for calls that were counted to be seen
ATTEMPTS = 3
STAND_S = 4.5  # for the tests; with the ranks' coming and going the job stands under 5 s (issue 4)
AGAIN_S = 2.0  # another test may hold the job, for STAND_S at most
TOGETHER_S = 1.0  # and three iterations: within that of the first rank the others come, or never
COME_FACTOR = 4.0  # the boundary may be that much later than foretold


@contextmanager
def stopped(
    job_id: str,
    say: Callable[[str], None],
    find_s: float = FIND_S,
    bus: BusUrl | None = None,
    stand_s: float = STAND_S,
) -> Iterator[Bounded]:
    """All ranks of a job, standing at a boundary while the block runs. Empty `job_id`: the newest job on this host.

    Tasks get no more than `stand_s` seconds together. With `bus`, the ranks of all its hosts, each of which must run
    `gh-trace --serve`; else the job must be on this host alone.

    Raises MissingError if there is no such job, CouldNotTell (exit 5) if it cannot be held, with the reason; the job
    goes on in every case.
    """
    with ExitStack() as stack:
        if bus is not None:
            from .bus_pause import stopped_over_bus

            name = job_id or job_path_of("", lambda: False).job
            yield Bounded(stack.enter_context(stopped_over_bus(bus, name, say)), stand_s)
            return
        job = job_path_of(job_id, lambda: False)
        for left in reversed(range(ATTEMPTS)):
            where = _find(job, find_s)
            how = "" if where.matched else "; their calls could not be matched, so they may not all come"
            say(f"holding job {job.job}: {len(where.stops)} ranks, in about {where.in_s:.1f} s{how}")
            come_s = DEADLINE_S + COME_FACTOR * where.in_s
            now = job_path_of(job.job, lambda: False)
            try:
                held = stack.enter_context(pause(now, where.stops, come_s, TOGETHER_S + 3 * where.iteration_s))
                break
            except CouldNotTell as error:
                if not (left and error.again):  # another wait for ranks that do not come would harm the job
                    raise
                say(f"{error}; once more")
                time.sleep(AGAIN_S)
        began = time.monotonic()
        stack.callback(lambda: say(f"the job stood for {time.monotonic() - began:.2f} s"))
        yield Bounded(held, stand_s)


def find_places(job: JobDir, find_s: float, whole: bool) -> tuple[dict[int, Place], dict[int, Known] | None]:
    """Follow the job until it is known where its ranks on this host stand, and their calls if they can be had.

    `whole`: it must have no ranks elsewhere.

    CouldNotTell if that does not come about within `find_s`.
    """
    source, finder = LiveSource(job.path, time.monotonic, time.time_ns), BoundaryFinder()
    began = time.monotonic()
    try:
        while True:
            finder.feed(source.poll())
            here, waited_s = len(finder.running), time.monotonic() - began
            complete = here >= finder.world_size
            if whole and not complete and here and waited_s > min(COME_S, find_s):
                raise CouldNotTell(
                    f"cannot hold job {job.job}",
                    f"{here} of its {finder.world_size} ranks run on this host",
                    "--bus URL where the job has several hosts",
                )
            if source.done or not job.alive:
                raise CouldNotTell(f"cannot hold job {job.job}", "it has ended")
            if (complete or not whole) and (places := finder.places()) is not None:
                return places, _known(job, source, finder)
            if waited_s > find_s:
                raise CouldNotTell(f"cannot hold job {job.job}", f"{finder.why_not} after {find_s:g} s")
            time.sleep(POLL_S)
    finally:
        source.close()


def _known(job: JobDir, source: LiveSource, finder: BoundaryFinder) -> dict[int, Known] | None:
    """The ranks' calls, and how many there were before; None if they cannot be had in a moment."""
    tallies: dict[int, Tallies] = {}
    for rank, ring in newest_rings(job).items():
        if rank in finder.running:
            with RingReader(ring.path, start="now") as reader:
                taken = reader.tallies()
            if taken is None:
                return None
            tallies[rank] = taken
    deadline = time.monotonic() + CALLS_S
    while time.monotonic() < deadline:
        finder.feed(source.poll())
        if (known := finder.known(tallies)) is not None:
            return known
        time.sleep(POLL_S)
    return None


def _find(job: JobDir, find_s: float) -> Boundary:
    places, known = find_places(job, find_s, whole=True)
    where = meet(places, time.time_ns(), known=known)
    if where is None:
        raise CouldNotTell(f"cannot hold job {job.job}", "there is no point at which all its ranks can stop together")
    return where
