# SPDX-License-Identifier: Apache-2.0
"""One rank: from what the hot path noticed to changes that are worth a record (ALGORITHMS.md section 1.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp

import numpy as np

from ghtools.stream.records import Change, Iters

from . import series as hot
from .levels import (
    BEFORE,
    BURST_MEMORY,
    FADE_N,
    FIRST,
    GUARD_EVERY,
    GUARD_MINOR,
    GUARD_N,
    LEAST_BEFORE,
    MINOR_LOG,
    REFINE,
    REFRESH,
    RETHINK,
    SETTLE,
    WARMUP_ITERS,
    Levels,
)  # fmt: skip
from .memory import Episode, Floats, Memory, Pending, Settings
from .series import Model
from .verify import SE_MEDIAN, Judgement, compare, judge


class Watch(Levels):
    """Detector of one rank. `feed` yields changes of level "rank"."""

    def __init__(
        self,
        rank: int,
        model: Model,
        settings: Settings,
        explain: Callable[[str], None] | None = None,
        state: bytes | None = None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(model, settings, state, memory)
        self.rank, self._explain = rank, explain

    # -- feeding ------------------------------------------------------------------------------------

    def feed(self, rec: Iters) -> Iterator[Change]:
        """Take one batch; changes as soon as they are known."""
        if rec.incarnation != self.memory.incarnation:
            yield from self._restart()
            self.memory.incarnation = rec.incarnation
        addresses, alive = hot.columns(rec)
        n, done, series = len(alive[0]), 0, self.series
        last, gaps = series.state.last_index, series.state.n_gap
        while done < n:
            done = series.feed(*addresses, n, done)
            if series.news.why:
                yield from self._look()
        every = rec.extra.get("every", 1)
        if isinstance(every, int) and every > 1 and series.state.n_gap > gaps:
            # Each point stands for so many iterations: a stride of just that many leaves none out.
            strides = int((np.diff(alive[0], prepend=np.int64(last)) == every).sum())
            series.state.n_gap = max(series.state.n_gap - strides, gaps)

    def _look(self) -> Iterator[Change]:
        news, why = self.series.news, self.series.news.why
        if why & (hot.RESTART | hot.REARM):
            yield from self._restart(rearm=bool(why & hot.REARM))
            return
        if why & hot.WAKE:
            yield from self._wake()
        memory = self.memory
        if (
            memory.pending is not None
            and why & hot.NEAR
            and not memory.pending.said
            and news.at - memory.pending.at > RETHINK
        ):
            memory.pending = None  # the posterior has moved on to a newer change
        if memory.pending is None and self.series.state.armed:
            if why & hot.NEAR:
                yield from self._begin(news.at - 2, news.near)
            elif why & hot.LOOK:
                yield from self._begin(news.at - news.mode, news.look)
        if memory.pending is not None:
            yield from self._decide(memory.pending)
        elif why & hot.GUARD:
            yield from self._guard()

    # -- levels -------------------------------------------------------------------------------------

    def _wake(self) -> Iterator[Change]:
        """A level has been seen for a while: measure it (again)."""
        memory, s = self.memory, self.series.state
        if memory.pending is not None:
            s.wake_at = s.count + 5
            return
        n = s.count - memory.segment
        values = self.series.logs(memory.segment, s.count)
        if not s.armed or (n <= REFINE[0] + 5 and memory.segment == memory.began):
            self.arm(values[-BEFORE:])
        if memory.restarted:
            s.wake_at = s.count + FIRST
            yield from self._after_restart(values)
            return
        if memory.episode is not None and (back := self._faded(memory.episode)) is not None:
            yield back
            return
        if n <= BEFORE + 5 and not memory.rejoined:
            memory.anchor = self.before(s.count).copy()
            if memory.episode is None and len(memory.anchor) <= n:  # else the older sample still holds
                memory.base = memory.anchor
            s.anchor = float(np.median(memory.anchor))
        s.level = float(np.median(values[-BEFORE:]))
        rest = REFRESH if memory.episode is None else FADE_N
        s.wake_at = next((memory.segment + r for r in REFINE if memory.segment + r > s.count), s.count + rest)

    def _faded(self, episode: Episode) -> Change | None:
        """An episode can end in steps that are each too small to report: is the level of before reached?"""
        s = self.series.state
        if s.count - self.memory.segment < FADE_N:
            return None
        values = self.series.logs(self.memory.segment, s.count)
        recent = compare(values[-FADE_N:], values[-FADE_N:])
        sure = 2 * SE_MEDIAN * recent.scale_before / FADE_N**0.5
        if not self.is_back(recent.median_before + sure, episode):
            return None
        edge = 0.5 * (episode.base + max(episode.level, float(np.median(values))))
        slow = np.flatnonzero(np.convolve(values > edge, np.ones(5), "same") >= 3)
        first = min(int(slow[-1]) + 1 if len(slow) else 0, len(values) - FIRST)
        at = s.count - len(values) + first
        before = values[:first] if first else self.memory.anchor
        found = judge(before, values[first:], self.threshold(-1))
        found = replace(found, outcome="confirm", failed=(), by=f"the last {FADE_N} are at the level of before it")
        return self._relief(at, found, float(s.mass_look))

    # -- candidates ---------------------------------------------------------------------------------

    def _begin(self, at: int, probability: float) -> Iterator[Change]:
        """A candidate: find its first value, and say so if it is a slow-down out of a healthy level."""
        memory, s = self.memory, self.series.state
        first = memory.segment + (LEAST_BEFORE if memory.segment == memory.began else 5)
        first = max(first, s.count - BEFORE)  # the ring keeps no more than this and a sample of before
        at = max(at, first)
        after = self.series.logs(at, s.count)
        if len(after) < 2:
            return
        level, now = s.level, float(np.median(after[-5:]))
        side = 1 if now > level else -1
        middle = 0.5 * (level + now)
        while at > first and side * (float(self.series.logs(at - 1, at)[0]) - middle) > 0:
            at -= 1
        while at < s.count - 2 and side * (float(self.series.logs(at, at + 1)[0]) - middle) < 0:
            at += 1
        memory.pending = Pending(at, side, probability, since=s.count)
        s.follow = 1
        yield from ()

    def _decide(self, pending: Pending) -> Iterator[Change]:
        memory, s, news = self.memory, self.series.state, self.series.news
        pending.probability = max(pending.probability, news.look, news.near)
        before, after = self.before(pending.at), self.series.logs(pending.at, s.count)
        if not len(before) or not len(after):
            memory.pending = None
            s.follow = 0
            return
        threshold = self.threshold(pending.side)
        steady = pending.side < 0 and memory.episode is not None
        seen = self.seen(pending.at, pending.side)
        found = judge(before, after, threshold, self.needed, steady, seen)
        if pending.side < 0 and found.outcome != "confirm" and self.healed(before, after):
            found = replace(found, outcome="confirm", failed=(), by="the last values are those of before the episode")
        gradual = False
        anchor = self.anchor()
        if found.outcome != "confirm" and found.d * pending.side > 0 and len(anchor) >= GUARD_N:
            # A step that is too small by itself may be the last of several.
            whole = judge(anchor, after, threshold, lambda size: self.needed(size) + 2, steady, seen)
            if whole.outcome == "confirm" and whole.d * pending.side > 0:
                found, gradual = whole, True
        middle = 0.5 * (found.compared.median_before + found.compared.median_after)
        passed = len(after) >= 4 and pending.side * (sorted(after[-3:].tolist())[1] - middle) < 0
        if found.outcome == "confirm" and found.d * pending.side > 0:
            memory.pending = None
            s.follow = 0
            self._tell("confirmed", pending, found)
            yield from self._confirm(pending, found, gradual)
            return
        if (
            not pending.said
            and pending.side > 0
            and memory.episode is None
            and not passed
            and len(after) >= 3
            and found.d >= 0.8 * found.min_log
            and float(after[-3:].min()) > found.compared.median_before + 0.6 * threshold
        ):
            pending.said = True
            yield self._change("onset", "suspected", pending.at, found, pending.probability, verdict="unknown")
        if found.outcome == "reject" or passed or found.d * pending.side <= 0:
            self._tell("dropped", pending, found)
            yield from self._drop(pending, found, passed)

    def _drop(self, pending: Pending, found: Judgement, passed: bool) -> Iterator[Change]:
        """The candidate came to nothing."""
        memory, s = self.memory, self.series.state
        memory.pending = None
        s.follow = 0
        # Its posterior mass stays at look-back lengths until the run is older than that.
        s.look_from = max(s.look_from, pending.at + hot.YOUNG + 2) if not passed else s.count + 3
        if passed:
            length = max(found.n_after - 2, 1)
            if length > 2 and memory.episode is None:
                fresh = s.count - memory.burst_at < BURST_MEMORY
                size = float(np.median(self.series.logs(pending.at, s.count - 2))) - found.compared.median_before
                memory.burst = max(memory.burst if fresh else 0, length)
                memory.burst_size = max(memory.burst_size if fresh else 0.0, size)
                memory.burst_at = s.count
        if pending.said:
            verdict = "blip" if passed else "unknown"
            yield self._change("onset", "withdrawn", pending.at, found, pending.probability, verdict=verdict)

    def _guard(self) -> Iterator[Change]:
        """The slow average has left the anchor: a ladder of small steps, a ramp, or a small loss that lasts."""
        memory, s = self.memory, self.series.state
        s.guard_from = s.count + GUARD_EVERY
        if len(memory.anchor) < 20:
            return
        episode, min_log = memory.episode, self.settings.min_log
        anchor = self.anchor()
        after = self.series.logs(max(memory.segment, s.count - GUARD_N), s.count)
        if len(after) < GUARD_N:
            return
        found = judge(anchor, after, self.threshold(1 if s.slow > s.anchor else -1))
        if found.outcome == "confirm":
            yield from self._gradual(found, minor=False)
            return
        after = self.series.logs(max(memory.segment, s.count - GUARD_MINOR), s.count)
        if episode is None and len(after) >= GUARD_MINOR and len(anchor) >= GUARD_N and min_log > MINOR_LOG:
            small = judge(anchor, after, MINOR_LOG)
            if small.outcome == "confirm" and small.d - 3 * small.se > 0.8 * MINOR_LOG and small.z > 6:
                yield from self._gradual(small, minor=True)

    def _gradual(self, found: Judgement, minor: bool) -> Iterator[Change]:
        s = self.series.state
        side = 1 if found.d > 0 else -1
        values = self.series.logs(max(self.memory.segment, s.count - 200), s.count)
        beyond = side * (values - (found.compared.median_before + 0.5 * found.d)) > 0
        wide = np.convolve(beyond, np.ones(5), "same") >= 3
        inside = np.flatnonzero(~wide[: len(wide) - 2])
        at = s.count - len(values) + (int(inside[-1]) + 1 if len(inside) else 0)
        pending = Pending(min(at, s.count - 10), side, float(s.mass_look))
        self._tell("gradual", pending, found)
        yield from self._confirm(pending, found, gradual=True, minor=minor)

    # -- confirmed ----------------------------------------------------------------------------------

    def _confirm(
        self, pending: Pending, found: Judgement, gradual: bool = False, minor: bool = False
    ) -> Iterator[Change]:
        memory = self.memory
        at, probability = pending.at, pending.probability
        episode = memory.episode
        level_now = found.compared.median_after
        index = self.series.index_at(at)
        healthy = found.compared.median_before
        if episode is None and pending.side > 0:
            kind = "drift" if gradual else "onset"
            verdict = self.onset_verdict(index, minor)
            if verdict == "planned":
                self.settle(at, level_now, new_base=True)
                yield self._change(kind, "confirmed", at, found, probability, verdict=verdict)
                return
            memory.episodes += 1
            if not (gradual and len(memory.base)):
                memory.base = self.before(at).copy()
            memory.episode = Episode(
                memory.episodes, healthy, level_now, index, at, self.series.t_at(at), self.series.total_before(at),
                minor, verdict,
            )  # fmt: skip
            self.settle(at, level_now)
            yield self._change(kind, "confirmed", at, found, probability, verdict=verdict)
        elif episode is None:
            early = at - memory.began < WARMUP_ITERS
            verdict = "planned" if self.planned(index) else "warm-up" if early else "unknown"
            self.settle(at, level_now, new_base=True)
            yield self._change("relief", "confirmed", at, found, probability, verdict=verdict)
        elif pending.side < 0 and self.is_back(level_now, episode):
            yield self._relief(at, found, probability)
        else:
            episode.level = level_now
            if pending.side > 0 and level_now - episode.base >= self.settings.min_log:
                episode.minor, episode.verdict = False, "fail-slow"
            self.settle(at, level_now)
            kind = "onset" if pending.side > 0 else "relief"
            verdict = episode.verdict if pending.side > 0 else "unknown"
            yield self._change(kind, "confirmed", at, found, probability, verdict=verdict)

    def _relief(self, at: int, found: Judgement, probability: float) -> Change:
        memory = self.memory
        episode = memory.episode
        assert episode is not None
        slow_n = max(at - episode.onset_at, 1)
        lost = self.series.total_before(at) - episode.total_before - slow_n * exp(episode.base)
        index = self.series.index_at(at)
        n_iters = index - episode.onset_index if index > episode.onset_index else slow_n
        change = self._change("relief", "confirmed", at, found, probability, verdict="recovered")
        change.n_iters = n_iters
        # Iterations that were not measured (gaps, evaluations, a log of every 100th) lost what the others did.
        change.lost_ns = max(0, round(lost * n_iters / slow_n))
        memory.episode = None
        level = found.compared.median_after
        # Back at the healthy level: keep its sample. Clearly faster than that: a new one.
        faster = level < episode.base - 0.5 * self.settings.min_log
        self.settle(at, level, new_base=faster, anchor=None if faster else memory.base)
        return change

    # -- restarts -----------------------------------------------------------------------------------

    def _restart(self, rearm: bool = False) -> Iterator[Change]:
        """A new process: warm up again, remember the level before.

        After a re-arm an iteration is something else (another pattern of calls, or the whole of what was taken for
        one), so no level from before says anything of it.
        """
        memory, s = self.memory, self.series.state
        pending = memory.pending
        memory.pending = None
        s.follow = 0
        if pending is not None and pending.said:
            before, after = self.before(pending.at), self.series.logs(pending.at, s.count)
            found = judge(before, after, self.settings.min_log)
            yield self._change("onset", "withdrawn", pending.at, found, pending.probability, verdict="restart")
        if not memory.restarted and s.count - memory.segment >= FIRST:
            memory.prior = memory.anchor
        if rearm:
            memory.prior = memory.prior[:0]
        memory.restarted, memory.rejoined = len(memory.prior) >= FIRST, False
        s.armed = 0
        s.last_index = s.last_t_ns = -(1 << 63)
        memory.segment = memory.began = s.count
        s.wake_at = s.count + FIRST

    def _after_restart(self, values: Floats) -> Iterator[Change]:
        """Compare the new process with the one before, once it has settled.

        Its first iterations are slow, so a slower level is only believed after twice as many of them.
        """
        memory, s, settings = self.memory, self.series.state, self.settings
        n, episode = len(values), memory.episode
        prior = memory.prior
        was, now = float(np.median(prior)), float(np.median(values[-FIRST:]))
        slower = now - was > 0.7 * settings.min_log
        if slower and n < 2 * FIRST:
            return
        memory.restarted = False
        skip = SETTLE if n >= 2 * FIRST else 3
        found = judge(prior, values[skip:], settings.min_log)
        at = memory.began + skip
        s.wake_at = s.count + FIRST
        if slower and found.outcome == "confirm":
            change = list(self._confirm(Pending(at, 1, float(s.mass_look)), found))
            if episode is None and self.memory.episode is not None and change[0].verdict == "fail-slow":
                self.memory.episode.verdict = change[0].verdict = "unknown"
            for item in change:
                item.why = f"slower since a restart; {item.why}"
            yield from change
        elif episode is not None and now < was and self.is_back(now, episode):
            yield self._relief(memory.began, found, float(s.mass_look))
        elif now - was < -0.7 * settings.min_log:
            self.settle(at, now, new_base=episode is None)
            if episode is not None:
                episode.level = now
            yield self._change("relief", "confirmed", at, found, float(s.mass_look), verdict="restart")
        else:
            # As before: what was known of the level still holds.
            memory.rejoined = True
            memory.anchor = memory.prior
            s.anchor, s.level, s.slow = was, now, now

    # -- records ------------------------------------------------------------------------------------

    def _change(self, kind: str, stage: str, at: int, found: Judgement, probability: float, verdict: str) -> Change:
        series, episode = self.series, self.memory.episode
        last = series.state.count - 1
        width = 1.96 * found.se
        return Change(
            type=kind,
            stage=stage,
            level="rank",
            rank=self.rank,
            episode=episode.number if episode else 0,
            verdict=verdict,
            before_ns=round(exp(found.compared.median_before)),
            after_ns=round(exp(found.compared.median_after)),
            ratio=found.ratio,
            ratio_lo=exp(found.d - width),
            ratio_hi=exp(found.d + width),
            probability=float(probability),
            onset_index=series.index_at(at),
            said_index=series.index_at(last),
            onset_t_ns=series.t_at(at),
            said_t_ns=series.t_at(last) + round(exp(float(series.logs(last, last + 1)[0]))),
            why=found.text(),
        )

    def _tell(self, what: str, pending: Pending, found: Judgement) -> None:
        if self._explain is not None:
            who = f"rank {self.rank}" if self.rank >= 0 else "job"
            self._explain(
                f"{who}: {what} at iteration {self.series.news.index}: change at iteration "
                f"{self.series.index_at(pending.at)}, probability {pending.probability:.3f}, {found.text()}"
            )
