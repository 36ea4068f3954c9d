# SPDX-License-Identifier: Apache-2.0
"""How long a job may stand: tests of held ranks that end in time, whatever the ranks are like (issue 4)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from .pause import Held
from .ring import CommInfo
from .task import Task, TaskResult

LAST_S = 0.2  # that the last words to the ranks may take when the time is over


class Bounded:
    """`Held` (job/pause.py) whose tasks get no more time than is left of `stand_s`, from now on."""

    def __init__(self, held: Held, stand_s: float) -> None:
        self.held, self._until = held, time.monotonic() + stand_s

    @property
    def ranks(self) -> list[int]:
        """The ranks that are held."""
        return self.held.ranks

    @property
    def hosts(self) -> Mapping[int, str]:
        """Their hosts."""
        return self.held.hosts

    @property
    def pids(self) -> Mapping[int, int]:
        """Their process ids."""
        return self.held.pids

    @property
    def comms(self) -> Mapping[int, Sequence[CommInfo]]:
        """Their communicators, where they are known (of the ranks of this host)."""
        return comms_of(self.held)

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 if none are."""
        return max(0.0, self._until - time.monotonic())

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """As Held.run; who is not done in time has no result."""
        return self.held.run(tasks, max(LAST_S, min(timeout_s, self.left_s)))


def left_s(held: Held) -> float:
    """Seconds that tests of these ranks may still take; infinite for ranks that nobody waits for."""
    return held.left_s if isinstance(held, Bounded) else math.inf


def comms_of(held: Held) -> Mapping[int, Sequence[CommInfo]]:
    """The communicators by rank; empty for ranks of other hosts and of our own."""
    made: Mapping[int, Sequence[CommInfo]] = getattr(held, "comms", {})
    return made
