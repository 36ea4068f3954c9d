# SPDX-License-Identifier: Apache-2.0
"""gh-import jsonl: lines made by hand or by jq, and hostile lines (restoring gh-show's own: tests/view/test_show)."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.source import importers, jsonl
from ghtools.stream.errors import Exit, GhError, InputError
from ghtools.stream.framing import encode
from ghtools.stream.records import Calls, Iters, Record
from ghtools.view import jsonl as view_jsonl
from tests.stream.strategies import MUTATIONS, mutated, sample

ROW = {"kind": "iters", "rank": 0, "index": 1, "t_ns": 5, "dur_ns": 7}


class Live:
    """A source of which each piece comes after the last one has gone quiet."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def waiting(self, timeout_s: float) -> bool:
        return False

    def read1(self, size: int, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def read(data: bytes | Live) -> list[Record]:
    source = io.BytesIO(data) if isinstance(data, bytes) else data
    return list(jsonl.read([importers.File("-", source)], importers.Options()))


def rows(*items: dict[str, object]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def test_rows_by_hand_become_batches() -> None:
    made = read(rows(*({**ROW, "index": i, "rank": i % 2} for i in range(10))))
    assert [(r.rank, r.index.tolist()) for r in made if isinstance(r, Iters)] == [
        (0, [0, 2, 4, 6, 8]), (1, [1, 3, 5, 7, 9]),
    ]  # fmt: skip


def test_calls_may_leave_out_what_is_not_known() -> None:
    [calls] = read(rows({"kind": "calls", "rank": 3, "t_ns": 5, "op": "send"}))
    assert isinstance(calls, Calls)
    assert (calls.op.tolist(), calls.peer.tolist(), calls.dur_ns.tolist(), calls.flags.tolist()) == (
        [9],
        [-1],
        [-1],
        [16],
    )


def test_whole_numbers_may_be_written_as_floats() -> None:
    [iters] = read(b'{"kind":"iters","rank":0.0,"index":1e1,"t_ns":1.7672256e18,"dur_ns":7.0}\n')
    assert isinstance(iters, Iters)
    assert (iters.rank, iters.index[0], iters.t_ns[0]) == (0, 10, 1_767_225_600_000_000_000)


def test_rows_that_a_filter_took_out_leave_the_rest() -> None:
    lines = [json.loads(line) for line in view_jsonl.lines(sample()[3])]
    made = read(rows(*(line for line in lines if line["seq"] not in (0, 3, 5))))
    assert [r.seq.tolist() for r in made if isinstance(r, Calls)] == [[1, 2, 4]]


def test_losses_are_not_counted_twice_when_a_batch_is_torn() -> None:
    calls = sample()[3]
    assert isinstance(calls, Calls)
    calls.lost = 9
    lines = [line.encode() + b"\n" for line in view_jsonl.lines(calls)]
    made = read(Live(b"".join(lines[:2]), b"".join(lines[2:]), b"".join(lines)))
    assert [(r.lost, r.seq.tolist()) for r in made if isinstance(r, Calls)] == [
        (9, [0, 1]), (0, [2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5]),
    ]  # fmt: skip


def test_a_live_source_does_not_wait_for_a_whole_batch() -> None:
    line = json.dumps({**ROW, "row": 0, "rows": 64}).encode() + b"\n"
    source = Live(line, b"")
    records = jsonl.read([importers.File("-", source)], importers.Options())
    first = next(records)
    assert isinstance(first, Iters) and len(first.index) == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello", "not JSON"),
        (b'{"kind":"iters"', "not JSON"),
        (b"[1,2]", "a list where an object should be"),
        (b"7", "a int where an object"),
        (b'{"a":1}', "without a kind"),
        (b'{"kind":5}', "without a kind"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"kind":"iters","index":1,"t_ns":1}', "the key dur_ns is missing"),
        (b'{"kind":"calls","t_ns":1}', "the key op is missing"),
        (b'{"kind":"calls","t_ns":1,"op":"sing"}', "op 'sing' is unknown"),
        (b'{"kind":"calls","t_ns":1,"op":"op99999"}', "out of range"),
        (b'{"kind":"calls","t_ns":1,"op":[1]}', "op is list"),
        (b'{"kind":"calls","t_ns":1,"op_code":"x"}', "op_code is str"),
        (b'{"kind":"calls","t_ns":"1","op":"send"}', "t_ns is str"),
        (b'{"kind":"calls","t_ns":1.5,"op":"send"}', "t_ns is 1.5"),
        (b'{"kind":"calls","t_ns":1,"op":"send","comm":"beef"}', "comm is not"),
        (b'{"kind":"iters","index":1,"t_ns":1,"dur_ns":99999999999999999999}', "out of range"),
        (b'{"kind":"iters","index":1,"t_ns":1,"dur_ns":1e300}', "out of range"),
        (b'{"kind":"iters","rank":"x","index":1,"t_ns":1,"dur_ns":1}', "rank of iters is str"),
        (b'{"kind":"iters","rank":[0],"index":1,"t_ns":1,"dur_ns":1}', "rank of iters is list"),
        (b'{"kind":"iters","index":1,"t_ns":1,"dur_ns":1,"row":9,"rows":3}', "row 9 of 3"),
        (b'{"kind":"iters","index":1,"t_ns":1,"dur_ns":1,"row":"a","rows":3}', "row a of 3"),
        (b'{"kind":"change","ratio":"fast"}', "ratio of change is str"),
        (b'{"kind":"change","rank":18446744073709551616}', "rank of change"),
        (b'{"kind":"later","x":18446744073709551616}', "[Oo]ut of range|[Oo]verflow|too big"),
        (b'{"kind":"later","x":"\\ud800"}', "surrogates"),
        (b'{"kind":"later","x":{"__bytes__":"%%"}}', "base64"),
        (b'{"kind":"later","x":{"__ext__":["a","AA=="]}}', "code must be int"),
        (b'{"kind":"later","x":' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_a_hostile_line_is_named(line: bytes, why: str) -> None:
    good = rows(ROW, {**ROW, "index": 2})
    made: list[Record] = []
    with pytest.raises(InputError, match=f"bad input at line 4: .*({why})") as caught:
        for record in jsonl.read(
            [importers.File("-", io.BytesIO(good + b"\n" + line + b"\n" + good))], importers.Options()
        ):
            made.append(record)
    assert caught.value.code is Exit.INPUT and "\n" not in str(caught.value)
    assert [r.index.tolist() for r in made if isinstance(r, Iters)] == [[1, 2]], "what was sound before is delivered"


def test_an_endless_line_is_refused_in_bounded_memory() -> None:
    class Endless:
        given = 0

        def read1(self, size: int, /) -> bytes:
            self.given += size
            return b"x" * size

    source = Endless()
    with pytest.raises(InputError, match="line 1: a line of over 16 MiB"):
        list(jsonl.read([importers.File("-", source)], importers.Options()))
    assert source.given < 17 << 20


def test_a_batch_without_an_end_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ghtools.source.batches.MAX_HELD_ROWS", 100)
    made = read(rows(*({**ROW, "rank": i % 7, "row": i // 7, "rows": 10**9} for i in range(1000))))
    assert sum(len(r.index) for r in made if isinstance(r, Iters)) == 1000
    assert max(len(r.index) for r in made if isinstance(r, Iters)) <= 100


@given(MUTATIONS, st.integers(1, 200))
def test_mutated_lines_are_records_or_refused(mutations: list[tuple[str, int, bytes]], size: int) -> None:
    text = "".join(line + "\n" for record in sample() for line in view_jsonl.lines(record))
    data = mutated(text.encode(), mutations)
    try:
        for record in read(data):
            encode(record)
    except GhError as error:
        assert error.code is Exit.INPUT
