# SPDX-License-Identifier: Apache-2.0
"""The desk where alerts are made and handed out: one stage a stream section, the same sinks for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType

from ghtools.detect.alerts import Alerts
from ghtools.stream.records import Alert, Change, Finding, Head, Job, Period, Record, Suspect
from ghtools.stream.writer import Writer

from .prom import Metrics, PromFile
from .syslog import Syslog
from .webhook import Webhook

YEAR_1973_NS = 100_000_000 * 1_000_000_000


def wall_text(t_ns: int) -> str:
    """Local time of day; for a log that counts from its own begin, the time since then: `+00:05:12`."""
    if t_ns >= YEAR_1973_NS:
        return time.strftime("%H:%M:%S", time.localtime(t_ns // 1_000_000_000))
    seconds = max(t_ns, 0) // 1_000_000_000
    return f"+{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class Desk(AbstractContextManager["Desk"]):
    """Makes alerts of changes, says them through `say`, writes them and hands them to the sinks."""

    def __init__(
        self,
        writer: Writer,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        *,
        verbose: bool = False,
        metrics: Metrics | None = None,
        prom: PromFile | None = None,
        webhook: Webhook | None = None,
        syslog: Syslog | None = None,
    ) -> None:
        self.writer, self._say, self._warn, self._verbose = writer, say, warn, verbose
        self._metrics, self._prom, self._webhook, self._syslog = metrics, prom, webhook, syslog
        self._stage: _Stage | None = None
        self._slow: dict[str, list[str]] = {}  # job -> what was open when its last section ended

    def stage(self, head: Head) -> _Stage:
        """The stage of one section."""
        self._stage = _Stage(self, head)
        return self._stage

    def alerts(self, job: str) -> Alerts:
        """The episodes of one job, speaking through this desk."""
        note = self._say if self._verbose else lambda text: None
        return Alerts(job, wall_text, time.monotonic, note)

    def observe(self, job: str, record: Record) -> None:
        """Let the metrics see a record."""
        if self._metrics is not None and isinstance(record, Change):
            self._metrics.change(job, record)
        elif self._metrics is not None and isinstance(record, Period):
            self._metrics.period(job, record)

    def give(self, alert: Alert) -> Alert:
        """Say one alert and hand it to the sinks."""
        self._say(alert.text)
        if self._metrics is not None:
            self._metrics.alert(alert)
        if self._webhook is not None:
            self._webhook.send(alert)
        if self._syslog is not None:
            self._syslog.send(alert)
        return alert

    def ended(self, job: str, slow: list[str]) -> None:
        """A section of a job ended with these episodes open."""
        self._slow[job] = slow
        self._stage = None

    def tick(self) -> None:
        """About once a second: alerts whose time has come, and the metrics' file."""
        if self._stage is not None:
            for alert in self._stage.tick():
                self.writer.write(alert)
        if self._prom is not None:
            self._prom.tick()

    def slow(self) -> list[str]:
        """Sentences on what is still slow."""
        return [text for texts in self._slow.values() for text in texts]

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._prom is not None:
            self._prom.tick(now=True)
        if self._syslog is not None:
            self._syslog.close()
            if self._syslog.dropped:
                self._warn(f"syslog: {self._syslog.dropped} alerts were not delivered")
        if self._webhook is not None and (missing := self._webhook.close()):
            of = missing + self._webhook.sent
            self._warn(f"webhook {self._webhook.name}: {missing} of {of} alerts were not delivered")


class _Stage:
    """One section of the stream (pipeline.Stage)."""

    def __init__(self, desk: Desk, head: Head) -> None:
        self._desk, self._alerts = desk, desk.alerts(head.job)

    def feed(self, record: Record) -> Iterator[Record]:
        if isinstance(record, Job) and record.job and not self._alerts.open:
            self._alerts.job = record.job
        self._desk.observe(self._alerts.job, record)
        if isinstance(record, Change | Suspect | Finding | Job):
            for alert in self._alerts.feed(record):
                yield self._desk.give(alert)

    def tick(self) -> Iterator[Alert]:
        for alert in self._alerts.tick():
            yield self._desk.give(alert)

    def finish(self) -> Iterator[Record]:
        for alert in self._alerts.finish():
            yield self._desk.give(alert)
        self._desk.ended(self._alerts.job, self._alerts.still_slow())
