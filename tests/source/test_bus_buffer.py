# SPDX-License-Identifier: Apache-2.0
"""The queue before Redis: order, its bound, and that what is dropped is told where it is missing."""

from __future__ import annotations

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ghtools.source.bus_buffer import Buffer
from ghtools.source.bus_entry import RECORD_BYTES, events_of, pieces
from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Alert, Calls, Change, End, Head, Iters, Record, columns


def calls(first: int, count: int, rank: int = 0, lost: int = 0) -> Calls:
    n = np.arange(first, first + count)
    return Calls(rank=rank, lost=lost, **{name: n.astype(dtype) for name, dtype in columns(Calls).items()})


def iters(index: int) -> Iters:
    return Iters(**{name: np.array([index]).astype(dtype) for name, dtype in columns(Iters).items()})


def all_of(buffer: Buffer, most: int = 1 << 16) -> list[Record]:
    out: list[Record] = []
    while items := buffer.take(most):
        out += list(read_records(io.BytesIO(b"".join(item.data for item in items))))
    return out


def test_in_order_of_arrival_whatever_the_kind() -> None:
    buffer = Buffer(1 << 20)
    given: list[Record] = [Head(job="j"), calls(0, 3), iters(0), Change(), calls(3, 2), iters(1), End()]
    assert [buffer.put(0, record) for record in given] == [0] * 7
    assert buffer.events == sum(map(events_of, given)) == 10
    assert [encode(r) for r in all_of(buffer)] == [encode(r) for r in given]
    assert (len(buffer), buffer.bytes, buffer.events) == (0, 0, 0)


def test_calls_go_first_then_batches_then_the_rest() -> None:
    buffer = Buffer(8_000)
    buffer.put(0, Change(why="first"))
    buffer.put(0, iters(0))
    for at in range(50):
        buffer.put(0, calls(at * 100, 100))
    out = all_of(buffer)
    assert isinstance(out[0], Change)
    assert isinstance(out[1], Iters)
    assert len([r for r in out if isinstance(r, Calls)]) == 1
    buffer = Buffer(8_000)
    for n in range(200):
        buffer.put(0, iters(n))
        buffer.put(0, Alert(text=str(n)))
    out = all_of(buffer)
    assert not any(isinstance(r, Iters) for r in out)
    texts = [r.text for r in out if isinstance(r, Alert)]
    assert texts == [str(n) for n in range(200 - len(texts), 200)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 3), st.booleans()), max_size=80),
    st.integers(500, 20_000),
)
def test_rows_and_lost_are_all_there_is(batches: list[tuple[int, int, int, bool]], limit: int) -> None:
    """For each rank, rows that come out plus `lost` are the rows that went in plus the `lost` they had."""
    buffer = Buffer(limit)
    went, came = [0] * 3, [0] * 3
    dropped = 0
    first = [0] * 3
    out: list[Record] = []
    for rank, count, lost, drain in batches:
        record = calls(first[rank] + lost, count, rank, lost)
        first[rank] += lost + count
        went[rank] += lost + count
        dropped += buffer.put(0, record)
        assert buffer.bytes <= limit or not len(buffer)
        if drain:
            out += all_of(buffer, 2000)
    for rank in range(3):  # a small last one of each rank carries what is owed
        went[rank] += 1
        dropped += buffer.put(0, calls(first[rank], 1, rank))
        out += all_of(buffer)
    expected = [0] * 3
    for record in out:
        assert isinstance(record, Calls)
        came[record.rank] += len(record.seq) + record.lost
        assert int(record.seq[0]) == expected[record.rank] + record.lost
        expected[record.rank] = int(record.seq[-1]) + 1
    assert came == went
    assert dropped == buffer.dropped.get(0, 0)


def test_an_end_carries_what_its_section_lost() -> None:
    buffer = Buffer(6_000)
    for n in range(20):
        buffer.put(0, calls(n * 50, 50))
    buffer.put(0, End(lost=3))
    buffer.put(1, Head())
    buffer.put(1, End(lost=1))
    lost = {n: buffer.dropped.get(n, 0) for n in (0, 1)}
    assert lost[0] > 0
    assert lost[1] == 0
    assert [r.lost for r in all_of(buffer) if isinstance(r, End)] == [3 + lost[0], 1]


def test_two_sections_never_share_what_is_taken() -> None:
    buffer = Buffer(1 << 20)
    for source in (0, 0, 1, 1, 0):
        buffer.put(source, Change())
    taken = []
    while items := buffer.take(1 << 16):
        taken.append([item.source for item in items])
    assert taken == [[0, 0], [1, 1], [0]]


def test_large_batches_are_cut_into_parts_that_join_to_the_same() -> None:
    whole = calls(0, 100_000, lost=9)
    parts = pieces(whole)
    assert len(parts) > 3
    assert all(len(encode(part)) < RECORD_BYTES + 1000 for part in parts)
    assert [part.lost for part in parts if isinstance(part, Calls)] == [9] + [0] * (len(parts) - 1)
    for name in columns(Calls):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
    small = calls(0, 10)
    assert pieces(small) == [small]
    assert len(pieces(Head())) == 1
