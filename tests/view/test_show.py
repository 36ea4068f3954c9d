# SPDX-License-Identifier: Apache-2.0
"""gh-show's lines: every kind has a sentence, nothing in the input can break a line, JSON is restored exactly."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given

from ghtools.source import importers, jsonl
from ghtools.stream.errors import Exit, GhError
from ghtools.stream.records import FLAG_EXEC, KINDS, Calls, Change, Head, Iters, Job, Record, Sample, Unknown
from ghtools.view import jsonl as view_jsonl
from ghtools.view import show, text
from tests.stream.strategies import BODY, MUTATIONS, mutated, same, sample, wire


def selected(data: bytes, *kinds: str, limit: int = 0) -> tuple[list[Record], bool, list[str]]:
    said: list[str] = []
    selection = show.Selection(io.BytesIO(data), said.append, frozenset(kinds), limit)
    return list(selection), selection.clean, said


def lines(record: Record, *, expand: bool = False) -> list[str]:
    return list(show.human(record, expand=expand))


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 ns"), (999, "999 ns"), (1000, "1 us"), (12_345, "12.3 us"), (999_600, "1 ms"), (312_000_000, "312 ms"),
        (1_234_567_890, "1.23 s"), (53_000_000_000, "53 s"), (99_960_000_000, "1 min 40 s"),
        (125_000_000_000, "2 min 05 s"), (3_599_600_000_000, "1 h 00 min"), (-5_000_000, "-5 ms"),
    ],
)  # fmt: skip
def test_durations_have_three_digits(ns: int, shown: str) -> None:
    assert text.duration(ns) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4_194_304, "4.19 MB"), (10**19, "10 EB")]
)
def test_sizes_count_in_thousands(count: int, shown: str) -> None:
    assert text.size(count) == shown


def test_rank_lists_are_short() -> None:
    assert text.rank_list([3, 1, 2, 7, 9, 10]) == "1-3,7,9-10"
    assert text.rank_list([]) == ""


def test_clock_of_a_log_is_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text.clock(3_723_000_000_000) == "+1:02:03"
    assert text.clock((1 << 63) - 1).count(":") == 2 or "ns" in text.clock((1 << 63) - 1)


def test_a_change_is_a_sentence() -> None:
    onset = Change(
        stage="confirmed", level="job", verdict="fail-slow", before_ns=312_000_000, after_ns=905_000_000,
        ratio=905 / 312, onset_index=120, said_index=125, ranks=[0, 1, 2, 3],
    )  # fmt: skip
    [line] = lines(onset)
    assert line.endswith(
        "job slow since iteration 120: 312 ms -> 905 ms (+190 %), confirmed at 125, fail-slow, ranks 0-3"
    )
    relief = Change(type="relief", rank=2, ratio=0.5, onset_index=9, lost_ns=53 * 10**9, n_iters=90)
    assert "rank 2 back since iteration 9" in lines(relief)[0]
    assert "the episode cost 53 s over 90 iterations" in lines(relief)[0]


def test_a_batch_is_one_line_or_one_a_row() -> None:
    calls, iters = sample()[3:5]
    assert len(lines(calls)) == len(lines(iters)) == 1
    assert "6 calls in 1.5 s: all_reduce 6 (25.2 MB); 1 communicator" in lines(calls)[0]
    assert "iterations 0-5: median 300 ms, 300 ms to 300 ms" in lines(iters)[0]
    rows = lines(calls, expand=True)
    assert len(rows) == 2 + 6
    assert all(word in rows[2] for word in ("all_reduce", "4.19 MB", "float32", "deadbe"))
    assert len(lines(iters, expand=True)) == 2 + 6


def test_executions_say_how_long_they_took() -> None:
    [calls] = [record for record in sample() if isinstance(record, Calls)][:1]
    calls.dur_ns = np.array([-1, 2000, 5000, 3000, -1, 1000])
    assert "6 calls in 1.5 s: all_reduce 6 (25.2 MB); took 1 us to 5 us, 11 us in all; 1 comm" in lines(calls)[0]
    calls.flags = np.full(6, FLAG_EXEC, "<u2")
    assert "6 executions in 1.5 s: " in lines(calls)[0]


def test_ranks_of_which_nothing_is_known_take_one_line() -> None:
    ranks = [{"rank": r, "state": "ended" if r < 5 else "running"} for r in range(8)]
    assert lines(Job(ranks=ranks))[1:] == ["    ranks 0-4: ended", "    ranks 5-7: running"]


def test_a_series_that_does_not_move_is_not_given_a_spread() -> None:
    one = Sample(metric="m", unit="W", t_ns=np.array([5, 6]), value=np.array([2.0, 2.0]))
    assert "m: 2 samples, all 2 W" in lines(one)[0]


def test_many_ranks_are_shown_by_host() -> None:
    ranks = [{"rank": r, "host": f"n{r // 100}", "state": "running"} for r in range(300)]
    shown = lines(Job(ranks=ranks, world_size=300))
    assert len(shown) == 2 + 3
    assert "100-199" in shown[3]


@given(BODY)
def test_every_record_is_one_printable_line(record: Record) -> None:
    first, *rest = show.human(record, expand=True)
    [plain] = show.plain(record, expand=False)
    for line in (first, plain, *rest):
        assert line.isprintable(), line


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    record = Unknown(extra={"kind": "x\x1b[2J", "text": "a\nb\x1b]0;title\x07"})
    assert "\x1b" not in "".join(lines(record)) and "\n" not in "".join(lines(record))


def test_kinds_and_head_select() -> None:
    data = wire(sample())
    assert [r.kind for r in selected(data, "iters", "change")[0]] == ["iters", "change"]
    assert [r.kind for r in selected(data, limit=2)[0]] == ["head", "job"]
    assert [r.extra["kind"] for r in selected(data, "later")[0]] == ["later"]


def test_a_cut_stream_is_shown_and_not_clean() -> None:
    records, clean, said = selected(wire(sample()[:4]))
    assert not clean and len(said) == 1
    assert [r.kind for r in records] == ["head", "job", "comm", "calls", "end"]
    assert "cut" in lines(records[-1])[0] and "0 records" not in lines(records[-1])[0]
    assert not selected(wire(sample()[:4]), "iters")[1], "also where the end is not shown"


def restored(records: list[Record]) -> list[Record]:
    """Records through JSON and back."""
    text = "".join(line + "\n" for record in records for line in view_jsonl.lines(record))
    return list(jsonl.read([importers.File("-", io.BytesIO(text.encode()))], importers.Options()))


@given(BODY)
def test_json_restores_every_record_exactly(record: Record) -> None:
    if isinstance(record, Unknown) and record.extra["kind"] in KINDS:
        return
    made = restored([record])
    assert len(made) == 1
    assert same(made[0], record)


def test_json_restores_batches_and_their_bounds() -> None:
    calls, iters = sample()[3:5]
    assert isinstance(calls, Calls) and isinstance(iters, Iters)
    again = Iters(**{**vars(iters), "rank": 1})
    odd = Calls(**{**vars(calls), "op": np.array([0, 1, 13, 14, 99, 255], "u1"), "lost": 7})
    empty = Iters(rank=3)
    records: list[Record] = [Head(), calls, calls, iters, again, iters, odd, empty, odd]
    made = restored(records)
    assert len(made) == len(records)
    assert all(map(same, made, records))


def test_json_is_what_other_tools_can_read() -> None:
    change = Change(ratio=float("nan"), ratio_hi=float("inf"))
    [line] = view_jsonl.lines(change)
    assert json.loads(line, parse_constant=pytest.fail)["ratio"] == "NaN"
    row = json.loads(next(view_jsonl.lines(sample()[3])))
    assert (row["op"], row["op_code"], row["dtype"], row["comm"]) == ("all_reduce", 1, "float32", "0xdeadbeefcafef00d")


@given(MUTATIONS)
def test_mutated_streams_are_shown_or_refused(mutations: list[tuple[str, int, bytes]]) -> None:
    data = mutated(wire(sample()), mutations)
    try:
        for record in selected(data)[0]:
            for line in [*show.human(record, expand=True), *show.plain(record, expand=True)]:
                assert line.isprintable()
            for line in view_jsonl.lines(record):
                json.loads(line)
    except GhError as error:
        assert error.code is Exit.INPUT
