# SPDX-License-Identifier: Apache-2.0
"""Records into a Redis stream: a thread of its own sends them, so that a slow or absent Redis slows nobody.

An entry is sent until Redis has taken it, under a number that stays the same, so a reader can drop what it gets twice.
A batch of entries is one transaction: all of it is there or nothing. Redis may lose what it has acknowledged (a crash
without an append-only file): entries of the last seconds are kept, looked for after a reconnect, and sent again if the
server has lost them.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ghtools.stream.bus_link import Backoff, BusUrl, bus_errors, connect, lasting, why
from ghtools.stream.errors import GhError, MissingError
from ghtools.stream.framing import encode
from ghtools.stream.records import Comm, End, Head, Job, Period, Record

from .bus_buffer import Buffer, Item
from .bus_entry import ENTRY_BYTES, MAX_ENTRY_BYTES, Entry, pieces, to_fields

GATHER_S = 0.05  # after a send, this long until the next, so that quick small records share an entry
FLIGHT_ENTRIES = 32  # entries of one transaction
REPEAT_S = 10.0  # how often a source says again what a late reader needs, which is its sign of life too
CONTEXT_RECORDS, CONTEXT_BYTES = 8192, 1 << 20
KEPT_S, KEPT_BYTES = 5.0, 8 << 20  # acknowledged entries that are kept in case the server loses them


@dataclass
class _Source:
    """One section of the stream that is published."""

    name: str
    head: Head
    context: dict[tuple[Any, ...], Record]
    number: int = 0
    events: int = 0
    ended: bool = False


@dataclass(frozen=True)
class Sent:
    """What became of the records: events are rows of batches, and plain records."""

    entries: int
    events: int
    dropped: int  # for want of room
    undelivered: int  # still waiting when it had to end
    reached: bool  # whether Redis was there at all


class Publisher:
    """Publishes sections of records to one stream. `begin`, `put`, `end`, ..., `close`; from one thread.

    `put` never waits, unless `wait`: then it waits for room (until `stopped` says so). MissingError is raised by any of
    them if Redis refuses at the very first contact for a reason that does not pass (password, certificate).
    """

    def __init__(
        self,
        url: BusUrl,
        stream: str,
        say: Callable[[str], None],
        *,
        host: str,
        pid: int,
        maxlen: int,
        buffer_bytes: int,
        wait: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._url, self._stream, self._say, self._maxlen = url, stream, say, maxlen
        self._who, self._wait, self._stopped = f"{_safe(host)}:{pid}", wait, stopped
        self._change = threading.Condition()
        self._buffer = Buffer(buffer_bytes)
        self._sources: list[_Source] = []
        self._too_large = 0
        self._flight: list[Entry] = []
        self._kept: deque[tuple[bytes, Entry, float]] = deque()
        self._kept_bytes = 0
        self._client: Any = None
        self._entries = self._events = 0
        self._reached = self._closing = False
        self._give_up = 0.0
        self._sent_at = self._repeat_at = 0.0
        self._away_since: float | None = None
        self._backoff = Backoff(random.Random(secrets.randbits(64)))
        self._fault: GhError | None = None
        self._bug: BaseException | None = None
        connect(url)  # a missing package or a wrong URL is said here
        self._thread = threading.Thread(target=self._run, name="gh-pub", daemon=True)
        self._thread.start()

    def begin(self, head: Head) -> None:
        """A new section: a new source."""
        name = f"{self._who}:{secrets.token_hex(6)}"
        with self._change:
            self._sources.append(_Source(name, head, {}))
            self._repeat_at = time.monotonic() + REPEAT_S
        self.put(head)

    def put(self, record: Record) -> None:
        """Hand over one record."""
        self._raise()
        for piece in pieces(record):
            self._put(piece)

    def end(self, end: End) -> None:
        """The section is over; its end record will carry what was dropped."""
        self.put(end)

    def close(self, linger_s: float) -> Sent:
        """Send what waits, for at most `linger_s` seconds without success, and say what became of it all."""
        with self._change:
            self._closing, self._give_up = True, time.monotonic() + linger_s
            self._change.notify_all()
        while self._thread.is_alive():
            self._thread.join(0.2)
            if self._stopped() and time.monotonic() > self._give_up:
                break  # a daemon: it ends with the process
        self._raise()
        with self._change:
            left = self._buffer.events + sum(entry.events for entry in self._flight)
            dropped = sum(self._buffer.dropped.values()) + self._too_large
            return Sent(self._entries, self._events, dropped, left, self._reached)

    def _raise(self) -> None:
        if self._bug is not None:
            raise self._bug
        if self._fault is not None:
            raise self._fault

    def _put(self, record: Record) -> None:
        with self._change:
            number = len(self._sources) - 1
            self._note(self._sources[number], record)
            if self._wait:
                while not self._buffer.fits(record) and not self._stopped() and self._thread.is_alive():
                    self._change.wait(0.2)
            before = self._buffer.bytes
            self._buffer.put(number, record)
            if not before or before < ENTRY_BYTES <= self._buffer.bytes:
                self._change.notify_all()

    def _note(self, source: _Source, record: Record) -> None:
        """Keep what a late reader needs: the last word on each job, communicator and period."""
        if isinstance(record, End):
            source.ended = True
            source.context.clear()  # nobody will be told again
        key: tuple[Any, ...]
        if isinstance(record, Job):
            key = ("job", record.job)
        elif isinstance(record, Comm):
            key = ("comm", record.comm, record.rank)
        elif isinstance(record, Period):
            key = ("period", record.rank)
        else:
            return
        if key in source.context or len(source.context) < CONTEXT_RECORDS:
            source.context[key] = record

    # --- the thread ---

    def _run(self) -> None:
        try:
            while self._collect():
                if not self._deliver():
                    return
        except GhError as error:
            self._fault = error
        except Exception as error:  # handed to the caller's thread, which shows it as the bug it is
            self._bug = error
        finally:
            if self._client is not None:
                self._client.close()
            with self._change:
                self._change.notify_all()

    def _collect(self) -> bool:
        """Wait for something to send and make entries of it; False when there is nothing more and never will be."""
        with self._change:
            while True:
                now = time.monotonic()
                hold = self._sent_at + GATHER_S - now
                due = self._sources and not self._sources[-1].ended and now >= self._repeat_at
                if len(self._buffer):
                    if hold <= 0 or self._closing or self._buffer.bytes >= ENTRY_BYTES:
                        break
                    self._change.wait(hold)
                elif self._closing:
                    return False
                elif due:
                    break
                else:
                    self._change.wait(max(0.0, self._repeat_at - now) if self._sources else 1.0)
            while len(self._flight) < FLIGHT_ENTRIES and (items := self._buffer.take(ENTRY_BYTES)):
                self._flight += self._entry(items)
            if due:
                self._flight.append(self._repeat(self._sources[-1]))
                self._repeat_at = now + REPEAT_S
            self._change.notify_all()
        return True

    def _entry(self, items: list[Item]) -> list[Entry]:
        source = self._sources[items[0].source]
        data = b"".join(item.data for item in items)
        events = sum(item.events for item in items)
        if len(data) > MAX_ENTRY_BYTES:
            self._too_large += events
            self._buffer.dropped[items[0].source] = self._buffer.dropped.get(items[0].source, 0) + events
            self._say(f"a record of {len(data) >> 20} MiB is too large to publish and was dropped")
            return []
        dropped = self._dropped(items[0].source)
        made = Entry(source.name, source.head.job, source.number, source.events, dropped, False, data, events)
        source.number += 1
        source.events += events
        return [made]

    def _dropped(self, number: int) -> int:
        return self._buffer.dropped.get(number, 0)

    def _repeat(self, source: _Source) -> Entry:
        """What a late reader needs, again."""
        data = encode(source.head)
        for record in list(source.context.values()):
            more = encode(record)
            if len(data) + len(more) > CONTEXT_BYTES:
                break
            data += more
        dropped = self._dropped(len(self._sources) - 1)
        return Entry(source.name, source.head.job, source.number, source.events, dropped, True, data)

    def _deliver(self) -> bool:
        """Send the flight until Redis has it; False if the time for that is over."""
        errors = bus_errors()
        while True:
            try:
                if self._client is None:
                    self._open()
                self._add(self._flight)
            except errors as error:
                self._fell(error)
                if not self._sleep(self._backoff.pause_s()):
                    return False
                continue
            if self._away_since is not None:
                self._say(f"{self._url.label} is back after {time.monotonic() - self._away_since:.1f} s")
            self._away_since, self._reached = None, True
            self._backoff.reset()
            with self._change:
                self._sent_at = time.monotonic()
                self._entries += len(self._flight)
                self._events += sum(entry.events for entry in self._flight)
                self._flight.clear()
                if self._closing:  # it works: the time to give up counts from the last success
                    self._give_up = max(self._give_up, self._sent_at + 1.0)
            return True

    def _open(self) -> None:
        """Connect, and send again what the server has lost."""
        client = connect(self._url)
        try:
            client.ping()
            self._client = client
            if lost := self._lost_by_server():
                self._add(lost)
                self._say(f"{self._url.label} had lost {len(lost)} entries; they were sent again")
        except BaseException:
            self._client = None
            client.close()
            raise

    def _lost_by_server(self) -> list[Entry]:
        """Kept entries that the stream does not hold any more though it holds none that are newer than they."""
        if not self._kept:
            return []
        pipe = self._client.pipeline(transaction=False)
        pipe.xrange(self._stream, count=1)
        for id_, _, _ in self._kept:
            pipe.xrange(self._stream, id_, id_, 1)
        first, *found = pipe.execute()
        oldest = _id(first[0][0]) if first else (0, 0)  # what is older was trimmed, not lost
        lost = [kept for kept, there in zip(self._kept, found, strict=True) if not there and _id(kept[0]) >= oldest]
        for kept in lost:
            self._kept.remove(kept)
            self._kept_bytes -= len(kept[1].data)
        return [entry for _, entry, _ in lost]

    def _add(self, entries: list[Entry]) -> None:
        """Append entries in one transaction."""
        pipe = self._client.pipeline(transaction=True)
        for entry in entries:
            pipe.xadd(self._stream, to_fields(entry), maxlen=self._maxlen, approximate=True)
        ids = pipe.execute()
        now = time.monotonic()
        for id_, entry in zip(ids, entries, strict=True):
            if not entry.repeat:
                self._kept.append((id_, entry, now))
                self._kept_bytes += len(entry.data)
        self._forget()

    def _forget(self) -> None:
        """Let go of entries that the server had long before the last it took."""
        while self._kept and (self._kept[-1][2] - self._kept[0][2] > KEPT_S or self._kept_bytes > KEPT_BYTES):
            self._kept_bytes -= len(self._kept.popleft()[1].data)

    def _fell(self, error: Exception) -> None:
        """The connection failed, or the server refuses."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if not self._reached and lasting(error):
            raise MissingError(f"cannot publish to {self._url.label}", why(error)) from None
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._say(f"{self._url.label} is away: {why(error)}; records wait")

    def _sleep(self, seconds: float) -> bool:
        """Wait before the next try; False if there will be none."""
        until = time.monotonic() + seconds
        with self._change:
            while (now := time.monotonic()) < until:
                if self._closing:
                    until = min(until, self._give_up)
                self._change.wait(max(0.0, min(until - now, 0.5)))
            return not self._closing or time.monotonic() < self._give_up


def _safe(host: str) -> str:
    """A host name for a source's name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in host)[:100] or "host"


def _id(text: bytes) -> tuple[int, int]:
    """An entry's id as numbers, for comparison."""
    ms, _, number = text.partition(b"-")
    return int(ms), int(number or 0)
