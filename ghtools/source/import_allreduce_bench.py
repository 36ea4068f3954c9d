# SPDX-License-Identifier: Apache-2.0
"""Output of BigScience's all_reduce_bench.py: every rank prints the duration of each of some large all-reduces.

Such files come from running that script (bigscience or ml-engineering repositories) under a launcher, all ranks into
one file. The durations become calls with what each rank waited and sent: gh-profile can tell who came last. Ranks
write over each other; a duration goes to the rank that announced itself first and has none yet.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import DTYPES, FLAG_BYTES_UNKNOWN, OP_CODE, Comm, Job, Record

from .batches import Regroup
from .comm_names import group_id
from .importers import File, Options
from .lines import lines
from .logtext import plain

NAME = "allreduce-bench"
DOC = "output of all_reduce_bench.py (bigscience): durations of each rank's all-reduces as calls"

MAX_RANKS = 1 << 17
_RANK = re.compile(r"^(\d{1,6}):$")
_DURATION = re.compile(r"^\s?duration: (\d{1,6}\.\d{1,9}) sec")
_SIZE = re.compile(r"^(\d{1,6}) data size: (\d{1,6}(?:\.\d{1,6})?) GB$")
_RANK_HOST = re.compile(
    r"(\S{1,253}):(\d{1,8}):\d{1,8} \[\d{1,3}\] NCCL INFO comm \S{1,20} "
    r"rank (\d{1,6}) nranks (\d{1,6}) cudaDev (\d{1,4})"
)


def looks_like(first: bytes) -> bool:
    """Whether a line gives a duration below that of a rank."""
    text = first.decode("utf-8", "replace")
    return bool(re.search(r"^\d{1,6}:\n duration: [\d.]+ sec$", text, re.M)) or "all_reduce_bench" in text


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """A job, a communicator and calls with durations. InputError where there is no duration at all."""
    bench = _Bench(options)
    try:
        for file in files:
            for item in lines(file.source, file.name):
                if item is not None:
                    yield from bench.line(plain(item[1]))
    except (GhError, Stopped):
        yield from bench.rows.flush()
        raise
    yield from bench.rows.flush()
    if not bench.count:
        names = ", ".join(file.name for file in files[:3])
        raise InputError(f"no durations in {names}", "no rank prints 'duration: N sec'")


class _Bench:
    """Gives durations to ranks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._waiting: deque[int] = deque(maxlen=MAX_RANKS)
        self._bytes = 0
        self._places: dict[int, dict[str, object]] = {}
        self._seqs: dict[int, tuple[int, int]] = {}  # rank -> calls so far, time so far
        self._size = 0
        self.rows = Regroup()
        self.count = 0

    def line(self, text: str) -> Iterator[Record]:
        """One line: who speaks, how much data, where a rank lives, or a duration."""
        if duration := _DURATION.match(text):
            if self._waiting:
                yield from self._call(self._waiting.popleft(), round(float(duration[1]) * 1e9))
        elif rank := _RANK.match(text):
            if self._waiting.count(int(rank[1])) == 0:
                self._waiting.append(int(rank[1]))
        elif size := _SIZE.match(text):
            self._bytes = round(float(size[2]) * 1e9)
        elif place := _RANK_HOST.search(text[:600]):
            self._size = int(place[4])
            if len(self._places) < MAX_RANKS:
                self._places[int(place[3])] = {
                    "rank": int(place[3]), "local_rank": int(place[5]), "host": place[1], "pid": int(place[2]),
                    "incarnation": 0,
                }  # fmt: skip

    def _call(self, rank: int, dur_ns: int) -> Iterator[Record]:
        comm = group_id("all_reduce_bench", [])
        if not self.count:
            places = [self._places[known] for known in sorted(self._places)]
            yield Job(job=self._options.job, world_size=self._size, backend="nccl", ranks=places)
            yield Comm(
                comm=comm, size=self._size, ranks=list(range(min(self._size, MAX_RANKS))), name="world", backend="nccl"
            )
        self.count += 1
        seq, now = self._seqs.get(rank, (0, 0))
        self._seqs[rank] = (seq + 1, now + dur_ns)
        flags = 0 if self._bytes else FLAG_BYTES_UNKNOWN
        row = [now, OP_CODE["all_reduce"], DTYPES.index("float32"), flags, -1, comm, self._bytes, seq, dur_ns]
        yield from self.rows.add("calls", rank, {"rank": rank, "incarnation": 0}, row, -1, 0)
