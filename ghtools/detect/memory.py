# SPDX-License-Identifier: Apache-2.0
"""What one rank's detector is told and what it remembers between values (besides series.State)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """What a user may set; the defaults are meant for every job."""

    min_change: float = 0.10
    schedule: tuple[int, ...] = ()  # iteration indices at which the pace changes on purpose
    slack: int = 3  # a change this many iterations from the schedule is the planned one
    look_min: float = 0.9
    near_min: float = 0.5

    @property
    def min_log(self) -> float:
        return log(1 + self.min_change)


@dataclass
class Pending:
    """A candidate change: `at` is its first value."""

    at: int
    side: int  # +1 slower, -1 faster
    probability: float
    said: bool = False  # a suspected record was made
    since: int = 0


@dataclass
class Episode:
    """From a confirmed onset until relief."""

    number: int
    base: float  # log level before it
    level: float  # log level now
    onset_index: int
    onset_at: int
    onset_t_ns: int
    total_before: float
    minor: bool = False  # a loss under the reporting threshold
    verdict: str = "fail-slow"


def _none() -> Floats:
    return np.empty(0, np.float32)


@dataclass
class Memory:
    """What survives a change: plain values and samples of log durations, so that it can be saved."""

    incarnation: int = 0
    segment: int = 0  # first value of the present level
    began: int = 0  # first value after the start or a restart
    restarted: bool = False  # not yet compared with the process before
    rejoined: bool = False  # compared, and found as before: its samples still hold
    prior: Floats = field(default_factory=_none)  # sample of the level before the restart
    episodes: int = 0
    pending: Pending | None = None
    episode: Episode | None = None
    base: Floats = field(default_factory=_none)  # sample of the healthy level, log durations
    anchor: Floats = field(default_factory=_none)  # sample of the level last reported
    burst: int = 0  # length of the longest burst that passed lately
    burst_at: int = 0
    burst_size: float = 0.0  # its height, log
