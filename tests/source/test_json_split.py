# SPDX-License-Identifier: Apache-2.0
"""Cutting JSON into the objects of its outer arrays, against Python's own parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.source import json_split
from ghtools.source.json_split import Splitter
from ghtools.stream.errors import InputError

from .feed import Slow, mutate

SCALAR = (
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12) | st.sampled_from(['"', "\\", "{["])
)
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), VALUE, max_size=4), max_size=6)
MEMBER = OBJECTS | SCALAR | st.dictionaries(st.text(max_size=5), VALUE, max_size=3)


def split(text: str, size: int, *needles: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Objects and what is outside them, reading `size` bytes at a time."""
    splitter = Splitter("f", needles)
    found = [json.loads(raw) for raw in splitter.objects(Slow(text.encode(), size))]
    return found, splitter.outside()


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=6), MEMBER, max_size=5), st.integers(1, 40), st.sampled_from([None, 2]))
def test_equals_the_parser(root: dict[str, Any], size: int, indent: int | None) -> None:
    found, outside = split(json.dumps(root, indent=indent), size)
    assert found == [one for member in root.values() if isinstance(member, list) for one in member]
    assert outside == {key: [] if isinstance(member, list) else member for key, member in root.items()}


def test_scalars_beside_objects_in_an_array() -> None:
    found, outside = split('{"a": [1, {"x": [{"y": 2}]}, 3], "b": [[{"z": 1}]]}', 3)
    assert found == [{"x": [{"y": 2}]}] and outside == {"a": [1, 3], "b": [[{"z": 1}]]}
    assert split('[{"a": 1}, {"b": [{}]}]', 4) == ([{"a": 1}, {"b": [{}]}], {})


def test_needles_choose() -> None:
    text = json.dumps({"traceEvents": [{"name": "nccl:x"}, {"name": "aten::add"}, {"name": "gloo:y"}]})
    assert split(text, 1 << 20, b"nccl", b"gloo:")[0] == [{"name": "nccl:x"}, {"name": "gloo:y"}]


def test_more_objects_than_fit_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_split, "MAX_SPANS", 3)
    found, _ = split(json.dumps({"a": [{"n": n} for n in range(20)], "b": 7}), 1 << 20)
    assert [one["n"] for one in found] == list(range(20))


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "empty"), ("hello", "begin as JSON"), ('{"a": [{"b": 1}', "not whole"), ('{"a": "x', "not whole"),
     ('{"a": [{}]} {}', "follows its end"), ("}", "begin as JSON")],
)  # fmt: skip
def test_bad_input_is_named(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        split(text, 2)


def test_an_object_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_split, "MAX_OBJECT_BYTES", 1000)
    with pytest.raises(InputError, match="object of over"):
        split('{"a": [{"b": "' + "x" * 5000, 100)
    monkeypatch.setattr(json_split, "MAX_REST_BYTES", 1000)
    with pytest.raises(InputError, match="outside its events"):
        split('{"b": "' + "x" * 5000, 100)


@pytest.mark.parametrize("seed", range(200))
def test_fuzz(seed: int) -> None:
    """Whatever comes, objects or InputError; a text that Python reads is read here, too."""
    data = mutate(
        json.dumps({"s": 'a"b\\', "e": [{"n": [1, {"m": "]}"}]}, {"k": "\\\\"}] * 3, "z": {"q": [1]}}).encode(), seed
    )
    splitter = Splitter("f")
    try:
        found = list(splitter.objects(Slow(data, seed % 7 + 1)))
    except InputError:
        with pytest.raises(ValueError):
            json.loads(data.decode("utf-8", "strict"))
        return
    try:
        whole = json.loads(data.decode("utf-8", "strict"))
    except ValueError:
        return
    if isinstance(whole, dict):
        keys = [key for key, _ in json.loads(data, object_pairs_hook=lambda pairs: pairs)]
        if len(keys) == len(set(keys)):
            assert [json.loads(raw) for raw in found] == [
                one for member in whole.values() if isinstance(member, list) for one in member if isinstance(one, dict)
            ]
