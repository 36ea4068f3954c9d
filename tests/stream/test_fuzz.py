# SPDX-License-Identifier: Apache-2.0
"""Every filter on broken bytes and on sound records with nonsense in them: an answer or a refusal, never a crash."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ghtools.commands.period import PeriodStage
from ghtools.detect.detector import Detector
from ghtools.detect.period import PeriodFinder
from ghtools.detect.series import Prior
from ghtools.detect.stage import BocdStage
from ghtools.detect.watch import Settings
from ghtools.source import synth, synth_job
from ghtools.stream.errors import Exit, GhError
from ghtools.stream.framing import read_records
from ghtools.stream.pipeline import Stage, run_filter
from ghtools.stream.records import Alert, Calls, Change, End, Head, Iters, Record
from ghtools.stream.writer import Writer
from ghtools.view.alerting import Desk
from tests.stream.strategies import MUTATIONS, column, mutated, record_of, sample, wire

Make = Callable[[Head], Stage]


def quiet(text: str) -> None:
    """A voice nobody hears."""


def bocd() -> Make:
    return lambda head: BocdStage(head, Detector(Settings(), Prior(hazard=0.001), "both", None), None, False)


def period(method: str = "anchors") -> Make:
    return lambda head: PeriodStage(PeriodFinder(method), quiet, True, True)  # type: ignore[arg-type]


def alert() -> Make:
    desk = Desk(Writer(io.BytesIO()), quiet, quiet, verbose=True)
    return desk.stage


STAGES: dict[str, Callable[[], Make]] = {
    "bocd": bocd, "period": period, "acf": lambda: period("acf"), "alert": alert,
}  # fmt: skip


def run(make: Make, data: bytes) -> tuple[list[Record], bool]:
    out = io.BytesIO()
    clean = run_filter("gh-test", io.BytesIO(data), Writer(out), make, (Calls, Iters, Change), keep=False, warn=quiet)
    return list(read_records(io.BytesIO(out.getvalue()))), clean


def base() -> bytes:
    """Streams with something to find: a step in iterations, and calls with a period."""
    spec = synth.Spec(ranks=2, iters=70, batch=16, changes=synth.parse(["40:2"], [], []))
    calls = synth_job.JobSpec(family="ddp", layout={"dp": 2}, sizes={"buckets": 3})
    return wire(
        [*sample()[:-1], End(), *synth.iters(spec, Head()), End(),
         *synth_job.job_calls(synth.Spec(ranks=2, iters=40, batch=8), calls, Head()), End()]
    )  # fmt: skip


BASE = base()


@pytest.mark.parametrize("name", STAGES)
@given(mutations=MUTATIONS)
def test_broken_bytes(name: str, mutations: list[tuple[str, int, bytes]]) -> None:
    try:
        made, clean = run(STAGES[name](), mutated(BASE, mutations))
    except GhError as error:
        assert error.code is Exit.INPUT
        return
    ends = [r for r in made if isinstance(r, End)]
    assert clean == all(end.reason in ("", "done", "stopped") for end in ends)


@st.composite
def nonsense(draw: st.DrawFn) -> list[Record]:
    """Iterations and calls whose columns hold anything at all, among changes and jobs that do, too."""
    made: list[Record] = []
    for _ in range(draw(st.integers(1, 4))):
        cls = draw(st.sampled_from([Iters, Calls, Change, Iters]))
        record = draw(record_of(cls, max_rows=40))
        record.rank = draw(st.sampled_from([0, 1, -1, 5, 1 << 62]))  # type: ignore[attr-defined]
        if isinstance(record, Iters) and len(record.index) and draw(st.booleans()):
            # Plausible numbering, so that the values themselves reach the detector.
            record.index = np.arange(len(record.index), dtype=np.int64)
            record.dur_ns = draw(column("<i8", len(record.index))) >> draw(st.integers(0, 50))
        made.append(record)
    return made


@pytest.mark.parametrize("name", STAGES)
@given(records=nonsense())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
def test_sound_records_with_nonsense_in_them(name: str, records: list[Record]) -> None:
    made, clean = run(STAGES[name](), wire([Head(), *records, End()]))
    assert clean and isinstance(made[-1], End)


def iters(dur_ns: Any, *, index: Any = None, t_ns: Any = None, rank: int = 0) -> Iters:
    count = len(dur_ns)
    index = np.arange(count) if index is None else index
    return Iters(
        rank=rank, index=np.array(index, np.int64), t_ns=np.arange(count) * 10**8 if t_ns is None else np.array(t_ns),
        dur_ns=np.array(dur_ns, np.int64), phase=np.zeros(count, "u1"), calls=np.zeros(count, "i4"),
        seq=np.full(count, -1),
    )  # fmt: skip


def steady(count: int, seed: int = 0) -> Any:
    return (3e8 * np.random.default_rng(seed).normal(1, 0.01, count)).astype(np.int64)


def with_values(values: list[int]) -> Any:
    made = steady(300)
    made[np.arange(100, 100 + 17 * len(values), 17)] = values
    return made


@pytest.mark.parametrize(
    "record",
    [
        iters(with_values([0, 0, 0])),
        iters(with_values([-1, -(10**12), -(1 << 63)])),
        iters(with_values([(1 << 63) - 1, 10**18])),
        iters(steady(300), index=[*range(150), *range(150)]),
        iters(steady(300), t_ns=[*range(0, 150 * 10**8, 10**8), *range(0, 150 * 10**8, 10**8)]),
        iters(np.full(300, 300_000_000)),
        iters(np.zeros(300)),
    ],
    ids=["zero", "negative", "huge", "numbers back", "time back", "constant", "all zero"],
)
def test_bad_values_raise_no_alarm(record: Iters) -> None:
    out = io.BytesIO()
    data = wire([Head(), record, End()])
    run_filter("gh-bocd", io.BytesIO(data), Writer(out), bocd(), (Iters,), keep=False, warn=quiet)
    made, _ = run(alert(), out.getvalue())
    assert not [r for r in made if isinstance(r, Alert)]


def test_a_rank_that_vanishes_raises_no_alarm() -> None:
    records: list[Record] = [Head()]
    for at in range(0, 300, 20):
        for rank in range(3):
            if rank < 2 or at < 140:
                span = slice(at, at + 20)
                index = np.arange(300)[span]
                records.append(iters(steady(300, rank)[span], index=index, t_ns=index * 10**8, rank=rank))
    out = io.BytesIO()
    run_filter("gh-bocd", io.BytesIO(wire([*records, End()])), Writer(out), bocd(), (Iters,), keep=False, warn=quiet)
    made, _ = run(alert(), out.getvalue())
    assert not [r for r in made if isinstance(r, Alert)]
