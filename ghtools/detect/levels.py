# SPDX-License-Identifier: Apache-2.0
"""The levels of one rank: the present one, the healthy one, the one last reported, and how a change is measured
against them. Nothing here makes a record."""

from __future__ import annotations

from math import log

import numpy as np

from .memory import Episode, Floats, Memory, Settings
from .series import Model, Series
from .verify import N_CONFIRM, compare

FIRST = 10  # values of a level before anything is said
REFINE = (30, 60, 100)  # then its scale and level are measured again
REFRESH = 2000
BEFORE = 100  # values before a change that it is compared with
GUARD_EVERY, GUARD_N, GUARD_MINOR = 10, 30, 50
MINOR_LOG = log(1.05)  # a smaller loss is not looked for
WARMUP_ITERS = 100  # getting faster this early is warm-up
FADE_N = 30  # values at the healthy level that end an episode which faded out
BURST_MEMORY = 500  # values for which a passed burst is remembered
BURST_MOST, BURST_FACTOR = 20, 1.5
SCALE_FLOOR = 0.005
BACK_N, BACK_NATS = 5, 7.5  # values at the healthy level that end an episode, and their weight
SETTLE = 8  # values of a restarted process that are not compared
LEAST_BEFORE = 8  # values of a new process before which no change is placed
RETHINK = 8  # a candidate this old gives way to a newer one


class Levels:
    """State and measures of one rank; watch.Watch decides with them."""

    def __init__(
        self, model: Model, settings: Settings, state: bytes | None = None, memory: Memory | None = None
    ) -> None:
        self.settings = settings
        self.series = Series(model, state)
        self.memory = memory or Memory()
        s = self.series.state
        if state is None:
            s.look_min, s.near_min = settings.look_min, settings.near_min
            s.near_by, s.look_by = 0.7 * settings.min_log, 0.5 * settings.min_log
            s.guard_by = min(0.8 * MINOR_LOG, 0.8 * settings.min_log)
            s.wake_at = FIRST

    def arm(self, values: Floats) -> None:
        """Standardise by these values and run the posterior over them."""
        n = len(values)
        found = compare(values, values)
        scale = max(found.scale_before * (1 + 4 / n), SCALE_FLOOR)
        if n >= FIRST:
            # A step inside the sample widens the spread of values but not that of differences.
            steps = np.abs(np.diff(values))
            scale = max(min(scale, 1.5 * 1.4826 * float(np.median(steps)) * (1 + 4 / n)), SCALE_FLOOR)
        self.series.arm(found.median_before, scale, self.series.state.count - n)
        s = self.series.state
        s.level = s.anchor = found.median_before
        s.slow = found.median_before

    def before(self, at: int) -> Floats:
        """The level that a change at `at` is compared with: never shorter than to the last report."""
        memory = self.memory
        mine = self.series.logs(max(memory.segment, at - BEFORE), at)
        healthy = memory.episode is None or memory.episode.minor
        if len(mine) < BEFORE and healthy and len(memory.base) and (memory.rejoined or memory.segment != memory.began):
            older = memory.base[-(BEFORE - len(mine)) :]
            if abs(float(np.median(older)) - self.series.state.level) < 0.3 * self.settings.min_log:
                return np.concatenate((older, mine))
        return mine

    def seen(self, at: int, side: int) -> Floats | None:
        """All values of a process that is young at `at`, if it has got faster and is slower now; else None.

        The first iterations of a job whose iterations take two times (cache hits and misses) often look like a slow
        start: what was taken for one level's end is then known to have been the other mode.
        """
        memory = self.memory
        early = at - memory.began < WARMUP_ITERS and memory.segment != memory.began
        return self.series.logs(memory.began, at) if early and side > 0 and not memory.episodes else None

    def anchor(self) -> Floats:
        """The level last reported, or, while only a small loss is, the one before it."""
        memory = self.memory
        return memory.base if memory.episode and memory.episode.minor else memory.anchor

    def settle(self, at: int, level: float, new_base: bool = False, anchor: Floats | None = None) -> None:
        """A change was reported: what comes is compared with the new level."""
        memory, s = self.memory, self.series.state
        memory.segment, memory.rejoined = at, False
        memory.anchor = anchor if anchor is not None and len(anchor) else self.series.logs(at, s.count).copy()
        if new_base:
            memory.base = memory.anchor
        s.level = level
        s.anchor = float(np.median(memory.anchor))
        s.slow = level
        s.guard_from = s.count + GUARD_N
        s.look_from = s.near_from = s.count + 2
        s.wake_at = s.count + 10

    def planned(self, index: int) -> bool:
        return any(abs(index - step) <= self.settings.slack for step in self.settings.schedule)

    def onset_verdict(self, index: int, minor: bool) -> str:
        if self.planned(index):
            return "planned"
        return "unknown" if minor else "fail-slow"

    def needed(self, size: float) -> int:
        """Values after a change before it is believed: more where bursts about as high have passed lately."""
        memory = self.memory
        if memory.episode is not None or self.series.state.count - memory.burst_at >= BURST_MEMORY:
            return N_CONFIRM
        if not memory.burst or abs(size) > BURST_FACTOR * memory.burst_size:
            return N_CONFIRM
        return max(N_CONFIRM, min(memory.burst + 4, BURST_MOST))

    def threshold(self, side: int) -> float:
        episode = self.memory.episode
        if side < 0 and episode is not None:
            return min(self.settings.min_log, 0.6 * (episode.level - episode.base))
        return self.settings.min_log

    def is_back(self, level: float, episode: Episode) -> bool:
        """Is this level the one before the episode, or near enough to call it over?"""
        gain = episode.level - episode.base
        base = self.memory.base
        noise = 1.4826 * float(np.median(np.abs(base - np.median(base)))) if len(base) else 0.0
        room = max(0.5 * self.settings.min_log, min(2 * noise, 0.25 * gain))
        if episode.minor:
            room = min(room, 0.5 * gain)
        return level - episode.base < room

    def healed(self, slow: Floats, after: Floats) -> bool:
        """Are the last values those of the level before the episode, which the slow ones were not?"""
        memory = self.memory
        if memory.episode is None or len(after) < BACK_N or len(memory.base) < FIRST:
            return False
        base = memory.base
        middle = float(np.median(base))
        width = max(0.5 * self.settings.min_log, 2.5 * 1.4826 * float(np.median(np.abs(base - middle))))
        if width > 0.5 * (memory.episode.level - middle) or float(after[-BACK_N:].max()) > middle + width:
            return False
        share = (1 + int(np.count_nonzero(slow <= middle + width))) / (len(slow) + 1)
        return -BACK_N * log(share) >= BACK_NATS
