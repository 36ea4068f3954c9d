# SPDX-License-Identifier: Apache-2.0
"""gh-import mllog: steps of tracked_stats."""

import json

import numpy as np
import pytest

from .feed import feed, mutate, public


def event(key: str, value: object, step: int | None = None, time_ms: int = 1_745_968_838_000, **meta: object) -> str:
    """A line as mlperf_logging prints it, typed by hand."""
    metadata = {"file": "/w/x.py", "lineno": 1, **({"step_num": step} if step is not None else {}), **meta}
    item = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**item, "metadata": metadata}) + "\n"


def test_throughput_and_batch_size_make_a_duration() -> None:
    log = event("global_batch_size", 256) + "".join(
        event("tracked_stats", {"throughput": 5120.0}, step, 1_000_000 + 5000 * n)
        for n, step in enumerate(range(100, 1200, 100), 1)
    )
    got = feed("mllog", log).iters()
    assert got["index"].tolist() == list(range(100, 1200, 100))
    assert set(got["dur_ns"].tolist()) == {50_000_000}
    assert set(got["every"].tolist()) == {100}
    assert got["t_ns"].tolist() == [1_000_000_000_000 + 5_000_000_000 * n for n in range(11)]


def test_step_time_needs_no_batch_size() -> None:
    fed = feed("mllog", "".join(event("tracked_stats", {"train_step_time": 1.25}, s) for s in (1, 2, 3)))
    assert fed.iters()["dur_ns"].tolist() == [1_250_000_000] * 3
    assert fed.said == []


def test_samples_count_stands_for_the_step() -> None:
    log = event("global_batch_size", 10) + event("tracked_stats", {"step_time": 0.5}, samples_count=300)
    assert feed("mllog", log).iters()["index"].tolist() == [30]


def test_a_missing_batch_size_is_said_once() -> None:
    fed = feed("mllog", "".join(event("tracked_stats", {"throughput": 2000.0}, s) for s in range(1, 9)))
    assert set(fed.iters()["dur_ns"].tolist()) == {500_000}
    assert len([text for text in fed.said if "global_batch_size" in text]) == 1


def test_events_glued_on_one_line() -> None:
    log = (
        " 0: "
        + event("tracked_stats", {"step_time": 0.5}, 1).strip()
        + "noise"
        + event("tracked_stats", {"step_time": 0.5}, 2)
    )
    assert feed("mllog", log).iters()["index"].tolist() == [1, 2]


def test_a_broken_event_is_told_with_its_line_and_the_rest_is_delivered() -> None:
    log = event("tracked_stats", {"step_time": 0.5}, 1) + ':::MLLOG {"key": "trac\n'
    fed = feed("mllog", log + event("tracked_stats", {"step_time": 0.5}, 2), names=["r.txt"])
    assert fed.iters()["index"].tolist() == [1, 2]
    assert fed.reason == "cut: bad input at r.txt, line 2"
    assert len(fed.said) == 1


def test_stats_without_step_are_said_once() -> None:
    log = event("tracked_stats", {"loss": 1}, 1) * 3 + event("tracked_stats", {"step_time": 0.5}, 2)
    assert len(feed("mllog", log).said) == 1


@pytest.mark.parametrize(
    "value", [None, True, "x", [], {"throughput": 0}, {"throughput": "nan"}, {"step_time": 10**400}, -1]
)
def test_strange_values(value: object) -> None:
    fed = feed("mllog", event("tracked_stats", value, 1) + event("tracked_stats", {"step_time": 0.5}, 2))
    assert fed.iters()["index"].tolist() == [2]


@pytest.mark.parametrize("seed", range(60))
def test_fuzz(seed: int) -> None:
    log = event("global_batch_size", 256) + "".join(event("tracked_stats", {"throughput": 5e3}, s) for s in range(40))
    fed = feed("mllog", mutate(log.encode(), seed), size=seed % 3 * 50)
    assert fed.reason == "done" or fed.reason.startswith("cut")


@pytest.mark.public_data
@pytest.mark.parametrize("n", [0, 1, 4, 5, 9])
def test_google_h200(n: int) -> None:
    """One job of five is slow from step 2,800 to 5,200, read off the throughputs; the others are flat."""
    got = feed("auto", public("mlperf", "google_h200_n8_sd", f"result_{n}.txt")).iters()
    assert set(got["every"].tolist()) == {100}
    steady = got["dur_ns"][(got["index"] % 500 != 100)] / 1e6  # the step after every 500th is short by construction
    assert abs(np.median(steady) - 50.0) < 1.0
    slow = got["index"][got["dur_ns"] > 70e6]
    if n == 5:
        assert slow.min() == 2800 and slow.max() == 5200
        assert len(slow) >= 22
    else:
        assert len(slow) <= 3  # single points
        assert np.diff(slow).min(initial=1000) > 100
