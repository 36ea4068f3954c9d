# SPDX-License-Identifier: Apache-2.0
"""Labels files: what is read, and that hostile ones get one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.detect.labels import Label, Labels, of_truth, parse
from ghtools.source import synth
from ghtools.stream.errors import InputError


def test_csv() -> None:
    text = "# planted\nonset, end, kind, ratio, rank\n120,200,slow,1.5,3\n300,,planned,,\n\n40,42,blip,,0-2;7\n"
    assert parse(text, "x").episodes == [
        Label(40, 42, "blip", ranks=(0, 1, 2, 7)),
        Label(120, 200, "slow", ratio=1.5, ranks=(3,)),
        Label(300, kind="planned"),
    ]


def test_json_with_tolerances() -> None:
    made = parse('{"episodes": [{"onset": 5, "end": -1, "cause": "compute", "series": "j"}], "within_iters": 9}', "x")
    assert made == Labels([Label(5, cause="compute", series="j")], within=9)
    assert made.of("j", 1) and not made.of("k", 1)
    assert parse('[{"onset": "7"}]', "x").episodes == [Label(7)]


def test_series_by_number() -> None:
    made = parse("onset,series\n5,2\n6,\n", "x")
    assert [label.onset for label in made.of("", 1)] == [6]
    assert [label.onset for label in made.of("", 2)] == [5, 6]


@pytest.mark.parametrize(
    "text",
    [
        "", "# only\n", "a,b\n1,2\n", "onset\nx\n", "onset\nnan\n", "onset\n1e400\n", "onset\n1.5\n", "onset\n-3\n",
        "onset,end\n5,5\n", "onset,kind\n5,odd\n", "onset,ratio\n5,inf\n", "onset,ratio\n5,-1\n", "onset,rank\n5,3-1\n",
        "onset,rank\n5,0-99999999\n", "onset,rank\n5,-4\n", "onset,full\n5,4\n", "onset\n\n,\n", "{", "[1]", "{}",
        "[[]]",
        '{"episodes": 3}', '[{"end": 3}]', '[{"onset": true}]', '[{"onset": [1]}]', '[{"onset": 1, "ratio": {"a": 1}}]',
        '{"episodes": [], "within_iters": -1}', "[" * 100_000, 'onset\n"5\x00', '[{"onset": 1e999}]',
    ],
)  # fmt: skip
def test_hostile(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text, "labels.csv")
    assert "labels.csv" in str(error.value) and "\n" not in str(error.value)


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text, "x")
    except InputError:
        return


@given(
    st.dictionaries(
        st.sampled_from(["changes", "restarts", "warmup", "iters", "what", "fault", "at", "rank"]),
        st.none() | st.integers() | st.text() | st.lists(st.dictionaries(st.text(), st.integers()) | st.integers()),
    )
)
def test_any_truth_is_read_or_refused(truth: dict[str, object]) -> None:
    try:
        of_truth(truth)
    except InputError:
        return


def test_truth_of_synth() -> None:
    changes = synth.parse(["120:1.5:2:200", "400:0.8"], ["250:1.2:280"], ["50:3"])
    spec = synth.Spec(iters=500, changes=changes, restarts=(300,), warmup=9)
    made = of_truth(synth.truth(spec))
    assert made.iters == 500
    assert made.episodes == [
        Label(0, 9, "warm-up"),
        Label(50, 51, "blip", ratio=3.0),
        Label(120, 200, ratio=1.5, ranks=(2,)),
        Label(250, kind="drift", full=280, ratio=1.2),
        Label(300, kind="restart"),
        Label(400, kind="faster", ratio=0.8),
    ]
