# SPDX-License-Identifier: Apache-2.0
"""Reads text logs line by line for the importers of step logs; each says only how its lines look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import Record

from .importers import File, Options
from .lines import lines
from .logtext import Returns, Told, plain, speaker
from .points import Steps

MAX_RANKS = 1 << 16


@dataclass
class Found:
    """What a line says."""

    step: int
    ns: float  # duration of one iteration, or the time so far where `total`
    total: bool = False
    stamp_ns: int | None = None  # when the line was written
    rank: int = -1


class Scanner(Protocol):
    """How the lines of one format look."""

    def line(self, text: str, where: tuple[str, int]) -> Iterable[Found]:
        """What this line (file name, number) says, which may have begun on lines before."""
        ...

    def end(self) -> Iterable[Found]:
        """What the end of a file completes."""
        ...


def by_rank(options: Options) -> bool:
    """Whether --set by=rank was given: one series for each rank that a launcher's prefix names."""
    by = options.more.get("by", "job")
    if by not in ("job", "rank"):
        raise GhError(f"cannot read a log by {by}", "no such way", "--set by=job or by=rank")
    return by == "rank"


def read_log(
    files: Sequence[File], options: Options, scanner: Scanner, wanted: str, every: int = 0
) -> Iterator[Record]:
    """Iterations of all files, which are one log in several parts.

    `wanted` says in words what was looked for; `every` is the logging interval where it is known. Raises InputError
    where there is none, or where two files hold the same iterations; what was sound before is yielded first.
    """
    log = _Log(options, by_rank(options), every)
    try:
        for file in files:
            log.begin(file.name)
            for item in lines(Returns(Told(file.source, file.name, options.warn)), file.name):
                if item is None:
                    yield from log.quiet()
                    continue
                number, raw = item
                text = plain(raw)
                prefix = speaker(text, min(len(text), 200)) if log.by_rank else -1
                for found in scanner.line(text, (file.name, number)):
                    yield from log.add(found, prefix)
                log.line += 1
            for found in scanner.end():
                yield from log.add(found, -1)
    except (GhError, Stopped):
        yield from log.end()
        raise
    yield from log.end()
    log.say()
    if not log.count:
        names = ", ".join(file.name for file in files[:3]) + (", ..." if len(files) > 3 else "")
        raise InputError(
            f"no iterations in {names}", f"no line has {wanted}", "gh-import --formats for what else it may be"
        )


class _Log:
    """The series of all ranks."""

    def __init__(self, options: Options, by_rank: bool, every: int) -> None:
        self._options, self.by_rank, self._every = options, by_rank, every
        self._series: dict[int, Steps] = {}
        self._file = ""
        self.line = self.count = 0

    def begin(self, name: str) -> None:
        self._file = name
        for steps in self._series.values():
            steps.begin(name)

    def add(self, found: Found, prefix: int) -> Iterator[Record]:
        rank = found.rank if found.rank >= 0 else prefix if prefix >= 0 else self._options.rank
        steps = self._series.get(rank)
        if steps is None:
            if len(self._series) >= MAX_RANKS:
                raise InputError(f"bad input in {self._file}", f"over {MAX_RANKS} ranks")
            steps = self._series[rank] = Steps(rank, self._every)
            steps.begin(self._file)
        self.count += 1
        put = steps.total if found.total else steps.each
        yield from put(found.step, found.ns, found.stamp_ns, self.line)

    def quiet(self) -> Iterator[Record]:
        for steps in self._series.values():
            yield from steps.quiet()

    def end(self) -> Iterator[Record]:
        for steps in self._series.values():
            yield from steps.end()

    def say(self) -> None:
        """What was left out, once."""
        again = sum(steps.again for steps in self._series.values())
        if again:
            try_ = "" if self.by_rank else "; --set by=rank keeps ranks apart where the log names them"
            self._options.warn(f"{again} lines give a step a second time and were left out{try_}")
