# SPDX-License-Identifier: Apache-2.0
"""Where alerts go: the metrics file, syslog, JSON."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from ghtools.stream.errors import Exit, GhError, MissingError
from ghtools.stream.records import Alert, Change, Job, Period
from ghtools.view.alerting import wall_text
from ghtools.view.notify import JsonLines, alert_map
from ghtools.view.prom import LABEL_MAX, Metrics, PromFile, escape
from ghtools.view.syslog import Syslog

SLOW = Alert(id="j/job/-/1", text="SLOW \u2026", job="j", ratio=2.9, before_ns=312_000_000, after_ns=905_000_000)
OVER = Alert(id="j/job/-/1", state="recovered", severity="info", job="j", lost_ns=53_000_000_000)
SAMPLE = re.compile(
    r'^(ght_[a-z_]+)(?:\{job="((?:[^"\\\n]|\\[\\"n])*)",level="(job|rank)",rank="(\d*)"\})? ([0-9.e+-]+)$'
)


def samples(text: str) -> dict[tuple[str, str, str, str], float]:
    """Every line of the text format, parsed by its grammar; names that have no TYPE line fail."""
    found: dict[tuple[str, str, str, str], float] = {}
    typed = set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        elif not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            assert match[1] in typed
            found[match[1], match[2] or "", match[3] or "", match[4] or ""] = float(match[5])
    return found


def test_metrics_follow_an_episode() -> None:
    metrics = Metrics()
    metrics.period("j", Period(rank=-1, state="found", dur_ns=312_000_000))
    assert samples(metrics.text())["ght_iteration_seconds", "j", "job", ""] == 0.312
    metrics.change("j", Change(stage="suspected", level="job", after_ns=1))
    metrics.change("j", Change(stage="confirmed", level="job", after_ns=905_000_000))
    metrics.alert(SLOW)
    now = samples(metrics.text())
    assert now["ght_iteration_seconds", "j", "job", ""] == 0.905
    assert now["ght_slow", "j", "job", ""] == 1 and now["ght_slow_ratio", "j", "job", ""] == 2.9
    metrics.alert(OVER)
    now = samples(metrics.text())
    assert now["ght_slow", "j", "job", ""] == 0 and now["ght_slow_ratio", "j", "job", ""] == 1
    assert now["ght_episode_lost_seconds_total", "j", "job", ""] == 53
    assert now["ght_alerts_total", "j", "job", ""] == 2 and now["ght_episodes_total", "j", "job", ""] == 1


def test_the_part_is_a_metric_of_its_own_while_the_episode_is_open() -> None:
    part = {"what": "rank", "ranks": [2], "hosts": ['b"\n'], "cause": "compute", "ratio": 2.9}
    metrics = Metrics()
    metrics.alert(SLOW)
    metrics.alert(Alert(id=SLOW.id, state="named", job="j", suspects=[part, {"ranks": "x", "ratio": None}]))
    lines = [line for line in metrics.text().splitlines() if line.startswith("ght_slow_part")]
    assert lines == [
        r'ght_slow_part{job="j",what="rank",cause="compute",ranks="2",hosts="b\"\n"} 2.9',
        'ght_slow_part{job="j",what="",cause="",ranks="",hosts=""} 0',
    ]
    assert 'ght_slow{job="j",level="job",rank=""} 1' in metrics.text()
    metrics.alert(Alert(id=SLOW.id, state="unnamed", severity="info", job="j"))
    assert 'ght_slow{job="j",level="job",rank=""} 1' in metrics.text(), "the job is as slow as it was"
    metrics.alert(OVER)
    assert "ght_slow_part" not in metrics.text()


def test_hostile_labels_stay_inside_their_quotes() -> None:
    name = 'a"b\\c\nd} 1\r' + "x" * 1000
    assert len(escape(name)) <= 2 * LABEL_MAX
    metrics = Metrics()
    metrics.level(name, "job", -1, 10**9)
    assert {key[1] for key in samples(metrics.text())} == {escape(name), ""}


def test_series_are_capped_and_the_rest_counted() -> None:
    metrics = Metrics(series_max=10)
    for rank in range(25):
        metrics.level("j", "rank", rank, 10**9)
    now = samples(metrics.text())
    assert sum(key[0] == "ght_iteration_seconds" for key in now) == 10
    assert now["ght_series_dropped_total", "", "", ""] == 15


def test_file_is_whole_readable_by_all_and_written_every_30_s_at_most(tmp_path: Path) -> None:
    now = [0.0]
    said: list[str] = []
    metrics, path = Metrics(), tmp_path / "ght.prom"
    file = PromFile(path, metrics, lambda: now[0], said.append)
    first = path.stat()
    assert first.st_mode & 0o777 == 0o644
    metrics.alert(SLOW)
    for second in range(1, 30):
        now[0] = second
        file.tick()
    assert path.stat().st_ino == first.st_ino, "written again before 30 s"
    now[0] = 30
    file.tick()
    assert path.stat().st_ino != first.st_ino, "replaced, not written over"
    assert samples(path.read_text())["ght_slow", "j", "job", ""] == 1
    metrics.alert(OVER)
    file.tick(now=True)
    assert samples(path.read_text())["ght_slow", "j", "job", ""] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["ght.prom"] and said == []


def test_a_metrics_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(GhError, match="cannot write"):
        PromFile(tmp_path / "no" / "x.prom", Metrics(), lambda: 0.0, print)
    said: list[str] = []
    now = [0.0]
    folder = tmp_path / "later"
    folder.mkdir()
    file = PromFile(folder / "x.prom", Metrics(), lambda: now[0], said.append)
    (folder / "x.prom").unlink()
    folder.rmdir()
    for now[0] in (31.0, 62.0, 93.0):
        file.tick()
    assert len(said) == 1
    folder.mkdir()
    now[0] = 124.0
    file.tick()
    assert (folder / "x.prom").exists()


def test_syslog_gets_one_datagram_an_alert(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        log = Syslog(path)
        log.send(SLOW)
        log.send(Alert(id="x", severity="info", text="two\nlines\x00\there"))
        log.close()
        first, second = server.recv(4096).decode(), server.recv(4096).decode()
    assert re.fullmatch(r"<28>ghtools\[\d+\]: SLOW … \[j/job/-/1\]", first)
    assert second.startswith("<30>ghtools[") and "\n" not in second and log.dropped == 0


def test_a_log_daemon_that_hangs_stops_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        log = Syslog(path)
        for _ in range(5000):  # far more than a socket holds; a blocking send would never come back
            log.send(SLOW)
        assert 0 < log.dropped < 5000
    log.send(SLOW)  # and one that is gone
    assert log.dropped > 1
    log.close()


def test_syslog_over_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        log = Syslog(f"127.0.0.1:{server.getsockname()[1]}")
        log.send(SLOW)
        log.close()
        assert server.recv(4096).startswith(b"<28>ghtools[")


@pytest.mark.parametrize(
    ("address", "code"), [("/nowhere/log", Exit.MISSING), ("host", Exit.USAGE), ("a:0", Exit.USAGE)]
)
def test_syslog_that_is_not_there(address: str, code: Exit) -> None:
    with pytest.raises(GhError) as raised:
        Syslog(address)
    assert raised.value.code == code and isinstance(raised.value, MissingError) == (code == Exit.MISSING)


def test_json_lines_carry_alerts_only_and_no_nan() -> None:
    lines: list[str] = []
    writer = JsonLines(lines.append)
    for record in (Job(job="j"), SLOW, Alert(ratio=float("nan"), extra={"x": [1]})):
        writer.write(record)
    first, second = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in lines]
    assert first == alert_map(SLOW) and first["kind"] == "alert" and first["after_ns"] == 905_000_000
    assert second["ratio"] is None and second["x"] == [1]


def test_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Zurich")
    time.tzset()
    try:
        assert wall_text(1_700_000_000 * 10**9) == "23:13:20"
        assert wall_text(3725 * 10**9) == "+01:02:05"
    finally:
        monkeypatch.undo()
        time.tzset()
