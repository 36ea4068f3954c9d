# SPDX-License-Identifier: Apache-2.0
"""Alerts as a Prometheus text file, for node_exporter's textfile collector."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ghtools.stream.errors import GhError
from ghtools.stream.records import Alert, Change, Period

EVERY_S = 30.0
SERIES_MAX = 1000  # label sets of one metric; a job of 100,000 ranks must not flood the collector
PARTS_MAX = 32  # of one episode
LABEL_MAX = 128  # characters of one label's value

Key = tuple[str, str, str]  # job, level, rank ("" for the job)

METRICS: dict[str, tuple[str, str]] = {
    "ght_iteration_seconds": ("gauge", "Level of the iteration time after the last confirmed change."),
    "ght_slow": ("gauge", "1 while an episode of severity warning is open, else 0."),
    "ght_slow_ratio": ("gauge", "Iteration time against that before the open episode, 1 when none is open."),
    "ght_episodes_total": ("counter", "Episodes that were alerted."),
    "ght_episode_lost_seconds_total": ("counter", "Time lost in episodes that are over."),
    "ght_alerts_total": ("counter", "Alerts of any state."),
}


def escape(value: str) -> str:
    """A label's value as the text format wants it, on one line and of bounded length."""
    return value[:LABEL_MAX].replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").replace("\r", " ")


class Metrics:
    """The values, fed with records; `text()` prints them."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self.dropped = 0
        self._max = series_max
        self._values: dict[str, dict[Key, float]] = {name: {} for name in METRICS}
        self._keys: set[Key] = set()
        self._parts: dict[tuple[str, str], list[dict[str, Any]]] = {}  # job and episode -> what was named

    def _ok(self, key: Key) -> bool:
        if key in self._keys:
            return True
        if len(self._keys) >= self._max:
            self.dropped += 1
            return False
        self._keys.add(key)
        for name in METRICS:
            if name != "ght_iteration_seconds":  # not known until it is
                self._values[name][key] = 1.0 if name == "ght_slow_ratio" else 0.0
        return True

    def level(self, job: str, level: str, rank: int, ns: int) -> None:
        """The iteration time of a job or rank is `ns` now."""
        key = (job, level, str(rank) if level == "rank" else "")
        if ns > 0 and self._ok(key):
            self._values["ght_iteration_seconds"][key] = ns / 1e9

    def period(self, job: str, period: Period) -> None:
        """A first idea of the iteration time, until a change says better."""
        if period.rank == -1 and period.state == "found" and (job, "job", "") not in self._keys:
            self.level(job, "job", -1, period.dur_ns)

    def change(self, job: str, change: Change) -> None:
        """A confirmed change of level."""
        if change.stage == "confirmed":
            self.level(job, change.level, change.rank, change.after_ns)

    def alert(self, alert: Alert) -> None:
        """An alert that was given."""
        key = (alert.job, alert.level, str(alert.rank) if alert.level == "rank" else "")
        if not self._ok(key):
            return
        over = alert.state == "recovered"
        self._values["ght_alerts_total"][key] += 1
        self._parts.pop((alert.job, alert.id), None)
        if alert.suspects and not over and len(self._parts) < self._max:
            self._parts[alert.job, alert.id] = alert.suspects
        if alert.state in ("named", "cleared", "unnamed"):
            return  # who is slow, not how slow the job is
        self._values["ght_slow"][key] = 0.0 if over or alert.severity == "info" else 1.0
        self._values["ght_slow_ratio"][key] = 1.0 if over else alert.ratio
        if over:
            self._values["ght_episode_lost_seconds_total"][key] += alert.lost_ns / 1e9
        elif alert.state in ("slow", "drift"):
            self._values["ght_episodes_total"][key] += 1

    def text(self) -> str:
        """The exposition text, metrics and series in a fixed order."""
        lines = []
        for name, (kind, help_) in METRICS.items():
            if series := self._values[name]:
                lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
                lines += [
                    f'{name}{{job="{escape(job)}",level="{escape(level)}",rank="{escape(rank)}"}} {value:.9g}'
                    for (job, level, rank), value in sorted(series.items())
                ]
        if parts := {line: None for (job, _), named in sorted(self._parts.items()) for line in _part_lines(job, named)}:
            name = "ght_slow_part"
            lines += [f"# HELP {name} Part named for an open episode: times slower, 0 if not known."]
            lines += [f"# TYPE {name} gauge", *parts]
        name = "ght_series_dropped_total"
        lines += [f"# HELP {name} Updates left out because there were too many series.", f"# TYPE {name} counter"]
        lines.append(f"{name} {self.dropped}")
        return "\n".join(lines) + "\n"


def _part_lines(job: str, named: list[dict[str, Any]]) -> list[str]:
    """One sample for each part; what comes from the stream is made text and bounded."""
    made: dict[str, float] = {}
    for part in named[:PARTS_MAX]:
        ranks, hosts, ratio = part.get("ranks"), part.get("hosts"), part.get("ratio")
        labels = {
            "job": job, "what": str(part.get("what", "")), "cause": str(part.get("cause", "")),
            "ranks": ",".join(map(str, ranks)) if isinstance(ranks, list) else "",
            "hosts": ",".join(map(str, hosts)) if isinstance(hosts, list) else "",
        }  # fmt: skip
        text = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
        made.setdefault(text, float(ratio) if isinstance(ratio, int | float) else 0.0)
    return [f"ght_slow_part{{{text}}} {ratio:.9g}" for text, ratio in made.items()]


class PromFile:
    """Writes the metrics to `path`: a temporary file beside it, then a rename, at most every `every_s` seconds.

    The file is made readable for all (0644): node_exporter runs as another user. Failures after the first
    write are said once through `warn` and tried again, since a full disk must not end the watch.
    """

    def __init__(
        self,
        path: Path,
        metrics: Metrics,
        clock: Callable[[], float],
        warn: Callable[[str], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._path, self._metrics, self._clock, self._warn = path, metrics, clock, warn
        self._every_s = every_s
        self._wrote_s: float | None = None
        self._failing = False
        try:
            self._write()
        except OSError as error:
            raise GhError(f"cannot write {path}", (error.strerror or str(error)).lower()) from None

    def tick(self, now: bool = False) -> None:
        """Write if it is time to; `now`: in any case (the last word at the end)."""
        if not now and self._wrote_s is not None and self._clock() - self._wrote_s < self._every_s:
            return
        try:
            self._write()
        except OSError as error:
            if not self._failing:
                self._warn(f"cannot write {self._path}: {(error.strerror or str(error)).lower()}; will try again")
            self._failing = True
        else:
            self._failing = False

    def _write(self) -> None:
        self._wrote_s = self._clock()  # a failed try waits as long as a good one
        fd, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                file.write(self._metrics.text())
                file.flush()
                os.fchmod(fd, 0o644)
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
