# SPDX-License-Identifier: Apache-2.0
"""When to time executions by itself (gh-run): a stretch of the healthy job, and whenever the job gets slow (issue 4).

What is asked for is a lease that is renewed while it is wanted, so a tool that dies leaves nothing on. Records decide
when, and nothing else: `AutoProfile` is told them and tells what to ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ghtools.stream.errors import GhError
from ghtools.stream.records import PHASE_CODE, Change, Iters, Period, Record

from .control import MAX_LEASE_S, ControlPage

BASELINE_FROM, BASELINE = 15, 12  # steady iterations to wait, then to time, of the healthy job: what to compare with
SUSPECTED, CONFIRMED = 12, 30  # iterations timed after a suspicion, after a confirmed onset or another step
AFTER = 12  # and after the relief: the healthy job as it is then
SPARE, SHARE = 48, 0.1  # suspicions alone may take so many iterations, and this share of all
LEASE_ITERS, LEASE_S = 4.0, 5.0  # a lease holds for so many iterations and seconds more
NOT_SLOW = ("warm-up", "restart", "planned", "blip")


class AutoProfile:
    """Decides from a chain's records; `feed` returns the lease to ask for in seconds, 0 to let go, None for nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.wanted = 0  # iterations still to time
        self._counted = 0  # iterations of the rank that is ahead
        self._done: dict[int, int] = {}  # by rank
        self._iter_s = 0.0
        self._healthy: int | None = None  # count at which the baseline may begin; None: it was taken
        self._slow = self._suspicion = False
        self._spent = 0  # iterations timed for suspicions
        self._until_s = 0.0  # of the lease that stands

    def feed(self, record: Record) -> float | None:
        """Take one record."""
        if isinstance(record, Iters):
            return self._iters(record)
        if isinstance(record, Change) and record.level == "job":
            return self._change(record)
        if isinstance(record, Period) and record.rank == -1:
            # Another pattern of calls is another job to compare with.
            self._healthy = self._counted + BASELINE_FROM if record.state == "found" else None
        return None

    def _change(self, change: Change) -> float | None:
        onset = change.type in ("onset", "drift") and change.verdict not in NOT_SLOW
        if change.stage == "withdrawn" and self._suspicion:
            self._suspicion = False
            return self._want(0, anew=True)
        if onset and change.stage == "confirmed":
            self._slow, self._suspicion = True, False
            self._iter_s = max(self._iter_s, change.after_ns / 1e9)
            return self._want(CONFIRMED)
        if onset and change.stage == "suspected" and not self._slow:
            if self._spent > SPARE + SHARE * self._counted:
                return None
            self._suspicion = True
            return self._want(SUSPECTED)
        if change.type == "relief" and change.stage == "confirmed":
            self._slow = self._slow and change.verdict not in ("recovered", "planned")  # better is not yet well
            return self._want(AFTER, anew=True)
        return None

    def _want(self, iters: int, anew: bool = False) -> float | None:
        self.wanted = iters if anew else max(self.wanted, iters)
        return self._lease()

    def _iters(self, record: Iters) -> float | None:
        if record.rank < 0 or not len(record.index):
            return None
        steady = record.dur_ns[record.phase == PHASE_CODE["steady"]]
        if len(steady):
            self._iter_s = float(steady[-1]) / 1e9
        done = self._done[record.rank] = self._done.get(record.rank, 0) + len(record.index)
        new = done - self._counted
        if new <= 0:
            return None  # another rank has told of it
        self._counted = done
        if self._healthy is not None and self._counted >= self._healthy and not self._slow and not self._suspicion:
            self._healthy = None
            return self._want(BASELINE)
        if not self.wanted:
            return None
        if self._suspicion:
            self._spent += min(new, self.wanted)
        self.wanted = max(0, self.wanted - new)
        if not self.wanted:
            self._suspicion = False
        return self._lease()

    def _lease(self) -> float | None:
        """What must be asked for now, given the lease that stands."""
        now = self._clock()
        if not self.wanted:
            held, self._until_s = self._until_s > now, 0.0
            return 0.0 if held else None
        lease_s = min(LEASE_S + LEASE_ITERS * self._iter_s, MAX_LEASE_S)
        if self._until_s - now > lease_s / 2:
            return None
        self._until_s = now + lease_s
        return lease_s


class LocalPage:
    """Asks the control page of a job on this host, which is opened when first needed."""

    def __init__(self, job_dir: Path, say: Callable[[str], None]) -> None:
        self._dir, self._say = job_dir, say
        self._page: ControlPage | None = None
        self._failed = False

    def __call__(self, lease_s: float) -> None:
        """Time executions for so long, or stop (0). A page that cannot be had is said once."""
        try:
            if self._page is None:
                self._page = ControlPage.open(self._dir)
            self._page.set_profiling(lease_s > 0, lease_s)
        except GhError as error:
            if not self._failed:
                self._failed = True
                self._say(f"executions are not timed: {error}")

    def close(self) -> None:
        """Let go of the page; what was asked for runs out."""
        if self._page is not None:
            self._page.close()
