# SPDX-License-Identifier: Apache-2.0
"""gh-import golden: JSON series of iteration times, and the pull parser below it."""

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.source.jsonpull import MAX_DEPTH, Leaves
from ghtools.stream.errors import GhError, InputError

from .feed import Slow, feed, mutate, public

GOLDEN = {
    "lm loss": {"start_step": 1, "end_step": 4, "step_interval": 1, "values": {"1": 9.0, "2": 8.0}},
    "iteration-time": {
        "start_step": 1, "end_step": 4, "step_interval": 1, "values": {"1": "nan", "2": 0.5, "3": 0.25, "4": 0.25},
    },
}  # fmt: skip


def test_golden_values() -> None:
    for name in ("golden", "auto"):
        got = feed(name, json.dumps(GOLDEN, indent=4)).iters()
        assert got["index"].tolist() == [2, 3, 4]
        assert got["dur_ns"].tolist() == [500_000_000, 250_000_000, 250_000_000]
        assert got["t_ns"].tolist() == [0, 500_000_000, 750_000_000]


def test_old_golden_values_are_lists() -> None:
    old = {"iteration-time": {"start_step": 0, "end_step": 20, "step_interval": 5, "values": [9.0, 0.5, 0.5, 0.5]}}
    got = feed("golden", json.dumps(old)).iters()
    assert got["index"].tolist() == [0, 5, 10, 15]
    assert got["every"].tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize("text", ['[0.5, null, NaN, "nan", 0.25]', '{"0": 0.5, "1": "nan", "4": 0.25}'])
def test_lists_and_maps(text: str) -> None:
    for name in ("golden", "auto"):
        got = feed(name, text).iters()
        assert got["index"].tolist() == [0, 4]
        assert got["dur_ns"].tolist() == [500_000_000, 250_000_000]


def test_column_is_a_dotted_path() -> None:
    text = json.dumps({"a": {"b.c": [{"x": [1, 2]}]}, "d": 3})
    assert feed("golden", text, column="a.b.c.0.x", unit="ms").iters()["dur_ns"].tolist() == [1_000_000, 2_000_000]


def test_what_is_there_is_named_where_the_column_is_not() -> None:
    fed = feed("golden", json.dumps(GOLDEN), column="nothing", names=["g.json"])
    assert fed.reason == "cut: no iterations in g.json"
    assert "lm loss, iteration-time" in fed.said[0]


def test_text_among_numbers_is_bad_input_with_its_line() -> None:
    fed = feed("golden", '[1,\n2,\n"abc",\n3]', names=["g.json"])
    assert fed.iters()["index"].tolist() == [0, 1]
    assert fed.reason == "cut: bad input at g.json, line 3"


def test_values_that_are_no_durations_are_said_once() -> None:
    fed = feed("golden", "[1, 0, -2, Infinity, 1]")
    assert fed.iters()["index"].tolist() == [0, 4]
    assert len(fed.said) == 1 and fed.said[0].startswith("3 values")


def test_cut_json_delivers_what_was_sound() -> None:
    text = json.dumps(GOLDEN, indent=4)
    fed = feed("golden", text[: text.index('"4": 0.25') + 6])
    assert fed.iters()["index"].tolist() == [2, 3]
    assert "the JSON is cut" in fed.said[0]


def test_a_restart_between_files() -> None:
    parts = [json.dumps({str(s): 1.0 for s in range(a, a + 10)}) for a in (1, 8)]
    assert feed("golden", *parts).iters()["incarnation"].tolist() == [0] * 10 + [1] * 10
    assert feed("golden", parts[0], parts[0]).reason.startswith("cut: cannot read file1 after file0")


def test_unknown_unit_is_usage() -> None:
    with pytest.raises(GhError, match="no such unit"):
        feed("golden", "[1]", unit="h")


@pytest.mark.parametrize("seed", range(90))
def test_fuzz(seed: int) -> None:
    fed = feed("golden", mutate(json.dumps(GOLDEN, indent=1).encode(), seed), size=seed % 3 * 7)
    assert fed.reason == "done" or fed.reason.startswith("cut")


def flat(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[object, ...]]:
    """The slow, obvious version of Leaves."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in flat(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for key, item in enumerate(value) for leaf in flat(item, (*path, key))]
    return [(path, value)]


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(trees, st.integers(1, 40), st.booleans())
def test_leaves_are_those_of_the_standard_parser(tree: object, size: int, indent: bool) -> None:
    text = json.dumps(tree, indent=2 if indent else None, ensure_ascii=not indent).encode("utf-8", "surrogatepass")
    got = [
        ((*path, key) if path or isinstance(tree, dict | list) else (), value)
        for path, key, value in Leaves(Slow(text, size))
    ]
    assert got == flat(tree)


@given(trees, st.data())
def test_every_cut_is_seen(tree: object, data: st.DataObject) -> None:
    text = json.dumps(tree).encode()
    if not isinstance(tree, dict | list):
        text = b"[" + text + b"]"
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(InputError):
        list(Leaves(io.BytesIO(text[:cut])))


@pytest.mark.parametrize(
    "text",
    ["{", "[1,]",
     "[,1]", '{"a"}', '{"a":}', '{1:2}', "[1}", '{"a":1]', "[1 2]", "1 2", "+1", "01", "[.5]", "tru", "[nul]",
     '"a', "\x00", "[" * (MAX_DEPTH + 1), '{"a":1,}', "]", '["\n"]', '"\\x"', "[1e]", "--1", "[1,2"],
)  # fmt: skip
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(InputError, match="bad input at line"):
        list(Leaves(io.BytesIO(text.encode())))


def test_a_text_without_end_is_cut_off() -> None:
    with pytest.raises(InputError, match="over 1 MiB"):
        list(Leaves(io.BytesIO(b'["' + b"x" * (2 << 20))))


def test_special_numbers() -> None:
    values = [value for _, _, value in Leaves(io.BytesIO(b"[NaN, -Infinity, 1E5, 12345678901234567890]"))]
    assert math.isnan(values[0]) and values[1:] == [-math.inf, 1e5, 12345678901234567890]


@pytest.mark.public_data
@pytest.mark.parametrize(
    ("name", "count", "every", "median_s"),
    [
        ("gpt3_15b_8t_release.h100", 507, 100, 1.434),
        ("gpt3_tp4_pp1_resume.h100", 100, 1, None),
        ("gpt3_weekly_tp2_pp2.gb200", 1999, 1, 1.45),
        ("gpt3_weekly_tp2_pp2.h100", 1999, 1, 1.15),
        ("gpt3_weekly_tp4_cp2.h100", 1999, 1, 5.38),
        ("mixtral_8x7b.h100", None, 5, 8.98),
        ("nemotron3_super.gb200", 2384, 10, 14.1),
    ],
)
def test_megatron_golden(name: str, count: int | None, every: int, median_s: float | None) -> None:
    data = public("megatron-golden", f"{name}.json")
    values = {int(k): v for k, v in json.loads(data)["iteration-time"]["values"].items() if v != "nan"}
    got = feed("auto", data).iters()
    assert got["index"].tolist() == list(values)
    assert np.allclose(got["dur_ns"] / 1e9, list(values.values()), rtol=1e-9)
    assert count is None or len(values) == count
    assert np.median(got["every"]) == every
    assert median_s is None or abs(np.median(got["dur_ns"]) / 1e9 - median_s) < 0.1


@pytest.mark.public_data
def test_change_point_dataset() -> None:
    """One-dimensional series of the TCPD, as they are (their values are no times)."""
    data = public("tcpd", "datasets", "nile", "nile.json")
    got = feed("auto", data).iters()
    assert (got["dur_ns"] / 1e9).tolist() == [float(v) for v in json.loads(data)["series"][0]["raw"]]


def test_values_too_large_for_a_duration_say_so() -> None:
    fed = feed("golden", "[1e15, 2e15]")
    assert fed.said[0].startswith("2 values are no durations")
    assert feed("golden", "[1e15, 2e15]", unit="ns").iters()["dur_ns"].tolist() == [10**15, 2 * 10**15]
