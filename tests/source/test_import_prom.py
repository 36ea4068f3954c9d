# SPDX-License-Identifier: Apache-2.0
"""gh-import prom: range queries to samples, or to iterations."""

import json
import math
from typing import Any

import pytest

from ghtools.stream.errors import GhError
from ghtools.stream.records import Sample

from .feed import feed, mutate


def answer(*series: tuple[dict[str, str], list[tuple[float, Any]]], **more: Any) -> str:
    """As Prometheus answers a range query, typed by hand from its documentation."""
    result = [{"metric": labels, "values": [list(pair) for pair in pairs]} for labels, pairs in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}, **more})


def test_samples() -> None:
    text = answer(
        ({"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0"}, [(1767323045.781, "300.5"), (1767323060.781, "NaN")]),
        ({"__name__": "node_hwmon_temp_celsius", "chip": "x"}, [(1767323045, "+Inf")]),
    )
    for name in ("prom", "auto"):
        power, temp = feed(name, text).of(Sample)
        assert power.metric == "DCGM_FI_DEV_POWER_USAGE" and power.labels == {"gpu": "0"}
        assert power.t_ns.tolist() == [1767323045_781_000_000, 1767323060_781_000_000]
        assert power.value[0] == 300.5 and math.isnan(power.value[1])
        assert temp.unit == "C" and temp.value.tolist() == [math.inf]


def test_an_instant_query() -> None:
    text = '{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1.5,"2"]}]}}'
    [sample] = feed("prom", text).of(Sample)
    assert sample.t_ns.tolist() == [1_500_000_000] and sample.value.tolist() == [2.0]


def test_long_series_leave_in_batches() -> None:
    samples = feed("prom", answer(({"__name__": "x"}, [(n, str(n)) for n in range(10_000)]))).of(Sample)
    assert [len(sample.value) for sample in samples] == [4096, 4096, 10_000 - 8192]
    assert sum(sample.value.sum() for sample in samples) == sum(range(10_000))


def test_values_that_are_iteration_times() -> None:
    text = answer(*(({"rank": str(r)}, [(100 + n, "0.25") for n in range(5)]) for r in range(2)))
    fed = feed("prom", text, more={"as": "iters"})
    for rank in range(2):
        got = fed.iters(rank)
        assert got["dur_ns"].tolist() == [250_000_000] * 5
        assert got["index"].tolist() == list(range(5))
        assert got["t_ns"].tolist() == [99_750_000_000 + n * 10**9 for n in range(5)]


def test_values_that_count_iterations() -> None:
    pairs = [(100, "10"), (115, "40"), (130, "40"), (145, "70"), (160, "5"), (175, "10")]
    got = feed("prom", answer(({}, pairs)), more={"as": "counter"}).iters()
    assert got["index"].tolist() == [40, 70, 10]
    assert got["dur_ns"].tolist() == [500_000_000, 1_000_000_000, 3_000_000_000]
    assert got["every"].tolist() == [30, 30, 5]
    assert got["incarnation"].tolist() == [0, 0, 1]


def test_two_series_that_claim_the_same_rank() -> None:
    fed = feed("prom", answer(({"a": "1"}, [(1, "1")]), ({"a": "2"}, [(1, "1")])), more={"as": "iters"})
    assert fed.reason == "cut: cannot read file0" and len(fed.iters()["index"]) == 1
    apart = feed(
        "prom", answer(({"a": "1"}, [(1, "1")]), ({"a": "2"}, [(1, "1")])), more={"as": "iters", "rank_label": "a"}
    )
    assert apart.reason == "done"


def test_a_failed_query_says_what_failed() -> None:
    fed = feed("auto", '{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}')
    assert fed.reason == "cut: the answer is an error"


def test_nothing_is_bad_input() -> None:
    assert feed("prom", answer()).reason == "cut: no samples in file0"


@pytest.mark.parametrize("pair", [[1, "x"], ["x", "1"], [1, None], [1e300, "1"], [-5, "1"], [True, "1"]])
def test_strange_samples_are_named_and_the_sound_ones_are_delivered(pair: list[Any]) -> None:
    fed = feed("prom", answer(({"__name__": "x"}, [(1, "1"), tuple(pair)])))
    assert fed.reason == "cut: bad input at file0, line 1"
    assert [sample.value.tolist() for sample in fed.of(Sample)] == [[1.0]]


def test_a_cut_answer_delivers_what_was_sound() -> None:
    text = answer(({"__name__": "x"}, [(n, str(n)) for n in range(100)]))
    fed = feed("prom", text[: len(text) // 2])
    assert 30 < len(fed.of(Sample)[0].value) < 60
    assert "the JSON is cut" in fed.said[-1]


@pytest.mark.parametrize("more", [{"as": "x"}, {}])
def test_wrong_options_are_usage(more: dict[str, str]) -> None:
    with pytest.raises(GhError):
        feed("prom", answer(), more=more, unit="s" if more else "h")


@pytest.mark.parametrize("seed", range(90))
def test_fuzz(seed: int) -> None:
    text = answer(*(({"__name__": "x", "rank": str(r)}, [(n, str(n)) for n in range(9)]) for r in range(3)))
    fed = feed(
        "prom", mutate(text.encode(), seed), size=seed % 3 * 33, more={"as": ["samples", "iters", "counter"][seed % 3]}
    )
    assert fed.reason == "done" or fed.reason.startswith("cut")
