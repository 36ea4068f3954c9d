# SPDX-License-Identifier: Apache-2.0
"""Framing: every kind round trips, unknown things pass untouched, malformed input is named with its byte."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.stream.errors import Exit, GhError, InputError
from ghtools.stream.framing import encode, read_records, sections
from ghtools.stream.pipeline import run_filter
from ghtools.stream.records import KINDS, Calls, End, Head, Iters, Record, Unknown
from ghtools.stream.writer import Writer
from tests.stream.strategies import BODY, MUTATIONS, mutated, record_of, same, sample, wire


class Pieces:
    """A source that gives its bytes in pieces of given sizes, as a pipe may."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes = data, sizes

    def read1(self, size: int, /) -> bytes:
        count = min(size, self._sizes.pop(0) if self._sizes else size)
        made, self._data = self._data[:count], self._data[count:]
        return made


class Forward:
    """A stage that makes nothing."""

    def feed(self, record: Record) -> Iterable[Record]:
        return ()

    def finish(self) -> Iterable[Record]:
        return ()


def filtered(data: bytes) -> tuple[bytes, bool, list[str]]:
    """What a filter that does nothing makes of a stream, whether it was clean, and what it said."""
    out, said = io.BytesIO(), []  # type: ignore[var-annotated]
    clean = run_filter(
        "gh-test", io.BytesIO(data), Writer(out), lambda head: Forward(), (), keep=True, warn=said.append
    )
    return out.getvalue(), clean, said


@given(st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, data: st.DataObject) -> None:
    record = data.draw(record_of(KINDS[kind]))
    [back] = read_records(io.BytesIO(encode(record)))
    assert same(record, back)


@given(st.lists(BODY, max_size=6), st.lists(st.integers(1, 40), max_size=200))
def test_pieces_do_not_matter(records: list[Record], sizes: list[int]) -> None:
    back = list(read_records(Pieces(wire(records), sizes)))
    assert len(back) == len(records)
    assert all(map(same, records, back))


@given(st.lists(BODY, max_size=6))
def test_a_filter_forwards_everything_untouched(records: list[Record]) -> None:
    data = wire([Head(tool="t"), *records, End(count=len(records))])
    made, clean, said = filtered(data)
    assert clean and not said
    assert made == wire([Head(tool="t", via=["gh-test"]), *records, End(count=len(records))])


def test_unknown_keys_and_kinds_keep_their_place() -> None:
    odd = msgpack.packb({"kind": "wobble", "b": b"\x00", "n": -1, "ext": msgpack.ExtType(5, b"ab")})
    newer = msgpack.packb({"kind": "period", "rank": 3, "colour": "red", "more": [1, {"x": None}]})
    records = list(read_records(io.BytesIO(odd + newer)))
    assert [type(r).__name__ for r in records] == ["Unknown", "Period"]
    assert encode(records[0]) == odd
    assert records[1].extra == {"colour": "red", "more": [1, {"x": None}]}
    assert msgpack.unpackb(encode(records[1]))["colour"] == "red"


def test_numpy_scalars_become_numbers() -> None:
    record = Unknown(extra={"kind": "k", "a": 1})
    period = KINDS["period"](rank=np.int64(4), dur_ns=np.int32(7), confidence=np.float64(0.5))  # type: ignore[call-arg]
    assert msgpack.unpackb(encode(period))["rank"] == 4
    assert msgpack.unpackb(encode(record)) == {"kind": "k", "a": 1}


def bad(**changes: Any) -> bytes:
    """An iters record with some keys replaced; None takes a key away."""
    item = msgpack.unpackb(encode(sample()[4]))
    item.update(changes)
    return bytes(msgpack.packb({key: value for key, value in item.items() if value is not None}))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (b"hello, this is text\n", "map should be"),
        (b"{\"kind\":\"head\"}\n", "map should be"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "map should be"),
        (b"\xc1", "map should be|format|unpack"),
        (msgpack.packb([1, 2]), "map should be"),
        (msgpack.packb({"a": 1}), "without a kind"),
        (msgpack.packb({"kind": 7}), "without a kind"),
        (msgpack.packb({5: 1}), "int is not allowed"),
        (b"\x81\xa4kind\xa2\xff\xfe", "utf-8"),
        (bad(rank="three"), "rank of iters is str"),
        (bad(rank=True), "rank of iters is bool"),
        (bad(rank=1.5), "rank of iters is float"),
        (bad(rank=[1]), "rank of iters is list"),
        (bad(index="text"), "column index of iters"),
        (bad(index=b"1234567"), "column index of iters"),
        (bad(index=b""), "has .* values, its siblings"),
        (bad(dur_ns=b"\0" * 8), "has 1 values, its siblings 6|has 6 values, its siblings 1"),
        (bad(phase=None), "column phase of iters is missing"),
        (msgpack.packb({"kind": "comm", "ranks": ["a"]}), "ranks of comm"),
        (msgpack.packb({"kind": "job", "ranks": [1]}), "ranks of job"),
        (msgpack.packb({"kind": "job", "layout": {"tp": "2"}}), "layout of job"),
        (msgpack.packb({"kind": "change", "ratio": "x"}), "ratio of change"),
        (b"\xdd\xff\xff\xff\xff", "max_array_len"),
        (b"\xdf\xff\xff\xff\xff", "max_map_len"),
        (b"\x91" * 5000, "nested|stack|recursion|StackError"),
    ],
)  # fmt: skip
def test_malformed_is_named_with_its_byte(broken: bytes, why: str) -> None:
    good = wire(sample()[:3])
    seen = []
    with pytest.raises(InputError, match=f"(?i)bad input at byte {len(good)}: .*({why})") as caught:
        for record in read_records(io.BytesIO(good + broken)):
            seen.append(record)
    assert caught.value.code is Exit.INPUT
    assert len(seen) == 3  # what was sound before it was delivered
    assert "\n" not in str(caught.value)


def test_a_record_of_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ghtools.stream.framing.MAX_RECORD_BYTES", 1 << 20)
    good = wire(sample()[:2])
    huge = b"\x82\xa4kind\xa1k\xa1b\xc6" + (1 << 21).to_bytes(4, "big") + b"\0" * (1 << 21)
    with pytest.raises(InputError, match=f"(?i)bad input at byte {len(good)}: .*(exceeds|over|max_bin_len)"):
        list(read_records(io.BytesIO(good + huge)))


@pytest.mark.parametrize("empty", [b"\x90", b"\x80", b"\xa2ab"])
def test_a_record_of_too_many_values_is_refused(empty: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte on the wire may cost 60 bytes in memory: what a record holds is counted as it is built."""
    monkeypatch.setattr("ghtools.stream.framing.MAX_RECORD_VALUES", 10_000)
    many = b"\x82\xa4kind\xa1k\xa1b\xdc\x00\x10" + 16 * (b"\xdc\x04\x00" + 1024 * empty)
    with pytest.raises(InputError, match="bad input at byte 0: a record of over 10000 values"):
        list(read_records(io.BytesIO(many)))


def test_every_cut_is_noticed() -> None:
    """Wherever a stream is cut, what was whole is delivered, one line says so, and the end carries the reason on."""
    records = sample()
    data = wire(records)
    ends = [len(wire(records[: i + 1])) for i in range(len(records))]
    for cut in range(ends[0], len(data)):
        made, clean, said = filtered(data[:cut])
        back = list(read_records(io.BytesIO(made)))
        whole = sum(end <= cut for end in ends)
        assert not clean and len(said) == 1, cut
        assert "cut" in said[0]
        assert len(back) == whole + 1
        assert isinstance(back[-1], End) and back[-1].reason.startswith("cut")
        if cut not in ends:
            began = max(end for end in ends if end <= cut)
            assert f"input cut at byte {cut}: the record that began at byte {began} is not whole" in said[0]
        again, clean, _ = filtered(made)
        assert not clean, "the next stage must exit 3, too"
        assert isinstance(list(read_records(io.BytesIO(again)))[-1], End)


def test_a_cut_inside_the_head_is_an_error() -> None:
    with pytest.raises(InputError, match="input cut at byte 5"):
        filtered(wire(sample())[:5])


def test_empty_input_says_so() -> None:
    with pytest.raises(InputError, match="empty input"):
        filtered(b"")


@pytest.mark.parametrize("version", [[2, 0], [0, 9], [], [1 << 40, 1]])
def test_another_major_version_is_refused_by_name(version: list[int]) -> None:
    with pytest.raises(InputError, match=r"cannot read this stream: it is version"):
        filtered(wire([Head(v=version), End()]))


def test_a_newer_minor_version_is_read() -> None:
    _, clean, _ = filtered(wire([Head(v=[1, 99]), End()]))
    assert clean


def test_records_before_any_head_are_refused() -> None:
    with pytest.raises(InputError, match="a record of kind iters before any head"):
        filtered(wire(sample()[4:]))


def test_two_streams_one_after_the_other_are_one() -> None:
    made, clean, said = filtered(wire(sample()) * 2)
    back = list(read_records(io.BytesIO(made)))
    assert clean and not said
    assert sum(isinstance(r, Head) for r in back) == sum(isinstance(r, End) for r in back) == 2


def test_a_head_without_the_end_before_it_is_a_cut() -> None:
    made, clean, said = filtered(wire(sample()[:-1]) + wire(sample()))
    ends = [r for r in read_records(io.BytesIO(made)) if isinstance(r, End)]
    assert not clean and len(said) == 1
    assert [end.reason.startswith("cut") for end in ends] == [True, False]


def test_the_end_carries_the_count() -> None:
    made, _, _ = filtered(wire([Head(), *sample()[1:3], End(count=99)]))
    assert list(read_records(io.BytesIO(made)))[-1].count == 2  # type: ignore[attr-defined]


def test_nan_and_extremes_pass() -> None:
    odd = KINDS["change"](ratio=float("nan"), ratio_hi=float("inf"), lost_ns=-(1 << 63))  # type: ignore[call-arg]
    [back] = read_records(io.BytesIO(encode(odd)))
    assert same(odd, back)


def test_wrong_lengths_are_not_written() -> None:
    short = Iters(index=np.arange(3), dur_ns=np.arange(2))
    with pytest.raises(InputError, match=r"siblings|missing"):
        list(read_records(io.BytesIO(encode(short))))


@given(MUTATIONS)
def test_mutated_streams_never_raise_anything_else(mutations: list[tuple[str, int, bytes]]) -> None:
    data = mutated(wire(sample()), mutations)
    try:
        made, _, _ = filtered(data)
    except GhError as error:
        assert error.code is Exit.INPUT
        return
    # Whatever a filter writes is itself well formed.
    for section in sections(io.BytesIO(made), lambda error: pytest.fail(str(error))):
        for record in section:
            if isinstance(record, Calls):
                assert len(record.t_ns) == len(record.op)
