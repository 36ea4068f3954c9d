# SPDX-License-Identifier: Apache-2.0
"""gh-plot: what is collected is bounded and true; the picture and the terminal show it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.source import synth, synth_job
from ghtools.stream.errors import GhError, MissingError
from ghtools.stream.framing import read_records
from ghtools.stream.records import PHASE_CODE, Change, Head, Iters, Job, Period, Record
from ghtools.view import plot, plot_data, plot_term
from tests.stream.strategies import BODY, MUTATIONS, mutated, sample, wire

MS = 1_000_000
ONSET = Change(stage="confirmed", level="job", verdict="fail-slow", before_ns=300 * MS, after_ns=870 * MS, ratio=2.9,
               onset_index=120, said_index=125)  # fmt: skip
RELIEF = Change(type="relief", stage="confirmed", level="job", verdict="recovered", before_ns=870 * MS,
                after_ns=300 * MS, onset_index=210, said_index=214, lost_ns=51 * 10**9, n_iters=90)  # fmt: skip


def job(*more: Record, **given: object) -> list[Record]:
    spec = synth.Spec(**{"iter_ns": 300 * MS, "changes": synth.parse(["120:2.9::210"], [], []), **given})  # type: ignore[arg-type]
    return [*synth.iters(spec, Head(tool="t")), *more]


def iters(rank: int, index: list[int], ms: list[float], phase: int = 0) -> Iters:
    count = len(index)
    return Iters(
        rank=rank, index=np.array(index), t_ns=np.array(index) * 10**9, dur_ns=(np.array(ms) * MS).astype(np.int64),
        phase=np.full(count, phase, "u1"), calls=np.zeros(count, "i4"), seq=np.full(count, -1),
    )  # fmt: skip


@given(st.integers(1, 5), st.integers(1, 700), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_buckets_hold_the_least_and_greatest(ranks: int, count: int, first: int, random) -> None:  # type: ignore[no-untyped-def]
    """Against the obvious way: all values kept, and cut into buckets at the end."""
    data = plot_data.PlotData()
    data._clear(2, 64)
    data._foreign = True
    values = np.array([[random.uniform(1, 9) for _ in range(count)] for _ in range(ranks)])
    at = 0
    while at < count:
        size = random.randint(1, 90)
        for rank in range(ranks):
            part = values[rank, at : at + size]
            data.add(iters(rank, list(range(first + at, first + at + len(part))), part.tolist()))
        at += size
    assert data.iterations == count and data.first == first
    names, low, high = data.lines()
    assert names == list(range(ranks))
    used = -(-count // data.width)
    assert low.shape == (ranks, used) and used <= 64 and len(data.x()) == used
    exact = (values * MS).astype(np.int64) / MS
    for bucket in range(used):
        piece = exact[:, bucket * data.width : (bucket + 1) * data.width]
        assert np.allclose(low[:, bucket] / MS, piece.min(axis=1), rtol=1e-6)
        assert np.allclose(high[:, bucket] / MS, piece.max(axis=1), rtol=1e-6)


def test_memory_does_not_grow_with_ranks_or_iterations() -> None:
    data = plot_data.PlotData()
    for rank in range(3000):
        data.add(iters(rank, list(range(0, 40_000, 500)), [300.0] * 80))
    for start in range(40_000, 10_000_000, 777_777):
        data.add(iters(7, [start], [300.0]))
    assert data.low.size <= 2 * plot_data.MAX_CELLS and data.low.shape[1] >= 256
    assert data.iterations > 9_000_000
    assert np.isfinite(data.lines()[1]).any(axis=1).all()


def test_episodes_are_paired_and_priced() -> None:
    data = plot_data.collect(job(ONSET, RELIEF))
    [episode] = data.shown
    assert (episode.begin, episode.end, data.loss_ns(episode)) == (120, 210, 51 * 10**9)
    head, said = plot_data.title(data)
    assert head.startswith("job synth, 4 ranks, 300 iterations, median 30")
    assert "slow in iterations 120 to 210: 300 ms to 870 ms (+190 %), 51 s lost (" in said
    assert [(p.begin, p.end, p.rank) for p in data.planted] == [(120, 210, -1)]


def test_an_episode_that_lasts_costs_what_it_has_cost_so_far() -> None:
    data = plot_data.collect(job(ONSET))
    [episode] = data.shown
    assert episode.end is None and data.loss_ns(episode) == 180 * 570 * MS
    assert "to the end" in plot_data.title(data)[1]


def test_what_is_suspected_or_no_fail_slow_is_not_drawn() -> None:
    for change in (Change(onset_index=5), Change(stage="confirmed", verdict="warm-up", onset_index=5),
                   Change(stage="withdrawn", verdict="fail-slow")):  # fmt: skip
        assert plot_data.collect(job(change)).shown == []


def test_ranks_episodes_are_shown_only_without_the_jobs() -> None:
    rank = Change(stage="confirmed", verdict="fail-slow", rank=2, onset_index=7, before_ns=1, after_ns=2)
    assert [e.rank for e in plot_data.collect(job(rank)).shown] == [2]
    assert [e.rank for e in plot_data.collect(job(rank, ONSET)).shown] == [-1]


def test_quiet_is_only_said_of_what_was_searched() -> None:
    quiet = job(changes=())
    assert "not searched" in plot_data.title(plot_data.collect(quiet))[1]
    quiet[0].via.append("gh-bocd")  # type: ignore[attr-defined]
    assert plot_data.title(plot_data.collect(quiet))[1] == "no slow episode"


def test_special_iterations_are_marks_and_no_line() -> None:
    records = [Head(), iters(0, [0, 1], [900, 800], PHASE_CODE["warmup"]), iters(0, [2, 3, 5], [300, 301, 302]),
               iters(0, [4], [5000], PHASE_CODE["outlier"]), iters(0, [6], [9e9], PHASE_CODE["gap"])]  # fmt: skip
    data = plot_data.collect(records)
    _, low, _ = data.lines()
    assert np.flatnonzero(np.isfinite(low[0])).tolist() == [2, 3, 5]
    assert np.flatnonzero(np.isfinite(data.marks[PHASE_CODE["warmup"]])).tolist() == [0, 1]
    assert np.flatnonzero(np.isfinite(data.marks[PHASE_CODE["outlier"]])).tolist() == [4]
    assert not np.isfinite(data.marks[PHASE_CODE["gap"]]).any()


def test_calls_alone_are_turned_into_iterations() -> None:
    spec = synth.Spec(ranks=2, iters=60, iter_ns=300 * MS)
    shape = synth_job.JobSpec(family="ddp", layout={"dp": 2}, sizes={"buckets": 4})
    records = list(synth_job.job_calls(spec, shape, Head()))
    data = plot_data.collect(records)
    assert 55 <= data.iterations <= 60
    _, low, _ = data.lines()
    assert np.nanmedian(low) == pytest.approx(300 * MS, rel=0.03)
    both = plot_data.collect([*records, Period(), iters(0, [0, 1, 2], [5, 5, 5])])
    assert both.iterations == 3, "iterations of the stream itself take precedence"


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize(
    "records",
    [job(ONSET, RELIEF), job(ONSET, ranks=40, iters=5000, changes=synth.parse(["50:2:7"], [], [])), [Head(), Job()],
     [Head(), iters(-1, [4], [3.0])], [Head(), iters(0, [1], [3.0], PHASE_CODE["gap"])], sample()],
    ids=["episode", "many", "nothing", "one", "gap", "sample"],
)  # fmt: skip
def test_pictures_are_written(records: list[Record], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"job{suffix}"
    for log in (False, True):
        plot.draw(records, path, log=log)
        begin = path.read_bytes()[:5]
        assert begin.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF-"}[suffix])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_picture_names_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "job.svg"
    plot.draw(job(ONSET, RELIEF, ckpt_every=40), path)
    text = path.read_text()
    for word in ("iteration time (ms)", "rank 3", "onset", "relief", "planted", "+190 %", "51 s lost",
                 "evaluation, checkpoint"):  # fmt: skip
        assert f">{word}<" in text, word
    plot.draw(job(ONSET, RELIEF, ckpt_every=40), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text, "the same input makes the same picture"


def test_many_ranks_are_a_band_and_those_that_stand_out(tmp_path: Path) -> None:
    path = tmp_path / "job.svg"
    plot.draw(job(ranks=64, iters=400, changes=synth.parse(["100:1.5:17"], [], [])), path)
    text = path.read_text()
    assert ">rank 17<" in text and ">rank 16<" not in text and ">median of 64<" in text and ">90 % of ranks<" in text


def test_lines_run_over_points_without_a_value_but_not_over_long_gaps() -> None:
    at = np.arange(300.0)
    value = np.full(300, np.nan)
    value[:100:10] = 1.0
    value[250:290:10] = 2.0
    x, y = plot.joined(at, value)
    assert np.isnan(y).sum() == 1 and np.flatnonzero(np.isnan(y))[0] == 10
    assert x[:10].tolist() == list(range(0, 100, 10)) and y[11:].tolist() == [2.0] * 4
    assert plot.joined(at, np.full(300, np.nan))[0].tolist() == []


def test_a_point_that_stands_for_many_iterations_counts_as_many() -> None:
    sparse = iters(-1, [100, 200, 300], [1000, 1000, 1000])
    sparse.extra["every"] = 100
    assert plot_data.collect([Head(), sparse]).total_ns() == 300 * 10**9


def test_what_cannot_be_drawn_is_said_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GhError, match="names no picture"):
        plot.draw([], tmp_path / "job.txt")
    with pytest.raises(MissingError, match=r"cannot write .*no such file"):
        plot.draw([], tmp_path / "nowhere" / "job.png")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingError, match=r"pip install 'ghtools\[plot\]'"):
        plot.check(tmp_path / "job.png")


def test_the_terminal_shows_the_step() -> None:
    data = plot_data.collect(job(ONSET, RELIEF, noise_pct=0.0))
    lines = plot_term.lines(data, 80, 8)
    assert max(map(len, lines)) <= 80
    rows = [line.split("│")[-1].split("┤")[-1] for line in lines if "│" in line or "┤" in line]
    assert len(rows) == 8
    high, low = (next(i for i, row in enumerate(rows) if row[at : at + 1].strip()) for at in (40, 5))
    assert high < low, "iteration 165 is drawn above iteration 20"
    slow = next(line for line in lines if line.split()[:1] == ["slow"] and "━" in line)
    planted = next(line for line in lines if line.strip().startswith("planted"))
    assert slow.index("━") == planted.index("┣") and abs(slow.count("━") - 0.3 * 69) < 3
    assert "\x1b" not in "".join(lines)
    assert "\x1b[31m" in "".join(plot_term.lines(data, 80, 8, colour=True))


@given(st.lists(BODY, max_size=5), st.integers(1, 120), st.integers(3, 30), st.booleans())
def test_any_records_can_be_drawn_in_a_terminal(records: list[Record], columns: int, rows: int, log: bool) -> None:
    for line in plot_term.lines(plot_data.collect([Head(), *records]), columns, rows, log=log):
        assert "\n" not in line


@given(MUTATIONS)
def test_mutated_streams_are_drawn_or_refused(mutations: list[tuple[str, int, bytes]]) -> None:
    try:
        records = list(read_records(io.BytesIO(mutated(wire(sample()), mutations))))
    except GhError:
        return
    plot_term.lines(plot_data.collect(records), 80, 8)
