# SPDX-License-Identifier: Apache-2.0
"""Hold a running job at a boundary that is found in its own calls (gh-validate-gemm and gh-validate-ring --job)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ghtools.job.paths import JobDir
from ghtools.job.pause import DEADLINE_S, CouldNotTell, HeldRanks, pause
from ghtools.source.live import LiveSource, job_path_of

from .boundary import Boundary, BoundaryFinder

FIND_S = 60.0  # for the iteration to be found
COME_S = 5.0  # for ranks that have not made a call yet
POLL_S = 0.01
ATTEMPTS = 3
COME_FACTOR = 4.0  # the boundary may be that much later than foretold


@contextmanager
def stopped(job_id: str, say: Callable[[str], None], find_s: float = FIND_S) -> Iterator[HeldRanks]:
    """All ranks of a job on this host, standing at a boundary while the block runs. Empty `job_id`: the newest job.

    Raises MissingError if there is no such job, CouldNotTell (exit 5) if it cannot be held, with the reason; the job
    goes on in every case.
    """
    job = job_path_of(job_id, lambda: False)
    with ExitStack() as stack:
        for left in reversed(range(ATTEMPTS)):
            where = _find(job, find_s)
            say(f"holding job {job.job}: {len(where.stops)} ranks, in about {where.in_s:.1f} s")
            come_s = DEADLINE_S + COME_FACTOR * where.in_s
            now = job_path_of(job.job, lambda: False)
            try:
                held = stack.enter_context(pause(now, where.stops, come_s, DEADLINE_S + 2 * where.iteration_s))
                break
            except CouldNotTell as error:
                if not left:
                    raise
                say(f"{error}; once more")
        began = time.monotonic()
        stack.callback(lambda: say(f"the job stood for {time.monotonic() - began:.2f} s"))
        yield held


def _find(job: JobDir, find_s: float) -> Boundary:
    """Follow the job until a boundary can be told."""
    source, finder = LiveSource(job.path, time.monotonic, time.time_ns), BoundaryFinder()
    try:
        deadline = time.monotonic() + find_s
        while True:
            finder.feed(source.poll())
            here = len(finder.running)
            if finder.world_size > here > 0 and time.monotonic() > deadline - find_s + min(COME_S, find_s):
                raise CouldNotTell(
                    f"cannot hold job {job.job}",
                    f"{here} of its {finder.world_size} ranks run on this host",
                    "--bus URL where the job has several hosts",
                )
            if source.done or not job.alive:
                raise CouldNotTell(f"cannot hold job {job.job}", "it has ended")
            where = finder.at(time.time_ns()) if here >= finder.world_size else None
            if where is not None:
                return where
            if time.monotonic() > deadline:
                raise CouldNotTell(f"cannot hold job {job.job}", f"{finder.why_not} after {find_s:g} s")
            time.sleep(POLL_S)
    finally:
        source.close()
