# SPDX-License-Identifier: Apache-2.0
"""When gh-run has executions timed by itself, and for how long."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ghtools.job.auto_profile import AFTER, BASELINE, BASELINE_FROM, CONFIRMED, SPARE, SUSPECTED, AutoProfile, LocalPage
from ghtools.job.control import ControlPage
from ghtools.stream.records import Change, Iters, Period

RANKS = 4


class Job:
    """A job that runs and is asked; `asked` holds (iteration, lease), `on` whether the lease stands."""

    def __init__(self, iter_s: float = 0.5) -> None:
        self.now, self.iter_s, self.iteration = 1000.0, iter_s, 0
        self.auto = AutoProfile(lambda: self.now)
        self.asked: list[tuple[int, float]] = []
        self.until = 0.0
        self.timed: list[int] = []

    def tell(self, record: Iters | Change | Period) -> None:
        lease_s = self.auto.feed(record)
        if lease_s is not None:
            self.asked.append((self.iteration, lease_s))
            self.until = self.now + lease_s

    def go(self, iters: int) -> None:
        for _ in range(iters):
            if self.until > self.now:
                self.timed.append(self.iteration)
            self.now += self.iter_s
            for rank in range(RANKS):
                i = np.array([self.iteration])
                ns = np.array([int(self.iter_s * 1e9)])
                self.tell(Iters(rank=rank, index=i, t_ns=i, dur_ns=ns, phase=np.zeros(1, "u1"), calls=i, seq=i))
            self.iteration += 1

    def change(self, stage: str, type_: str = "onset", verdict: str = "fail-slow", level: str = "job") -> None:
        self.tell(Change(type=type_, stage=stage, verdict=verdict, level=level, after_ns=int(self.iter_s * 1e9)))

    def found(self) -> None:
        self.tell(Period(rank=-1, state="found"))


def test_a_stretch_of_the_healthy_job_is_timed_once() -> None:
    job = Job()
    job.go(10)
    assert job.asked == [], "nobody knows yet what an iteration is"
    job.found()
    job.go(500)
    begin = 10 + BASELINE_FROM
    assert job.timed == list(range(begin, begin + BASELINE))
    assert job.asked[-1] == (begin + BASELINE - 1, 0.0), "and then let go"


def test_another_pattern_of_calls_is_another_healthy_job() -> None:
    job = Job()
    job.found()
    job.go(100)
    job.tell(Period(rank=-1, state="rearm"))
    job.go(100)
    assert len(job.timed) == BASELINE
    job.found()
    job.go(100)
    assert len(job.timed) == 2 * BASELINE


def test_from_the_suspicion_to_some_iterations_after_the_onset() -> None:
    job = Job()
    job.go(50)
    job.change("suspected")
    job.go(3)
    job.change("confirmed")
    job.go(200)
    assert job.timed == list(range(50, 53 + CONFIRMED))
    job.change("confirmed", "relief", "recovered")
    job.go(100)
    assert len(job.timed) == 3 + CONFIRMED + AFTER


def test_a_suspicion_that_passes_lets_go() -> None:
    job = Job()
    job.go(50)
    job.change("suspected")
    job.go(2)
    job.change("withdrawn")
    job.go(50)
    assert job.timed == [50, 51]
    assert job.asked[-1] == (52, 0.0)
    job.change("suspected")
    job.go(50)
    assert len(job.timed) == 2 + SUSPECTED, "one that nobody withdraws ends by itself"


def test_ranks_alone_and_what_is_no_slow_down_start_nothing() -> None:
    job = Job()
    job.go(50)
    job.change("confirmed", level="rank")
    for verdict in ("warm-up", "restart", "planned", "blip"):
        job.change("confirmed", verdict=verdict)
    job.change("withdrawn")
    job.go(50)
    assert job.asked == []


def test_suspicions_alone_take_a_bounded_share() -> None:
    job = Job()
    for _ in range(400):
        job.change("suspected")
        job.go(10)
        job.change("withdrawn")
    assert len(job.timed) < SPARE + 0.1 * job.iteration + 2 * SUSPECTED
    job.change("confirmed")
    job.go(1)
    assert job.timed[-1] == job.iteration - 1, "a confirmed onset is always worth it"


def test_a_lease_is_short_and_renewed() -> None:
    job = Job(iter_s=7.0)
    job.go(5)
    job.change("confirmed")
    job.go(CONFIRMED)
    assert [lease_s for _, lease_s in job.asked[:-1]] == [33.0] * (len(job.asked) - 1)
    assert len(job.timed) == CONFIRMED and len(job.asked) > CONFIRMED / 4
    job.change("confirmed")
    asked = len(job.asked)
    job.now += 60
    assert job.until < job.now, "nobody renews it when nothing comes"
    job.go(1)
    assert len(job.asked) == asked + 1


def test_the_page_is_asked_and_a_missing_one_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    local = LocalPage(tmp_path, said.append)
    local(5.0)
    local(5.0)
    assert len(said) == 1 and "executions are not timed" in said[0]
    with ControlPage.create(tmp_path) as page:
        local(0.2)
        assert page.read().profiling
        local.close()
        time.sleep(0.25)
        assert not page.read().profiling
        again = LocalPage(tmp_path, said.append)
        again(5.0)
        again(0.0)
        assert not page.read().profiling
        again.close()
