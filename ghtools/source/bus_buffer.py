# SPDX-License-Identifier: Apache-2.0
"""Records that wait for Redis: in order, in bounded memory; when that is full the oldest calls go first.

What is dropped is counted by source, and for calls by rank, so that the next calls of that rank say in `lost` how many
are missing before them. Batches other than calls go next, and plain records last: a change or an alert is worth more
than its size.
"""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass
from typing import cast

from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Calls, End, Record, columns

from .bus_entry import events_of

ITEM_BYTES = 200  # what one waiting record costs beside its bytes


@dataclass
class Item:
    """One encoded record that waits."""

    order: int
    source: int  # number of the section it belongs to
    data: bytes
    events: int
    rank: int = -1
    lost: int = 0  # calls: what the batch itself says was lost before it
    calls: bool = False
    end: bool = False


class Buffer:
    """A queue of at most `limit_bytes`; not for several threads at once without a lock around it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        self.bytes = self.events = 0
        self.dropped: dict[int, int] = {}  # by source
        self._order = 0
        self._classes: tuple[deque[Item], ...] = (deque(), deque(), deque())  # calls, batches, the rest
        self._owed: dict[tuple[int, int], int] = {}  # (source, rank) -> calls missing before its next batch

    def __len__(self) -> int:
        return sum(map(len, self._classes))

    def fits(self, record: Record) -> bool:
        """Whether the record could be put without dropping anything (by the size of its columns)."""
        size = sum(getattr(record, name).nbytes for name in columns(type(record)))
        return not len(self) or self.bytes + size + 2 * ITEM_BYTES <= self.limit

    def put(self, source: int, record: Record) -> int:
        """Add a record; the events that had to be dropped for it."""
        item = Item(self._order, source, encode(record), events_of(record))
        which = 2
        if isinstance(record, Calls):
            item.calls, item.rank, item.lost, which = True, record.rank, record.lost, 0
        elif columns(type(record)):
            which = 1
        elif isinstance(record, End):
            item.end = True
        self._order += 1
        self._classes[which].append(item)
        self.bytes += len(item.data) + ITEM_BYTES
        self.events += item.events
        gone = 0
        while self.bytes > self.limit and len(self):
            gone += self._drop()
        return gone

    def take(self, most_bytes: int) -> list[Item]:
        """The oldest records of one source, up to `most_bytes` but at least one; empty if none waits."""
        taken: list[Item] = []
        size = 0
        while (queue := self._oldest()) is not None:
            item = queue[0]
            if taken and (size + len(item.data) > most_bytes or item.source != taken[0].source):
                break
            self._leave(queue)
            self._settle(item)
            size += len(item.data)
            taken.append(item)
        return taken

    def _oldest(self) -> deque[Item] | None:
        return min((queue for queue in self._classes if queue), key=lambda queue: queue[0].order, default=None)

    def _leave(self, queue: deque[Item]) -> Item:
        item = queue.popleft()
        self.bytes -= len(item.data) + ITEM_BYTES
        self.events -= item.events
        return item

    def _drop(self) -> int:
        """Drop the record that is worth least."""
        item = self._leave(next(queue for queue in self._classes if queue))
        self.dropped[item.source] = self.dropped.get(item.source, 0) + item.events
        if item.calls:
            key = (item.source, item.rank)
            self._owed[key] = self._owed.get(key, 0) + item.events + item.lost
        return item.events

    def _settle(self, item: Item) -> None:
        """Write into calls, and into an end, what was dropped before them."""
        if item.calls and (owed := self._owed.pop((item.source, item.rank), 0)):
            calls = cast(Calls, next(read_records(io.BytesIO(item.data))))
            calls.lost += owed
            item.data = encode(calls)
        elif item.end and (owed := self.dropped.get(item.source, 0)):
            end = cast(End, next(read_records(io.BytesIO(item.data))))
            end.lost += owed
            item.data = encode(end)
