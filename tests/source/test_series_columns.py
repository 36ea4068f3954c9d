# SPDX-License-Identifier: Apache-2.0
"""gh-import series: tables with numbers or times of the points, rates, JSON; bad tables."""

import numpy as np
import pytest

from ghtools.stream.errors import GhError

from .feed import feed, mutate, public


def test_numbers_and_a_column() -> None:
    assert feed("series", "1.5\n\n2\nnan\n3\n").iters()["index"].tolist() == [0, 1, 3]
    got = feed("series", "a;t\n1;2.5\n2;\n3;4\n", column="t", unit="ms").iters()
    assert got["dur_ns"].tolist() == [2_500_000, 4_000_000] and got["index"].tolist() == [0, 2]


def test_an_index_column_numbers_the_iterations_and_shows_restarts() -> None:
    text = "run,it,ms\n1,10,5\n1,11,5\n1,13,5\n2,1,9\n2,2,5\n"
    got = feed("series", text, column="ms", unit="ms", more={"index": "it"}).iters()
    assert got["index"].tolist() == [10, 11, 13, 1, 2]
    assert got["incarnation"].tolist() == [0, 0, 0, 1, 1]
    assert got["phase"].tolist() == [0, 0, 0, 3, 0]


def test_rates_with_times_stand_for_the_iterations_between() -> None:
    text = "time_min,rate\n1,2\n2,2\n3,0\n4,1\n"
    got = feed("series", text, column="rate", unit="it/s", more={"time": "time_min:min"}).iters()
    assert got["dur_ns"].tolist() == [500_000_000, 500_000_000, 1_000_000_000]
    assert got["index"].tolist() == [0, 120, 240]
    assert got["t_ns"].tolist()[0] == 60 * 10**9 - got["every"][0] * 500_000_000


def test_json_is_read_as_golden() -> None:
    assert feed("series", '{"1": 0.5, "2": "nan", "3": 0.25}').iters()["index"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("text", "line"), [("t\n1\nNaN\nabc\n2\n", 4), ("t\n1\ninf\n", 3), ("t\n1\n\xff\n", 0), ('t\n1\n"x\n', 3)]
)
def test_text_among_numbers_is_named_and_the_sound_ones_are_delivered(text: str, line: int) -> None:
    fed = feed("series", text.encode("latin-1"), column="t")
    assert fed.iters()["dur_ns"].tolist() == [10**9]
    assert fed.reason == f"cut: bad input at file0, line {line or 3}"


@pytest.mark.parametrize(
    "options",
    [
        {"unit": "h"},
        {"column": "x"},
        {"more": {"index": "t"}},
        {"column": "t", "more": {"time": "t:years"}},
        {"column": "t", "more": {"index": "none"}},
    ],
)
def test_wrong_options_are_usage(options: dict[str, object]) -> None:
    with pytest.raises(GhError):
        feed("series", "t,u\n1,2\n", **options)


@pytest.mark.parametrize("seed", range(60))
def test_fuzz(seed: int) -> None:
    text = "it,min,ms\n" + "".join(f"{n},{n / 10},{5 + n % 3}.5\n" for n in range(30))
    more = [{}, {"index": "it"}, {"time": "min:min"}][seed % 3]
    try:
        fed = feed("series", mutate(text.encode(), seed), size=seed % 2 * 40, column="ms", unit="ms", more=more)
    except GhError as error:
        assert "cannot find column" in str(error)  # the header was hit
    else:
        assert fed.reason == "done" or fed.reason.startswith("cut")


@pytest.mark.public_data
def test_pipemorph_128_gpus() -> None:
    """Two runs; the second begins with iteration 1 again. Labels count iterations of the first."""
    data = public("pipemorph", "large_scale_128gpu_1F1B.csv")
    got = feed("series", data, column="iter_ms", unit="ms", more={"index": "iteration"}).iters()
    assert len(got["index"]) == 1200
    first = got["incarnation"] == 0
    assert got["index"][first].tolist() == list(range(1, 1031)) and got["index"][~first].tolist() == list(range(1, 171))
    dur = got["dur_ns"][first] / 1e6
    assert np.median(dur[340:409]) > 1.2 * np.median(dur[420:449])  # 2_3,3_4,6_7 at 0.05 s, iterations 340 to 410


@pytest.mark.public_data
def test_pipemorph_short_runs() -> None:
    got = feed(
        "series", public("pipemorph", "short_runs.csv"), column="iter_ms", unit="ms", more={"index": "iteration"}
    ).iters()
    assert len(got["index"]) == 2510
    assert got["incarnation"].max() == 136  # so often an iteration number steps back


@pytest.mark.public_data
@pytest.mark.parametrize(("name", "median"), [("fig2", 1.8), ("fig3", 1.62), ("fig4", 0.41)])
def test_greyhound_curves(name: str, median: float) -> None:
    data = public("greyhound-figures", f"atc25_{name}_throughput.csv")
    got = feed("series", data, column="iters_per_s", unit="it/s", more={"time": "time_min:min"}).iters()
    assert abs(1e9 / np.median(got["dur_ns"]) - median) < 0.15 * median
    assert np.all(np.diff(got["t_ns"]) >= 0)
