# SPDX-License-Identifier: Apache-2.0
"""gh-profile as a stage of a stream: calls and iterations in, suspects out, online.

After an onset it judges at 3, 4, ... 10 iterations and then less and less often, and says a part as soon as it is
attributed; without one it judges the last iterations now and then, and all of it at the end. What is said once is
said again only if it changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ghtools.detect.period import PeriodFinder
from ghtools.stream.records import FLAG_EXEC, Calls, Change, Comm, Head, Iters, Job, Link, Record, Suspect, columns

from .case import MIN_ITERS, Case, Onset
from .groups import Groups
from .history import Block
from .judge import Judgement, judge
from .layout import Layout, known
from .pairs import pair_tables, suspects
from .profiler import Profiler

AFTER_ONSET = (3, 4, 5, 6, 7, 8, 9, 10, 14, 20, 30, 50)
WHILE_SUSPECTED = (4, 5, 6, 8, 10, 14, 20)  # half of all suspicions pass
SURE, LARGE = 6, 0.3  # iterations that a suspicion needs for a name, but for a rank whose excess is so large
AGAIN = 50  # and then every so many
WINDOW = 30  # iterations judged at a time while the stream goes on
QUIET_FIRST, QUIET_EVERY = 20, 20  # a busy host makes a rank late for seconds at a time
BEFORE = 64  # iterations before an onset that are compared with
SURER = 2  # times the iterations it was judged by, before a part is said to have another cause
MAX_LINKS = 1 << 20
LEAVE_OUT = 1  # iterations next to the onset that belong to neither side for certain


class ProfileStage:
    """Feeds a profiler; `explain` hears the table behind each verdict, as rows."""

    def __init__(
        self,
        head: Head,
        layout: Layout | None = None,
        explain: Callable[[Judgement], None] | None = None,
    ) -> None:
        self.groups = Groups()
        self.profiler = Profiler(self.groups)
        self._layout, self._explain = layout, explain
        self._finder = None if "gh-period" in head.via else PeriodFinder()
        self._entries = False
        self._onset: Onset | None = None
        self._onset_t_ns: dict[int, int] = {}  # by rank, -1 = the job
        self._onset_it: int | None = None
        self._judged = {True: 0, False: 0}  # iterations of the last judgement: with durations, from arrivals
        self._judged_total = {True: 0, False: 0}
        self._since = 0  # first iteration after the last episode
        self._episodes: deque[tuple[int, int]] = deque(maxlen=64)  # first slow iteration and first after, of the past
        self._confirmed = False  # the onset is one of the job and more than a suspicion
        self._of_job = False  # it is one of the job, not of some rank alone
        self._said: dict[tuple[str, tuple[int, ...], str], str] = {}
        self._blamed: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}  # attributed: cause, iterations judged
        self._named: dict[tuple[str, tuple[int, ...], str], Suspect] = {}  # for the present onset
        self._now_ns = 0
        self._calls = 0
        self._links: list[Link] = []

    def feed(self, record: Record) -> Iterator[Record]:
        """Suspects that follow from one record."""
        if isinstance(record, Calls):
            self._take(record)
        elif isinstance(record, Iters):
            if record.rank >= 0:
                if self._finder is not None:  # the stream tells them: better than what calls let us guess
                    self._finder = None
                    self.profiler.forget_iterations()
                self.profiler.iters(record)
        elif isinstance(record, Comm):
            self.groups.comm(record)
            if self._finder is not None:
                self._found(self._finder.comm(record))
        elif isinstance(record, Job):
            self.groups.job(record)
            if self._finder is not None and all(type(item.get("rank", 0)) is int for item in record.ranks):
                self._found(self._finder.job(record))
        elif isinstance(record, Change):
            yield from self._change(record)
            return
        elif isinstance(record, Link):
            if len(self._links) < MAX_LINKS:
                self._links.append(record)
            return
        else:
            return
        if self.profiler.advance():
            yield from self._judge(final=False)

    def finish(self) -> Iterator[Record]:
        """The verdict over all that came."""
        for setting, pairs in pair_tables(self._links).items():
            yield from suspects(setting, pairs)
        if self._links and not self._calls:
            return
        if self._finder is not None:
            self._found(self._finder.flush())
        if not self.profiler.has_iterations:
            self.profiler.whole()
        self.profiler.advance(final=True)
        yield from self._judge(final=True)

    def _take(self, calls: Calls) -> None:
        self._calls += len(calls.t_ns)
        if len(calls.t_ns):
            self._now_ns = max(self._now_ns, int(calls.t_ns[-1]))
        self.profiler.calls(calls)
        if self._finder is None:
            return
        entries = calls.flags & FLAG_EXEC == 0
        self._entries = self._entries or bool(entries.any())
        if not self._entries:  # a trace of executions alone
            entries = ~entries
        if entries.any():
            self._found(self._finder.feed(_some(calls, entries)))

    def _found(self, made: Iterable[Record]) -> None:
        """Iterations found on the way."""
        for record in made:
            if isinstance(record, Iters):
                self.profiler.iters(record)

    def _change(self, change: Change) -> Iterator[Record]:
        over = change.level == "job" and (
            change.stage == "withdrawn" or (change.type == "relief" and change.stage == "confirmed")
        )
        if over and self._onset is not None:
            if change.stage == "withdrawn":
                yield from self._take_back(change)
            else:
                ended = self.profiler.iteration_at({-1: change.onset_t_ns})
                if not self._named:
                    yield from self._judge(final=True, until=ended)
                self._since = self.profiler.last + 1
                self._episodes.append((self._first_slow(), self._since if ended is None else ended))
            self._onset, self._onset_t_ns, self._onset_it, self._said, self._named = None, {}, None, {}, {}
            self._blamed = {}
            self._confirmed, self._of_job, self._judged_total = False, False, self._totals()
        elif change.level == "rank" and (
            change.stage == "withdrawn" or (change.type == "relief" and change.stage == "confirmed")
        ):
            yield from self._rank_passed(change)
        elif change.type in ("onset", "drift") and change.stage in ("suspected", "confirmed"):
            if change.verdict in ("warm-up", "restart", "planned", "blip"):
                return
            self._onset_t_ns[change.rank if change.level == "rank" else -1] = change.onset_t_ns
            confirmed = change.stage == "confirmed"
            if self._onset is not None and (change.level == "rank" or (self._confirmed and not confirmed)):
                return
            if self._onset is None or (change.level == "job" and change.episode != self._onset.episode):
                self._judged, self._said, self._blamed = {True: 0, False: 0}, {}, {}
            if confirmed and not self._confirmed:
                self._judged = {True: 0, False: 0}
            self._of_job = change.level == "job"
            self._confirmed = confirmed and self._of_job
            if self._of_job and change.ranks:  # what another rank was suspected of has another begin
                keep = {-1, *change.ranks}
                self._onset_t_ns = {rank: t_ns for rank, t_ns in self._onset_t_ns.items() if rank in keep}
            self._onset = Onset(change.before_ns, change.after_ns, change.episode, change.onset_index)
            self._onset_it = None
            yield from self._judge(final=False)

    def _rank_passed(self, change: Change) -> Iterator[Record]:
        """One rank is no longer suspected of a slow-down; if the job is not either, there is none."""
        self._onset_t_ns.pop(change.rank, None)
        self._onset_it = None
        if self._onset is not None and not self._of_job and not self._onset_t_ns:
            yield from self._take_back(change)
            self._onset, self._said, self._blamed = None, {}, {}
            self._judged_total = self._totals()

    def _take_back(self, change: Change) -> Iterator[Record]:
        """The slow-down was none: whoever was named for it is cleared."""
        for (what, ranks, cause), suspect in self._named.items():
            text = f"{what} {', '.join(map(str, ranks))} was named for a slow-down that has passed"
            yield Suspect(
                what=what, ranks=list(ranks), hosts=suspect.hosts, comm=suspect.comm, cause=cause, verdict="cleared",
                t_ns=change.said_t_ns, text=text,
            )  # fmt: skip
        self._named = {}

    def _first_slow(self) -> int:
        """Number of the first slow iteration, from the begins that the changes name."""
        if self._onset_it is None:
            self._onset_it = self.profiler.iteration_at(self._onset_t_ns)
        first = min((block.first for block in self._blocks()), default=0)
        return self._onset_it if self._onset_it is not None else first

    def _blocks(self) -> list[Block]:
        return [history.blocks[0] for history in (self.profiler.durations, self.profiler.arrivals) if history.blocks]

    def _totals(self) -> dict[bool, int]:
        return {True: self.profiler.durations.total, False: self.profiler.arrivals.total}

    def _judge(self, final: bool, until: int | None = None) -> Iterator[Record]:
        """Judge if it is time to, `final` or not; iterations before `until` only.

        By durations where there are enough of them since the onset, else by arrivals.
        """
        if not self._blocks():
            if final:
                yield self._empty()
            return
        first = self._since if self._onset is None else self._first_slow()
        chosen = {timed: self._numbers(timed, first, until) for timed in (True, False)}
        timed = len(chosen[True]) >= MIN_ITERS or not len(chosen[False])
        if timed and not final and self._onset is None and (chosen[True] < self.profiler.last - WINDOW).all():
            timed = False  # what durations tell is old
        numbers, history = chosen[timed], self.profiler.durations if timed else self.profiler.arrivals
        before = None
        if self._onset is not None:
            steps = AFTER_ONSET if self._confirmed else WHILE_SUSPECTED
            due = any(self._judged[timed] < step <= len(numbers) for step in steps)
            due = due or history.total >= self._judged_total[timed] + AGAIN
            past = history.numbers()
            past = past[past < first - LEAVE_OUT]
            for began, ended in self._episodes:
                past = past[(past < began - LEAVE_OUT) | (past >= ended + LEAVE_OUT)]
            if len(past):
                before = history.window(past[-BEFORE:])
        else:
            total = self._judged_total[timed]
            due = history.total >= (total + QUIET_EVERY if total else QUIET_FIRST)
        n = len(numbers)
        if not (final or due):
            return
        if not n or (self._since and self._onset is None and n < QUIET_FIRST):
            if final and not self._since:
                yield self._empty()
            return  # what little came after an episode is not worth a word
        # A long stretch is judged by its newest part, unless it is all there will be.
        window = history.window(numbers if final else numbers[-WINDOW:])
        self._judged[timed], self._judged_total[timed] = n, history.total
        case = Case(
            window, before, self.groups, self.profiler.keys, timed, self._onset,
            self._layout or known(self.groups.layout, self.groups.world_size), self._missing(), self._now_ns,
        )  # fmt: skip
        judgement = judge(case)
        for suspect in judgement.suspects:
            attributed = suspect.verdict == "attributed"
            if not (attributed or final or (self._confirmed and n >= 10)):
                continue
            unsure = self._onset is not None and not self._confirmed and not final
            if unsure and not self._of_job:
                continue
            if unsure and n < SURE and (suspect.what != "rank" or suspect.evidence.get("excess_share", 0.0) < LARGE):
                continue
            what = (suspect.what, tuple(suspect.ranks), suspect.cause)
            before_that = self._said.get(what)
            told = final and not attributed and self._said and suspect.what == "none"
            if told or before_that == suspect.verdict or (before_that == "attributed" and not attributed):
                continue
            if attributed:
                cause, judged = self._blamed.get(what[:2], (suspect.cause, 0))
                if cause != suspect.cause and n < SURER * judged:
                    continue  # a few iterations more are no reason to take back what was said
                self._blamed[what[:2]] = (suspect.cause, n)
            self._said[what] = suspect.verdict
            if attributed and self._onset is not None:
                self._named[what] = suspect
            if self._explain is not None:
                self._explain(judgement)
            yield suspect

    def _numbers(self, timed: bool, first: int, until: int | None) -> Any:
        """Numbers of the iterations from `first` on, before `until`, that durations (arrivals) tell of."""
        numbers = (self.profiler.durations if timed else self.profiler.arrivals).numbers()
        return numbers[(numbers >= first) & (numbers < (1 << 62 if until is None else until))]

    def _missing(self) -> list[int]:
        seen = {rank for rank, buffer in self.profiler.buffers.items() if buffer.last_t_ns}
        expected = self.profiler.expected()
        if self.groups.world_size and not expected - seen:
            expected = expected | set(range(min(self.groups.world_size, 1 << 16)))
        return sorted(expected - seen)

    def _empty(self) -> Suspect:
        text = (
            "cannot tell who is slow: there are no calls"
            if not self._calls
            else ("cannot tell who is slow: no iteration could be made out and matched across ranks")
        )
        return Suspect(what="none", verdict="inconclusive", text=text, t_ns=self._now_ns)


def _some(calls: Calls, where: Any) -> Calls:
    """Rows of a batch that pass `where`, as calls."""
    return Calls(
        rank=calls.rank, incarnation=calls.incarnation, lost=calls.lost,
        **{name: getattr(calls, name)[where] for name in columns(Calls) if name != "flags"},
        flags=calls.flags[where] & ~np.uint16(FLAG_EXEC),
    )  # fmt: skip
