# SPDX-License-Identifier: Apache-2.0
"""Time equal stretches of a running job with tracking on and off, in alternating windows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ghtools.job.control import ControlPage
from ghtools.job.ring import RingReader
from ghtools.stream.errors import GhError, MissingError

LOOK_S = 0.001  # how often the call counter is looked at: the error of one end of a window
STUCK_S = 60.0


def alternate(
    job_dir: Path,
    ring: Path,
    calls: int,
    pairs: int,
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
) -> tuple[list[float], list[float]]:
    """Seconds that `calls` calls of one rank took, `pairs` times with tracking on and off each.

    The order of each pair is turned round (on off, off on, ...), so that a drift of the machine does not count. A
    window is bounded by the rank's own call counter, which counts while tracking is off as well. The first call
    after a switch is waited for before a window begins. Tracking off has a lease: if this process dies, it is on
    again at the lease's end.
    """
    on: list[float] = []
    off: list[float] = []
    with ControlPage.open(job_dir) as page, RingReader(ring, start="now") as reader:
        try:
            for pair in range(pairs):
                for want in (True, False) if pair % 2 == 0 else (False, True):
                    if stopped():
                        return on[: len(off)], off[: len(on)]
                    (on if want else off).append(_window(page, reader, want, calls))
                progress(pair + 1)
        finally:
            page.set_tracking(True)
    return on, off


def _window(page: ControlPage, reader: RingReader, want: bool, calls: int) -> float:
    """Switch, wait for the switch to be seen, time `calls` calls."""
    epoch = page.set_tracking(want, lease_s=2 * STUCK_S)
    _until(reader, lambda: reader.live().control_epoch >= epoch)
    first = reader.live().calls + 1
    began = _until(reader, lambda: reader.live().calls >= first)
    return _until(reader, lambda: reader.live().calls >= first + calls) - began


def _until(reader: RingReader, reached: Callable[[], bool]) -> float:
    """When a condition came to hold."""
    deadline = time.monotonic() + STUCK_S
    while not reached():
        now = time.monotonic()
        if reader.state() != "running":
            raise MissingError("cannot measure the overhead", "the job ended meanwhile")
        if now > deadline:
            raise GhError("cannot measure the overhead", f"the rank made no call for {STUCK_S:.0f} s")
        time.sleep(LOOK_S)
    return time.monotonic()
