# SPDX-License-Identifier: Apache-2.0
"""Step lines of a log to iterations: numbering, restarts, lines printed twice, logging intervals, time.

A log says (step, time) now and then. One point stands for `every` iterations: that number is found from the steps
themselves and stands in the record's extra where it is not 1, so that nobody takes a mean of ten for one iteration.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ghtools.stream.errors import InputError
from ghtools.stream.records import PHASE_CODE, Iters, Record

BATCH = 256
MAX_NS = 1 << 62
MAX_STEP = 1 << 48
DECIDE = 9  # points that are held back until the logging interval is known
SUM_NS = MAX_NS  # where the sum of durations stops growing


@dataclass
class _Point:
    step: int
    dur_ns: int
    stamp_ns: int | None
    restarted: bool


class Steps:
    """The points of one rank (-1 = the job). Give them as they come; records come back as soon as they are sure.

    `every` > 0 is the logging interval where it is known beforehand. A step that comes back within `echo_lines`
    lines was printed by another rank; later, or with 0, it is a restart.
    """

    def __init__(self, rank: int, every: int = 0, echo_lines: int = 200) -> None:
        self.rank, self.again = rank, 0
        self._echo = echo_lines
        self._every = every
        self._first = -1  # the very first step
        self._file = ""
        self._fresh = False  # a file has begun and no step of it was seen
        self._recent: dict[int, int] = {}  # step -> line
        self._last = -1
        self._restarted = False
        self._base: tuple[int, int] | None = None  # step and cumulative time of the line before
        self._held: list[_Point] = []
        self._diffs: deque[int] = deque(maxlen=3)
        self._before = -1  # step of the point before, in this incarnation
        self._begin = self._now = 0  # when the last point began and ended
        self._stamped: bool | None = None
        self._rows: list[tuple[int, int, int, int]] = []
        self._key = (0, 0)  # incarnation and every of the rows

    def begin(self, name: str) -> None:
        """The lines that follow are those of another file, which must go on where the one before stopped."""
        self._fresh = self._file != ""
        self._last_file, self._file = self._file, name
        self._recent.clear()

    def each(self, step: int, dur_ns: float, stamp_ns: int | None, line: int, every: int = 0) -> Iterator[Record]:
        """A line that says how long one iteration took: the mean over the interval, or over `every` if that is > 0."""
        if not self._new(step, line) or not _sane(dur_ns):
            return
        if every > 0:
            yield from self._take(_Point(step, round(dur_ns), stamp_ns, self._after_restart()), every)
        else:
            yield from self._hold(step, round(dur_ns), stamp_ns)

    def total(self, step: int, total_ns: float, stamp_ns: int | None, line: int) -> Iterator[Record]:
        """A line that says the time since the begin of the run, or only when it was written (`total_ns` a stamp)."""
        if not _sane(total_ns) or not self._new(step, line):
            return
        base = self._base
        self._base = (step, round(total_ns))
        if base is None and step == 1 and stamp_ns is None:
            base = (0, 0)
        if base is None or self._base[1] < base[1]:
            # Nothing to subtract from, or the clock began anew; what follows is measured from here.
            return
        every = step - base[0]
        yield from self._take(_Point(step, (self._base[1] - base[1]) // every, stamp_ns, self._after_restart()), every)

    def quiet(self) -> Iterator[Record]:
        """The source has nothing more for now: say what is sure."""
        if len(self._held) > 3:
            yield from self._decide()
        yield from self.flush()

    def end(self) -> Iterator[Record]:
        """No more points."""
        yield from self._decide()
        yield from self.flush()

    def flush(self) -> Iterator[Record]:
        """The batch so far, if there is one."""
        if not self._rows:
            return
        index, t_ns, dur_ns, phase = np.array(self._rows, np.int64).T
        count = len(self._rows)
        self._rows = []
        incarnation, every = self._key
        yield Iters(
            rank=self.rank,
            incarnation=incarnation,
            index=index,
            t_ns=t_ns,
            dur_ns=dur_ns,
            phase=phase.astype(np.uint8),
            calls=np.zeros(count, np.int32),
            seq=np.full(count, -1, np.int64),
            extra={"every": every} if every > 1 else {},
        )

    def _new(self, step: int, line: int) -> bool:
        """Whether this step was not seen yet; a step back is a restart."""
        if not 0 <= step < MAX_STEP:
            return False
        if self._fresh and self._first >= 0 and step <= self._first:
            who = "the job" if self.rank < 0 else f"rank {self.rank}"
            why = f"both hold iterations of {who} from {max(step, self._first)} on"
            raise InputError(
                f"cannot read {self._file} after {self._last_file}", why, "one at a time, or --set by=rank"
            )
        self._fresh = False
        if step <= self._last:
            if line - self._recent.get(step, line - self._echo) < self._echo:
                self.again += 1
                return False
            self._restarted = True
            self._base = None
            self._recent.clear()
        if self._first < 0:
            self._first = step
        self._last = step
        self._recent[step] = line
        if len(self._recent) > 8:
            del self._recent[next(iter(self._recent))]
        return True

    def _after_restart(self) -> bool:
        restarted, self._restarted = self._restarted, False
        return restarted

    def _hold(self, step: int, dur_ns: int, stamp_ns: int | None) -> Iterator[Record]:
        point = _Point(step, dur_ns, stamp_ns, self._after_restart())
        if self._every:
            yield from self._spread(point)
            return
        self._held.append(point)
        if len(self._held) >= DECIDE:
            yield from self._decide()

    def _decide(self) -> Iterator[Record]:
        """The usual distance of the steps held back is the logging interval; the smaller one of two."""
        if not self._held:
            return
        steps = [point.step for point in self._held]
        counts = Counter(b - a for a, b in pairwise(steps) if b > a)
        self._every = max(counts, key=lambda diff: (counts[diff], -diff)) if counts else 1
        held, self._held = self._held, []
        for point in held:
            yield from self._spread(point)

    def _spread(self, point: _Point) -> Iterator[Record]:
        """How many iterations this point stands for."""
        diff = 0 if point.restarted or self._before < 0 else point.step - self._before
        self._before = point.step
        if diff > 0:
            self._diffs.append(diff)
            if len(self._diffs) == 3 and len(set(self._diffs)) == 1:
                self._every = diff
        fewer = diff if 0 < diff < self._every else point.step if not diff and 0 < point.step < self._every else 0
        yield from self._take(point, fewer or self._every)

    def _take(self, point: _Point, every: int) -> Iterator[Record]:
        if self._stamped is None:
            self._stamped = point.stamp_ns is not None
        span = every * point.dur_ns
        if self._stamped and point.stamp_ns is not None:
            self._begin = max(point.stamp_ns - span, self._begin)
            self._now = point.stamp_ns
        else:
            self._begin = max(self._now, self._begin)
            self._now = min(self._begin + span, MAX_NS)
        # A batch has one incarnation; held points are let go after it may have moved on.
        incarnation = self._key[0] + point.restarted
        if self._rows and (incarnation, every) != self._key:
            yield from self.flush()
        self._key = (incarnation, every)
        phase = PHASE_CODE["restart"] if point.restarted else PHASE_CODE["steady"]
        self._rows.append((point.step, self._begin, point.dur_ns, phase))
        if len(self._rows) >= BATCH:
            yield from self.flush()


def _sane(ns: float) -> bool:
    return math.isfinite(ns) and 0 <= ns < MAX_NS
