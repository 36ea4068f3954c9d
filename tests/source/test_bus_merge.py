# SPDX-License-Identifier: Apache-2.0
"""Many sources to one stream: repeats, gaps, silence, clashes, rubbish, and going on from a state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.source.bus_entry import Entry, events_of, from_fields, to_fields
from ghtools.source.bus_merge import Merger
from ghtools.stream.framing import encode
from ghtools.stream.records import Calls, Comm, End, Head, Iters, Job, Record
from tests.source.test_bus_buffer import calls, iters


class Sender:
    """Makes the entries of one source."""

    def __init__(self, name: str = "host-a:1:x", job: str = "j") -> None:
        self.name, self.job, self.number, self.events = name, job, 0, 0

    def entry(self, *records: Record, dropped: int = 0, repeat: bool = False) -> dict[bytes, bytes]:
        data = b"".join(map(encode, records))
        made = Entry(self.name, self.job, self.number, self.events, dropped, repeat, data)
        if not repeat:
            self.number += 1
            self.events += sum(map(events_of, records))
        return to_fields(made)


def merger(whole: bool = True, silent_s: float = 30.0) -> tuple[Merger, list[str]]:
    said: list[str] = []
    return Merger(said.append, silent_s, whole), said


def numbers(records: list[Record]) -> list[int]:
    return [int(r.index[0]) for r in records if isinstance(r, Iters)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60))
def test_each_record_once_in_the_order_of_its_source(sent: list[tuple[int, int]]) -> None:
    """A sender may go back any number of entries and send them all again."""
    made, said = merger()
    out: list[list[int]] = [[], [], []]
    history: list[list[dict[bytes, bytes]]] = [[], [], []]
    senders = [Sender(f"h{n}:1:x") for n in range(3)]
    for which, back in sent:
        record = iters(len(history[which]))
        record.rank = which
        history[which].append(senders[which].entry(record))
        for entry in history[which][-1 - back :]:
            out[which] += numbers(made.take(entry, 0.0))
    assert out == [list(range(len(entries))) for entries in history]
    assert made.lost == 0
    assert not said


def test_heads_and_ends_stay_behind_and_all_else_passes() -> None:
    made, _ = merger()
    sender = Sender()
    records = made.take(sender.entry(Head(job="j", truth={"a": 1}), Job(job="j"), Comm(comm=1), iters(0)), 0.0)
    assert [r.kind for r in records] == ["job", "comm", "iters"]
    assert (made.job, made.truth, made.over) == ("j", {"a": 1}, False)
    assert made.take(sender.entry(End(lost=5)), 0.0) == []
    assert (made.over, made.reason, made.lost) == (True, "done", 5)


def test_a_gap_is_counted_and_told_to_the_calls_after_it() -> None:
    made, said = merger()
    sender = Sender()
    made.take(sender.entry(Head(), calls(0, 10), calls(0, 10, rank=1)), 0.0)
    sender.entry(calls(10, 90), iters(0))
    sender.entry(calls(10, 5, rank=1))
    after = made.take(sender.entry(calls(100, 10), calls(110, 10), calls(15, 5, rank=1)), 0.0)
    assert [r.lost for r in after if isinstance(r, Calls)] == [90, 0, 5]
    assert made.lost == 96
    assert "2 entries (96 events)" in said[0]


@pytest.mark.parametrize("whole", [True, False])
def test_what_was_before_the_first_entry_counts_only_if_it_was_wanted(whole: bool) -> None:
    made, _ = merger(whole)
    sender = Sender()
    sender.entry(Head(), calls(0, 9))
    made.take(sender.entry(iters(0)), 0.0)
    assert made.lost == (10 if whole else 0)


def test_a_repeat_is_for_those_who_came_late_or_missed_something() -> None:
    early, _ = merger()
    late, _ = merger(whole=False)
    sender = Sender()
    early.take(sender.entry(Head(), Job(job="j"), Comm(comm=7)), 0.0)
    repeat = sender.entry(Head(), Job(job="j"), Comm(comm=7), repeat=True)
    assert early.take(repeat, 1.0) == []
    assert [r.kind for r in late.take(repeat, 1.0)] == ["job", "comm"]
    assert late.take(repeat, 2.0) == []
    sender.entry(iters(0))
    missed = sender.entry(Head(), Job(job="j"), Comm(comm=8), repeat=True)
    assert [r.kind for r in early.take(missed, 3.0)] == ["job", "comm"]
    assert early.lost == 1
    assert numbers(early.take(sender.entry(iters(1)), 4.0)) == [1]


def test_dropped_by_the_sender_is_lost_even_if_it_never_ends() -> None:
    made, _ = merger()
    sender = Sender()
    made.take(sender.entry(Head(), dropped=4), 0.0)
    made.take(sender.entry(iters(0), dropped=11), 0.0)
    assert made.lost == 11
    made.take(sender.entry(End(lost=20), dropped=11), 0.0)
    assert made.lost == 20


def test_silence_is_said_once_and_so_is_the_return() -> None:
    made, said = merger(silent_s=5)
    sender = Sender()
    made.take(sender.entry(Head()), 0.0)
    made.tick(4.0)
    assert not said
    made.tick(6.0)
    made.tick(60.0)
    assert said == ["source host-a:1 has been silent for 5 s"]
    assert made.over
    assert made.reason == "cut: source host-a:1 went silent"
    made.take(sender.entry(iters(0)), 61.0)
    assert said[1:] == ["source host-a:1 is heard again"]
    assert not made.over


def test_a_bad_end_is_the_reason() -> None:
    made, said = merger()
    one, two = Sender("a:1:x"), Sender("b:2:x")
    made.take(one.entry(Head(), End()), 0.0)
    made.take(two.entry(Head(), End(reason="cut: it died")), 0.0)
    assert made.reason == "cut: source b:2: it died"
    assert said == ["source b:2 ended: cut: it died"]


def test_a_rank_of_two_living_sources_is_said_once() -> None:
    made, said = merger()
    one, two, three = Sender("a:1:x"), Sender("b:2:x"), Sender("a:9:y")
    made.take(one.entry(Head(), Job(job="j", ranks=[{"rank": 3}])), 0.0)
    for n in range(3):
        assert len(made.take(two.entry(iters(n), calls(n, 1)), 0.0)) == 2  # rank 0 is nobody else's
    for n in range(2):
        assert len(made.take(two.entry(calls(n, 1, rank=3)), 0.0)) == 1
    assert said == ["rank 3 comes from a:1 and from b:2; both are forwarded"]
    made.take(three.entry(Job(job="j", ranks=[{"rank": 3}])), 0.0)  # the same host again: a restart
    assert len(said) == 1


def test_a_rank_may_move_when_its_source_has_ended() -> None:
    made, said = merger()
    made.take(Sender("a:1:x").entry(Head(), calls(0, 1), End()), 0.0)
    made.take(Sender("b:1:x").entry(Head(), calls(0, 1)), 0.0)
    assert not said


def test_another_job_in_the_stream_is_said() -> None:
    made, said = merger()
    made.take(Sender("a:1:x", "j").entry(Head(job="j")), 0.0)
    made.take(Sender("b:1:x", "k").entry(Head(job="k")), 0.0)
    assert said == ["source b:1 is of job 'k', others of 'j'"]


@given(st.dictionaries(st.sampled_from([b"v", b"s", b"j", b"n", b"e", b"x", b"k", b"d", b"z"]), st.binary(max_size=40)))
def test_any_fields_are_taken_or_left_out(fields: dict[bytes, bytes]) -> None:
    made, said = merger()
    if fields.get(b"v") is not None:
        fields[b"v"] = b"1"
    taken = made.take(fields, 0.0)
    assert made.skipped == len(said) <= 1 or not made.skipped
    assert not (taken and made.skipped)


@given(st.data())
def test_damaged_records_are_left_out_whole(data: Any) -> None:
    made, _ = merger()
    entry = Sender().entry(Head(), calls(0, 5), iters(1), Job(job="j", ranks=[{"rank": "x"}, {}]))
    raw = bytearray(entry[b"d"])
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=6)):
        raw[at] = data.draw(st.integers(0, 255))
    made.take({**entry, b"d": bytes(raw[: data.draw(st.integers(0, len(raw)))])}, 0.0)
    assert made.skipped in (0, 1)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(ValueError, match="version 2, this is 1"):
        from_fields({b"v": b"2"})


def test_going_on_from_a_state() -> None:
    first, _ = merger()
    one, two = Sender("a:1:x"), Sender("b:1:x")
    first.take(one.entry(Head(job="j"), iters(0), dropped=2), 0.0)
    first.take(two.entry(Head(job="j"), End(lost=3)), 0.0)
    again = one.entry(iters(1))
    first.take(again, 0.0)
    second, said = merger()
    second.restore(first.state(), 100.0)
    assert second.take(again, 100.0) == []
    assert numbers(second.take(one.entry(iters(2)), 100.0)) == [2]
    assert [r.kind for r in second.take(one.entry(Head(), Job(job="j"), repeat=True), 101.0)] == ["job"]
    second.take(one.entry(End(lost=2)), 102.0)
    assert (second.over, second.lost, second.job) == (True, 5, "j")
    assert not said
    for damaged in (
        {},
        {"job": "j"},
        {"job": "j", "sources": [[1]]},
        {"job": "j", "sources": [[1] * 6 + ["x"]] * 2 + [3]},
    ):
        with pytest.raises(ValueError, match="damaged"):
            merger()[0].restore(damaged, 0.0)


def test_what_a_source_says_fits_a_record_and_a_terminal() -> None:
    made, said = merger()
    for n in range(6):
        sender = Sender(f"h{n}:1:x")
        sender.events = 10**18 - 1
        sender.number = 5
        made.take(sender.entry(calls(0, 1), End(lost=2**64 - 1, reason="\x1b[31mbad\n")), 0.0)
    sender = Sender("z:1:x")
    made.take(sender.entry(calls(-(2**63), 1)), 0.0)
    sender.entry(iters(0))
    (after,) = made.take(sender.entry(calls(2**63 - 2, 1)), 0.0)
    encode(after)
    encode(End(lost=made.lost, reason=made.reason))
    assert all(line.isprintable() for line in said)
    assert any("?[31mbad?" in line for line in said)
