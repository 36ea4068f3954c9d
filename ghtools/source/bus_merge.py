# SPDX-License-Identifier: Apache-2.0
"""Entries of many sources to one stream of records: each once, in each source's order, losses counted (DESIGN 8).

Heads and ends of the sources are not forwarded: the reader writes its own. An entry whose number is not above the
last one of its source is a repeat and is dropped; a number that is missing is a loss (the stream was trimmed before it
was read). Entries that are not gh-pub's, or are damaged, are counted and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ghtools.stream.framing import GOOD_ENDS
from ghtools.stream.records import Calls, End, Head, Iters, Job, Record

from .bus_entry import Entry, events_of, from_fields, records_of

MAX_SOURCES, MAX_RANKS = 10_000, 1 << 16  # MAX_RANKS: of all sources together
MAX_COUNT = 1 << 62  # no sum of losses is larger, whatever the sources say: it must fit into a record
FORGET_S = 3600.0  # an ended source that has been quiet this long is forgotten when room is needed


@dataclass
class SourceState:
    """What is known of one source."""

    name: str
    job: str
    seen_s: float
    number: int = -1  # of the last entry
    events: int = 0  # up to and with that entry
    dropped: int = 0
    known: bool = False  # whether head, job and communicators have been forwarded here
    ended: bool = False
    reason: str = ""
    silent: bool = False
    seqs: dict[int, int] = field(default_factory=dict)  # rank -> seq of its last call
    torn: set[int] = field(default_factory=set)  # ranks whose next calls come after a gap

    @property
    def host(self) -> str:
        return self.name.partition(":")[0]

    @property
    def label(self) -> str:
        """For people: host and pid."""
        return ":".join(self.name.split(":")[:2])


class Merger:
    """Takes entries in the order of the Redis stream, gives the records to forward.

    `whole`: reading begins at the start of the stream, so what is missing before the first entry of a source is a loss.
    Clocks are arguments, in seconds, from any origin.
    """

    def __init__(self, say: Callable[[str], None], silent_s: float, whole: bool) -> None:
        self._say, self._silent_s, self._whole = say, silent_s, whole
        self.sources: dict[str, SourceState] = {}
        self.skipped = self.repeated = self.gaps = 0
        self._gone = 0  # lost by sources that were forgotten
        self.job = ""
        self.truth: dict[str, Any] = {}
        self._owner: dict[tuple[str, int], str] = {}
        self._clashes: set[tuple[str, int]] = set()
        self._ranks = 0  # kept in the `seqs` of all sources

    @property
    def lost(self) -> int:
        """Events known to be lost: said by the sources, and missing between their entries."""
        return min(MAX_COUNT, self._gone + self.gaps + sum(source.dropped for source in self.sources.values()))

    @property
    def over(self) -> bool:
        """Whether there were sources and all of them have ended, or went silent."""
        return bool(self.sources) and all(source.ended or source.silent for source in self.sources.values())

    @property
    def reason(self) -> str:
        """Why the stream ends, when it ends since its sources have."""
        for source in self.sources.values():
            if not source.ended:
                return f"cut: source {source.label} {'went silent' if source.silent else 'had not ended'}"
            if source.reason not in GOOD_ENDS:
                return f"cut: source {source.label}: {source.reason.removeprefix('cut: ')}"
        return "done"

    def take(self, fields: Mapping[bytes, bytes], now_s: float) -> list[Record]:
        """The records of one entry that are to be forwarded."""
        try:
            entry = from_fields(fields)
            known = self.sources.get(entry.source)
            if known is not None and entry.number <= known.number:
                known.seen_s = now_s
                self.repeated += 1
                return []
            records = records_of(entry)
        except ValueError as error:
            return self._skip(str(error))
        source = known or self._new(entry, now_s)
        if source is None:
            return self._skip(f"there are over {MAX_SOURCES} sources")
        self._alive(source, now_s)
        self._count(source, entry)
        if entry.repeat:
            forward = not source.known
        else:
            source.number = entry.number
            source.events = entry.before + sum(events_of(record) for record in records)
            forward = True
        return [record for record in records if self._one(source, record) and forward]

    def _skip(self, reason: str) -> list[Record]:
        self.skipped += 1
        self._say(f"an entry was left out: {reason}")
        return []

    def _new(self, entry: Entry, now_s: float) -> SourceState | None:
        if len(self.sources) >= MAX_SOURCES:
            for name, old in list(self.sources.items()):
                if (old.ended or old.silent) and now_s - old.seen_s > FORGET_S:
                    self._gone += old.dropped
                    self._ranks -= len(old.seqs)
                    del self.sources[name]
        if len(self.sources) >= MAX_SOURCES:
            return None
        made = SourceState(entry.source, entry.job, now_s)
        if not self._whole:  # what was before is not wanted
            made.number, made.events = entry.number - 1, entry.before
        if self.job and entry.job != self.job:
            self._say(f"source {made.label} is of job {entry.job!r}, others of {self.job!r}")
        self.job = self.job or entry.job
        self.sources[entry.source] = made
        return made

    def _alive(self, source: SourceState, now_s: float) -> None:
        source.seen_s = now_s
        if source.silent:
            source.silent = False
            self._say(f"source {source.label} is heard again")

    def _count(self, source: SourceState, entry: Entry) -> None:
        """See whether entries are missing before this one, and what the source itself has lost."""
        if not source.ended:
            source.dropped = max(source.dropped, entry.dropped)
        missing = entry.number - source.number - 1
        if missing > 0:
            events = max(0, entry.before - source.events)
            self.gaps += events
            self._say(f"{missing} entries ({events} events) of source {source.label} were gone before they were read")
            source.number, source.events = entry.number - 1, entry.before
            source.torn = set(source.seqs)
            source.known = False  # communicators may have been among them: the next repeat is forwarded

    def _one(self, source: SourceState, record: Record) -> bool:
        """Note what a record says of its source; whether it is one to forward."""
        if isinstance(record, Head):
            source.known = True
            self.truth = self.truth or record.truth
            return False
        if isinstance(record, End):
            source.ended, source.dropped = True, max(record.lost, source.dropped)
            source.reason = "".join(c if c.isprintable() else "?" for c in record.reason[:200])  # for a terminal, too
            if source.reason not in GOOD_ENDS:
                self._say(f"source {source.label} ended: {source.reason}")
            return False
        if isinstance(record, Calls):
            self._mend(source, record)
            self._claim(source, record.rank)
        elif isinstance(record, Iters):
            self._claim(source, record.rank)
        elif isinstance(record, Job):
            for rank in record.ranks:
                if isinstance(rank.get("rank"), int):
                    self._claim(source, rank["rank"])
        return True

    def _mend(self, source: SourceState, calls: Calls) -> None:
        """Calls after a gap say how many of this rank are missing, as far as their numbers tell."""
        if not len(calls.seq):
            return
        last = source.seqs.get(calls.rank)
        if calls.rank in source.torn:
            source.torn.discard(calls.rank)
            if last is not None:
                calls.lost = min(MAX_COUNT, max(calls.lost, int(calls.seq[0]) - last - 1))
        if last is None and self._ranks < MAX_RANKS:
            self._ranks += 1
        elif last is None:
            return
        source.seqs[calls.rank] = int(calls.seq.max())

    def _claim(self, source: SourceState, rank: int) -> None:
        """A rank belongs to one source; a second one that lives beside it is said once."""
        if rank < 0:
            return
        key = (source.job, rank)
        owner = self.sources.get(self._owner.get(key, ""))
        if owner is None or owner is source or owner.ended or owner.silent or owner.host == source.host:
            if len(self._owner) < MAX_RANKS or key in self._owner:
                self._owner[key] = source.name
        elif key not in self._clashes and len(self._clashes) < MAX_RANKS:
            self._clashes.add(key)
            self._say(f"rank {rank} comes from {owner.label} and from {source.label}; both are forwarded")

    def tick(self, now_s: float) -> None:
        """Say which sources have gone silent; call now and then."""
        for source in self.sources.values():
            if not source.ended and not source.silent and now_s - source.seen_s > self._silent_s:
                source.silent = True
                self._say(f"source {source.label} has been silent for {self._silent_s:g} s")

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on where this stopped."""
        return {
            "job": self.job,
            "sources": [
                [s.name, s.job, s.number, s.events, s.dropped, s.ended, s.reason] for s in self.sources.values()
            ],
        }

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Take up what `state` gave; ValueError if it is not that."""
        try:
            self.job = str(state["job"])
            for name, job, number, events, dropped, ended, reason in state["sources"]:
                made = SourceState(str(name), str(job), now_s, int(number), int(events), int(dropped))
                made.ended, made.reason = bool(ended), str(reason)
                self.sources[made.name] = made
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"its content is damaged ({type(error).__name__})") from None
