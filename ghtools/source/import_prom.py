# SPDX-License-Identifier: Apache-2.0
"""Answers of Prometheus (also Thanos, Mimir, VictoriaMetrics) to a range query, as JSON.

`curl 'http://HOST:9090/api/v1/query_range?query=METRIC&start=..&end=..&step=15s'` makes them. Each series becomes
`sample` records: any metric, with its labels. With --set as=iters the values are iteration times (in --unit), with
--set as=counter they count iterations and the time between samples tells the rest; then the label `rank` (or
--set rank_label=NAME) tells the rank. Samples are as far apart as the query's step: what lasted less is not in them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import Record, Sample

from .importers import File, Options
from .jsonpull import Leaves, Path
from .logtext import Told, printable
from .points import Steps
from .series import UNITS_NS

NAME = "prom"
DOC = (
    "JSON of a Prometheus range query (/api/v1/query_range): samples of any metric; --set as=iters (values are "
    "iteration times in --unit) or as=counter (values count iterations), --set rank_label=NAME"
)

BATCH = 4096
MAX_LABELS = 128
_UNITS = {
    "seconds": "s", "milliseconds": "ms", "bytes": "B", "celsius": "C", "watts": "W", "joules": "J", "ratio": "ratio",
    "percent": "%", "hertz": "Hz", "volts": "V", "amperes": "A", "meters": "m",
}  # fmt: skip


def looks_like(first: bytes) -> bool:
    """Whether it begins as an answer of the query interface."""
    text = first[:4096].translate(None, b" \t\r\n")
    return text.startswith(b'{"status":"') and (b'"resultType"' in text or b'"errorType"' in text)


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Sample records, or iters. InputError where the JSON is broken or cut, the query failed, or nothing was found."""
    as_ = options.more.get("as", "samples")
    if as_ not in ("samples", "iters", "counter"):
        raise GhError(f"cannot read series as {as_}", "no such way", "--set as=samples, as=iters or as=counter")
    if options.unit not in UNITS_NS:
        raise GhError(f"cannot read values in {options.unit}", "no such unit", "--unit s, ms, us or ns")
    answer = _Samples(options) if as_ == "samples" else _Iters(options, as_ == "counter")
    try:
        for file in files:
            answer.begin(file.name)
            found = Leaves(Told(file.source, file.name, options.warn), file.name)
            for path, key, value in found:
                try:
                    yield from answer.leaf(path, key, value)
                except ValueError as error:
                    raise InputError(f"bad input at {found.where()}", str(error)) from None
            yield from answer.close()
            if not answer.count:
                raise InputError(f"no samples in {file.name}", "data.result is empty or missing")
        yield from answer.end()
    except (GhError, Stopped):
        yield from answer.close()
        yield from answer.end()
        raise


class _Answer:
    """Walks the leaves of an answer: labels, then pairs of time and value."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.labels: dict[str, str] = {}
        self.count = 0
        self._series: object = None
        self._time: float | None = None

    def begin(self, name: str) -> None:
        """Another file."""
        self.count, self._series, self._time, self.labels = 0, None, None, {}

    def leaf(self, path: Path, key: str | int, value: object) -> Iterator[Record]:
        """What one value means. Raises ValueError where a sample is none, InputError where the query failed."""
        if path == () and key in ("error", "errorType") and value:
            raise InputError("the answer is an error", printable(str(value)))
        if len(path) < 4 or path[:2] != ("data", "result"):
            return
        if path[2] != self._series:
            yield from self.close()
            self._series, self.labels = path[2], {}
        if path[3] == "metric" and len(path) == 4:
            if len(self.labels) < MAX_LABELS:
                self.labels[str(key)[:1024]] = str(value)[:1024]
        elif (path[3] == "values" and len(path) == 5) or (path[3] == "value" and len(path) == 4):
            if key == 0:
                self._time = _finite(value)
            elif key == 1 and self._time is not None:
                self.count += 1
                yield from self.sample(round(self._time * 1e6) * 1000, _float(value))

    def sample(self, t_ns: int, value: float) -> Iterator[Record]:
        """One sample of the series of `labels`."""
        raise NotImplementedError

    def close(self) -> Iterator[Record]:
        """The series has ended."""
        return iter(())

    def end(self) -> Iterator[Record]:
        """All files were read."""
        return iter(())


class _Samples(_Answer):
    """Series as they are."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._times, self._values = array("q"), array("d")

    def sample(self, t_ns: int, value: float) -> Iterator[Record]:
        self._times.append(t_ns)
        self._values.append(value)
        if len(self._times) >= BATCH:
            yield from self.close()

    def close(self) -> Iterator[Record]:
        if not self._times:
            return
        labels = dict(self.labels)
        metric = labels.pop("__name__", "")
        times, values = np.array(self._times, np.int64), np.array(self._values, np.float64)
        self._times, self._values = array("q"), array("d")
        unit = next((_UNITS[word] for word in reversed(metric.split("_")[-2:]) if word in _UNITS), "")
        yield Sample(metric=metric, unit=unit, labels=labels, t_ns=times, value=values)


class _Iters(_Answer):
    """Iteration times, or counters of iterations."""

    def __init__(self, options: Options, is_counter: bool) -> None:
        super().__init__(options)
        self._is_counter = is_counter
        self._scale = UNITS_NS[options.unit]
        self._label = options.more.get("rank_label", "rank")
        self._ranks: dict[int, Steps] = {}
        self._numbers: dict[int, int] = {}
        self._now: Steps | None = None
        self._seen: set[int] = set()  # ranks of this file
        self._name = ""

    def begin(self, name: str) -> None:
        super().begin(name)
        self._name, self._now = name, None
        self._seen = set()

    def sample(self, t_ns: int, value: float) -> Iterator[Record]:
        steps = self._now or self._open()
        number = self._numbers[steps.rank] = self._numbers.get(steps.rank, -1) + 1
        if not math.isfinite(value):
            return
        if self._is_counter:
            yield from steps.total(int(value), t_ns, t_ns, 0)
        elif value > 0:
            yield from steps.each(number, value * self._scale, t_ns, 0)

    def _open(self) -> Steps:
        text = self.labels.get(self._label, "")
        rank = int(text) if text.isdecimal() and len(text) < 10 else self.options.rank
        if rank in self._seen:
            who = "the job" if rank < 0 else f"rank {rank}"
            why = f"a second series is that of {who}"
            raise InputError(f"cannot read {self._name}", why, "--set rank_label=NAME, or a query of one series")
        self._seen.add(rank)
        self._now = self._ranks.setdefault(rank, Steps(rank, every=1))
        return self._now

    def close(self) -> Iterator[Record]:
        if self._now:
            yield from self._now.end()
        self._now = None


def _float(value: object) -> float:
    """Prometheus writes values as text: 1.5, NaN, +Inf."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{ascii(value)[:60]} is no value")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{ascii(value)[:60]} is no value") from None


def _finite(value: object) -> float:
    time_s = _float(value)
    if not 0 <= time_s < 9e9:
        raise ValueError(f"{ascii(value)[:60]} is no time")
    return time_s
