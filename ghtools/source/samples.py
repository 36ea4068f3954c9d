# SPDX-License-Identifier: Apache-2.0
"""Values with names to `sample` records: one series for each metric and its labels, held back until there are many."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from ghtools.stream.records import Sample

BATCH = 4096
MAX_SERIES = 20_000  # that are open at once; more are written as they are and begun anew
MAX_LABELS, MAX_TEXT = 64, 200

Labels = dict[str, str]


class Samples:
    """Collects values; `add` yields what had to be written, `flush` the rest in the order of first sight."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, tuple[tuple[str, str], ...]], tuple[array[int], array[float]]] = {}
        self.count = 0

    def add(self, metric: str, unit: str, labels: Labels, t_ns: int, value: float) -> Iterator[Sample]:
        """One value at a time in ns since the epoch (or since the begin of the file); NaN is 'no data'."""
        known = tuple((key[:MAX_TEXT], text[:MAX_TEXT]) for key, text in list(labels.items())[:MAX_LABELS])
        key = (metric[:MAX_TEXT], unit, known)
        if key not in self._open and len(self._open) >= MAX_SERIES:
            yield from self.flush()
        times, values = self._open.setdefault(key, (array("q"), array("d")))
        times.append(t_ns)
        values.append(value)
        self.count += 1
        if len(times) >= BATCH:
            yield _sample(key, *self._open.pop(key))

    def flush(self) -> Iterator[Sample]:
        """All that is held."""
        held, self._open = self._open, {}
        for key, (times, values) in held.items():
            yield _sample(key, times, values)


def _sample(key: tuple[str, str, tuple[tuple[str, str], ...]], times: array[int], values: array[float]) -> Sample:
    metric, unit, labels = key
    return Sample(
        metric=metric,
        unit=unit,
        labels=dict(labels),
        t_ns=np.array(times, np.int64),
        value=np.array(values, np.float64),
    )
