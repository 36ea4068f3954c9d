# SPDX-License-Identifier: Apache-2.0
"""Records of many ranks that come rank after rank, put side by side: some iterations of all ranks at a time.

A reader that compares ranks sees them as from a running job, and need not hold all of one to compare it with the next.
Where there is too much to hold, what is held is let go and the rest follows in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import GhError
from ghtools.stream.records import Calls, Iters, Record, columns

MAX_ROWS = 1 << 20
MAX_PARTS = 1 << 12  # over all ranks
ROWS = 64  # calls of a rank at a time, where there are no iterations

_END = np.iinfo(np.int64).max


class Interleave:
    """Holds calls and iterations; `add` and `release` give them in parts, calls before the iterations they are in."""

    def __init__(self) -> None:
        self._calls: dict[int, list[Calls]] = {}
        self._iters: dict[int, list[Iters]] = {}
        self._rows = 0

    def add(self, record: Calls | Iters) -> Iterator[Calls | Iters]:
        """One batch, sorted by time; gives everything held if that is too much."""
        if isinstance(record, Calls):
            self._calls.setdefault(record.rank, []).append(record)
        else:
            self._iters.setdefault(record.rank, []).append(record)
        self._rows += len(record.t_ns)
        if self._rows >= MAX_ROWS:
            yield from self.release()

    def release(self) -> Iterator[Calls | Iters]:
        """Everything held."""
        calls, iters, self._rows = self._calls, self._iters, 0
        self._calls, self._iters = {}, {}
        ranks = sorted(calls.keys() | iters.keys())
        if not ranks:
            return
        index = np.unique(
            np.concatenate([np.empty(0, np.int64), *(part.index for made in iters.values() for part in made)])
        )
        most = max((len(part.t_ns) for made in calls.values() for part in made), default=0)
        parts = min(max(MAX_PARTS // len(ranks), 1), len(index) or most // ROWS + 1) if len(ranks) > 1 else 1
        starts = index[np.arange(parts) * len(index) // parts] if len(index) else index
        edges = {rank: _edges(iters.get(rank, []), starts, calls.get(rank, []), parts) for rank in ranks}
        for part in range(parts):
            for rank in ranks:
                for batch in calls.get(rank, []):
                    if len((piece := _cut(batch, edges[rank], part)).t_ns):
                        yield piece
            for rank in ranks:
                for made in iters.get(rank, []):
                    if len((rows := _cut(made, edges[rank], part)).t_ns):
                        yield rows


def side_by_side(records: Iterator[Record]) -> Iterator[Record]:
    """All records: calls and iterations in parts, held as long as there is room, the others as they come.

    An error among `records` is raised after what came before it.
    """
    together = Interleave()
    bad: GhError | None = None
    try:
        for record in records:
            if isinstance(record, Calls | Iters):
                yield from together.add(record)
            else:
                yield record
    except GhError as error:
        bad = error
    yield from together.release()
    if bad:
        raise bad


def _edges(iters: list[Iters], starts: NDArray[np.int64], calls: list[Calls], parts: int) -> NDArray[np.int64]:
    """Times at which the parts of a rank begin, and one at the end: those of its iterations, or of equal shares."""
    if iters and len(starts):
        index, t_ns = (np.concatenate([getattr(part, name) for part in iters]) for name in ("index", "t_ns"))
        order = np.argsort(t_ns, kind="stable")
        index, t_ns = np.maximum.accumulate(index[order]), t_ns[order]
        begin = np.append(t_ns, _END)[np.searchsorted(index, starts)]
    else:
        all_ = np.sort(np.concatenate([np.empty(0, np.int64), *(batch.t_ns for batch in calls)]))
        begin = all_[np.arange(parts) * len(all_) // parts] if len(all_) else np.zeros(parts, np.int64)
    begin[0] = np.iinfo(np.int64).min
    return np.append(begin, _END)


def _cut(batch: Calls | Iters, edges: NDArray[np.int64], part: int) -> Calls | Iters:
    begin, end = np.searchsorted(batch.t_ns, edges[part : part + 2])
    taken = {name: getattr(batch, name)[begin:end] for name in columns(type(batch))}
    return type(batch)(rank=batch.rank, incarnation=batch.incarnation, **taken)
