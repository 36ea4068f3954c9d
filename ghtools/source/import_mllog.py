# SPDX-License-Identifier: Apache-2.0
"""MLPerf logs: lines with `:::MLLOG {json}`.

The mlperf_logging package (mllog) writes them, to stdout or to the result_N.txt of a submission. The steps come from
`tracked_stats`: a step time, or a throughput in samples a second, which `global_batch_size` turns into one. They tell
the iteration time of the job; they cannot tell which rank is slow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ghtools.stream.errors import InputError
from ghtools.stream.records import Record

from .importers import File, Options
from .lines import place
from .steplog import Found, read_log

NAME = "mllog"
DOC = "MLPerf :::MLLOG lines (mlperf_logging; result_N.txt): step times or throughput of tracked_stats; not who is slow"

_MARK = ":::MLLOG"
_STEP_TIMES = ("train_step_time", "step_time")  # seconds
_THROUGHPUTS = ("throughput",)  # samples a second, of the whole job
_STEPS = ("step_num", "step", "iteration", "iteration_num")
_SAMPLES = ("samples_count", "samples")
_DECODER = json.JSONDecoder()


def looks_like(first: bytes) -> bool:
    """Whether some line has the mark."""
    return _MARK.encode() in first


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Iterations of the job, or of each rank that a prefix names (--set by=rank). See steplog.read_log for errors."""
    return read_log(files, options, _Mllog(options), "tracked_stats with a step and a throughput or step time")


class _Mllog:
    """Steps of tracked_stats; remembers the batch size."""

    def __init__(self, options: Options) -> None:
        self._warn = options.warn
        self._warned: set[str] = set()
        self._batch = 0.0
        self._bad: tuple[str, str] | None = None  # where and why, of the first broken line

    def line(self, text: str, where: tuple[str, int]) -> Iterator[Found]:
        """All marks of a line, which may be glued to other output; broken ones are told at the end."""
        at = text.find(_MARK)
        while at >= 0:
            begin = text.find("{", at, at + 40)
            if begin < 0:
                at = text.find(_MARK, at + 1)
                continue
            try:
                item, end = _DECODER.raw_decode(text, begin)
            except (ValueError, RecursionError) as error:
                why = getattr(error, "msg", "nested too deeply").lower()
                self._bad = self._bad or (place(*where), why)
                at = text.find(_MARK, begin)
                continue
            yield from self._event(item)
            at = text.find(_MARK, end)

    def end(self) -> Iterator[Found]:
        """Another file is another run, maybe with another batch size. Raises InputError where lines were broken."""
        self._batch = 0.0
        bad, self._bad = self._bad, None
        if bad:
            raise InputError(f"bad input at {bad[0]}", f"the JSON after {_MARK} is broken: {bad[1]}")
        return iter(())

    def _event(self, item: dict[str, Any]) -> Iterator[Found]:
        key, value = item.get("key"), item.get("value")
        if key == "global_batch_size":
            self._batch = _number(value) or 0.0
        if key != "tracked_stats" or not isinstance(value, dict):
            return
        meta = item.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        step = _first(_STEPS, meta, value)
        if step is None:
            samples = _first(_SAMPLES, meta, value)
            step = samples / self._batch if samples is not None and self._batch > 0 else None
        ns = self._step_ns(value)
        time_ms = _number(item.get("time_ms"))
        if step is None or ns is None or not math.isfinite(step):
            self._say("some tracked_stats have no step, or neither throughput nor step time: left out")
            return
        stamp = round(time_ms * 1e6) if time_ms is not None and 0 < time_ms < 1e13 else None
        yield Found(int(step), ns, stamp_ns=stamp)

    def _step_ns(self, value: dict[str, Any]) -> float | None:
        seconds = _first(_STEP_TIMES, value)
        if seconds is not None:
            return seconds * 1e9
        rate = _first(_THROUGHPUTS, value)
        if rate is None or rate <= 0:
            return None
        if self._batch <= 0:
            self._say("no global_batch_size before the first throughput: durations are those of one sample")
        return (self._batch or 1.0) / rate * 1e9

    def _say(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)


def _first(names: tuple[str, ...], *maps: dict[str, Any]) -> float | None:
    for item in maps:
        for name in names:
            number = _number(item.get(name))
            if number is not None:
                return number
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
