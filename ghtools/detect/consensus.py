# SPDX-License-Identifier: Apache-2.0
"""From the ranks' changes to the job's: what more than half of the live ranks say of the same time.

Ranks are matched by time, since their indices may differ. A rank whose iterations have not yet reached the
time in question is waited for, unless it has stopped reporting while the others went on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from ghtools.stream.records import Change, Job

WINDOW_ITERS = 6  # onsets this many iterations apart can be the same event
WINDOW_NS = 2_000_000_000  # and so can those this close in time
THERE_ITERS = 8  # a rank that reported this long after the beginning of something has had its say
GONE_ITERS, GONE_NS, GONE_RECORDS = 40, 20_000_000_000, 8
KEEP = 32  # events remembered
ENDED = ("ended", "died")


@dataclass
class Seen:
    """Where a rank is."""

    t_ns: int = 0  # end of its last iteration
    level_ns: int = 0
    record: int = 0  # number of the record that said so


@dataclass
class Event:
    """Changes of several ranks that are one: an onset, what follows in its episodes, its relief."""

    t_ns: int
    window_ns: int
    number: int = 0  # the job's episode; 0 = not declared
    suspected: bool = False
    onset: dict[int, Change] = field(default_factory=dict)  # confirmed, by rank
    doubt: dict[int, Change] = field(default_factory=dict)  # suspected, by rank
    relief: dict[int, Change] = field(default_factory=dict)
    update: dict[int, Change] = field(default_factory=dict)
    over: bool = False
    updated_t_ns: int = 0  # time of the last update that was said


class Consensus:
    """Feed it every rank-level change; it yields changes of level "job"."""

    def __init__(self) -> None:
        self.seen: dict[int, Seen] = {}
        self.listed: dict[int, str] = {}
        self.events: list[Event] = []
        self.alone: list[Event] = []  # reliefs outside any episode (warm-up, planned, faster)
        self.episodes = 0
        self.newest_ns = 0
        self.records = 0
        # Made again now and then from what is above: looking at all ranks for each change would not scale.
        self.left: set[int] = set()
        self.known = 0
        self.counted = -(1 << 60)

    def job(self, rec: Job) -> None:
        """Learn which ranks there are and which have ended."""
        self.counted = -(1 << 60)
        for item in rec.ranks:
            rank = item.get("rank")
            if isinstance(rank, int):
                self.listed[rank] = str(item.get("state", "running"))

    def saw(self, rank: int, t_ns: int, level_ns: int) -> None:
        """A rank has reported iterations up to `t_ns`."""
        self.records += 1
        mine = self.seen.get(rank)
        if mine is None:
            mine = self.seen[rank] = Seen()
            self.counted = -(1 << 60)
        mine.t_ns, mine.level_ns, mine.record = t_ns, level_ns, self.records
        self.newest_ns = max(self.newest_ns, t_ns)

    def _count(self) -> None:
        """Note who is known and who is gone; now and then only, since there may be thousands."""
        if self.records - self.counted < max(GONE_RECORDS, len(self.seen) // 4):
            return
        self.counted = self.records
        silent = GONE_RECORDS * len(self.seen)
        self.left = {
            rank
            for rank, mine in self.seen.items()
            if self.newest_ns - mine.t_ns > max(GONE_NS, GONE_ITERS * mine.level_ns)
            and self.records - mine.record > silent
        } | {rank for rank, state in self.listed.items() if state in ENDED}
        self.known = len(self.seen.keys() | self.listed.keys())

    def gone(self, since_ns: int) -> list[int]:
        """Ranks that have no say in what began at `since_ns`.

        They have ended, or stopped reporting while the others went on, and that before it began: at the end
        of a job ranks leave one by one, and the last must not decide alone what the others did not see.
        """
        self._count()
        return [rank for rank in self.left if not self._was_there(rank, since_ns)]

    def _was_there(self, rank: int, since_ns: int) -> bool:
        mine = self.seen.get(rank)
        return mine is not None and mine.t_ns - since_ns > THERE_ITERS * max(mine.level_ns, 1)

    def voters(self, votes: Collection[int], since_ns: int) -> int:
        """How many ranks have a say: all that are known but those gone, and whoever has voted."""
        gone = self.gone(since_ns)
        return self.known - sum(rank not in votes for rank in gone)

    def _most(self, votes: dict[int, Change]) -> bool:
        self._count()
        if 4 * len(votes) < self.known and not self.left:
            return False  # told without looking at each vote: there may be thousands
        since_ns = min((vote.onset_t_ns for vote in votes.values()), default=0)
        return 2 * len(votes) > self.voters(votes, since_ns)

    # -- feeding ------------------------------------------------------------------------------------

    def feed(self, change: Change) -> Iterator[Change]:
        """One rank's change."""
        if change.stage == "suspected":
            yield from self._suspected(change)
        elif change.stage == "withdrawn":
            yield from self._withdrawn(change)
        elif change.episode == 0:
            yield from self._alone(change)
        elif change.type == "relief" and change.verdict == "recovered":
            yield from self._relief(change)
        else:
            yield from self._slower(change)

    def _match(self, change: Change, events: list[Event]) -> Event | None:
        near = [e for e in events if abs(e.t_ns - change.onset_t_ns) <= e.window_ns]
        return min(near, key=lambda e: abs(e.t_ns - change.onset_t_ns)) if near else None

    def _event(self, change: Change, events: list[Event]) -> Event:
        found = self._match(change, events)
        if found is None:
            window = max(WINDOW_NS, WINDOW_ITERS * max(change.before_ns, change.after_ns))
            found = Event(change.onset_t_ns, window)
            events.append(found)
            del events[:-KEEP]
        return found

    def _of(self, change: Change) -> Event | None:
        """The event whose episode this change of a rank belongs to."""
        for event in reversed(self.events):
            mine = event.onset.get(change.rank)
            if mine is not None and mine.episode == change.episode:
                return event
        return None

    def _suspected(self, change: Change) -> Iterator[Change]:
        event = self._event(change, self.events)
        event.doubt[change.rank] = change
        if not event.suspected and not event.number and self._doubted(event):
            event.suspected = True
            yield self._sum("onset", "suspected", list(event.doubt.values()), change, 0)

    def _doubted(self, event: Event) -> bool:
        """Do most ranks suspect a change here, or know of one?"""
        self._count()
        if 4 * (len(event.doubt) + len(event.onset)) < self.known and not self.left:
            return False
        return self._most({**event.doubt, **event.onset})

    def _withdrawn(self, change: Change) -> Iterator[Change]:
        event = self._match(change, self.events)
        if event is None:
            return
        event.doubt.pop(change.rank, None)
        if event.suspected and not event.number and not self._doubted(event):
            event.suspected = False
            yield self._sum("onset", "withdrawn", [change], change, 0)

    def _slower(self, change: Change) -> Iterator[Change]:
        event = self._of(change)
        if event is None or not event.number:
            # A first onset, or one that gets worse where the job has not been declared slow: a vote for its time.
            event = self._event(change, self.events)
            if not event.over:
                event.onset[change.rank] = change
            yield from self._declare(event, change)
            return
        near = event.window_ns
        if event.over or abs(change.onset_t_ns - event.updated_t_ns) <= near:
            return
        same = {
            r: c
            for r, c in event.update.items()
            if c.type == change.type and abs(c.onset_t_ns - change.onset_t_ns) <= near
        }
        event.update = {**same, change.rank: change}
        if self._most(event.update):
            votes = list(event.update.values())
            event.update, event.updated_t_ns = {}, change.onset_t_ns
            yield self._sum(change.type, "confirmed", votes, change, event.number)

    def _declare(self, event: Event, change: Change) -> Iterator[Change]:
        if event.number or not self._most(event.onset):
            return
        if (same := self._declared(event)) is not None:
            for rank, onset in event.onset.items():
                same.onset.setdefault(rank, onset)
            self.events.remove(event)
            yield from self._end(same, change)
            return
        self.episodes += 1
        event.number = self.episodes
        votes = list(event.onset.values())
        yield self._sum(votes[0].type, "confirmed", votes, change, event.number)
        yield from self._end(event, change)

    def _declared(self, event: Event) -> Event | None:
        """The job's open episode that ranks of this event are in already, with the same episode of their own.

        A slow time that grew in two steps can be placed at the first by some ranks and at the second by others.
        """
        for other in self.events:
            if other is event or not other.number or other.over:
                continue
            for rank, onset in event.onset.items():
                if rank in other.onset and other.onset[rank].episode == onset.episode:
                    return other
        return None

    def _relief(self, change: Change) -> Iterator[Change]:
        event = self._of(change)
        if event is None:
            return
        event.relief[change.rank] = change
        yield from self._end(event, change)

    def _end(self, event: Event, change: Change) -> Iterator[Change]:
        """The job has recovered when most of the ranks that were slow have."""
        if event.number and not event.over and event.relief:
            waiting = len(event.onset) - len(event.relief)
            waiting -= sum(r in event.onset and r not in event.relief for r in self.gone(change.onset_t_ns))
            if len(event.relief) <= waiting:
                return
            event.over = True
            yield self._sum("relief", "confirmed", list(event.relief.values()), change, event.number)

    def _alone(self, change: Change) -> Iterator[Change]:
        """A change outside any episode: planned, warm-up, faster."""
        event = self._event(change, self.alone)
        if event.over:
            return
        event.onset[change.rank] = change
        if self._most(event.onset):
            event.over = True
            yield self._sum(change.type, "confirmed", list(event.onset.values()), change, 0)

    def recheck(self) -> Iterator[Change]:
        """A rank has gone: what was short of a majority may have one now."""
        for event in list(self.events):
            if event.onset and not event.number:
                yield from self._declare(event, max(event.onset.values(), key=lambda c: c.said_t_ns))
            elif event.number and not event.over and event.relief:
                yield from self._end(event, max(event.relief.values(), key=lambda c: c.said_t_ns))

    # -- records ------------------------------------------------------------------------------------

    def _sum(self, kind: str, stage: str, votes: list[Change], last: Change, number: int) -> Change:
        """The job's record: medians over the ranks, never sums (they wait for each other)."""

        def middle(name: str) -> float:
            return float(median(getattr(vote, name) for vote in votes))

        verdicts = [vote.verdict for vote in votes]
        ranks = sorted(vote.rank for vote in votes if vote.rank >= 0)  # a log without ranks has the job alone: -1
        first = min(votes, key=lambda vote: abs(vote.onset_t_ns - middle("onset_t_ns")))
        return replace(
            last,
            extra={},
            type=kind,
            stage=stage,
            level="job",
            rank=-1,
            episode=number,
            verdict=max(set(verdicts), key=lambda name: (verdicts.count(name), name)),
            before_ns=round(middle("before_ns")),
            after_ns=round(middle("after_ns")),
            ratio=middle("ratio"),
            ratio_lo=middle("ratio_lo"),
            ratio_hi=middle("ratio_hi"),
            probability=middle("probability"),
            onset_index=first.onset_index,
            onset_t_ns=first.onset_t_ns,
            said_index=max(vote.said_index for vote in votes),
            said_t_ns=max(vote.said_t_ns for vote in votes),
            n_iters=round(middle("n_iters")),
            lost_ns=round(middle("lost_ns")),
            ranks=ranks,
            why=f"{len(ranks)} of {self.voters(set(ranks), first.onset_t_ns)} ranks; {first.why}"
            if ranks
            else first.why,
        )
