# SPDX-License-Identifier: Apache-2.0
"""A rank's own time between its communication."""

from __future__ import annotations

import numpy as np

from ghtools.locate.collect import Bounds, Rows, iteration_of
from ghtools.locate.gaps import FIRST, blind, own_time, places
from ghtools.stream.records import OP_CODE

MS = 1_000_000


def rows(calls: list[tuple[float, float, float]], op: str = "all_reduce", peer: int = -1) -> Rows:
    """(entry, start, end) in ms."""
    entry, start, end = (np.array([call[i] for call in calls]) for i in range(3))
    n = len(calls)
    return Rows(
        np.arange(n, dtype=np.int64), (entry * MS).astype(np.int64), (start * MS).astype(np.int64),
        ((end - start) * MS).astype(np.int64), np.full(n, OP_CODE[op], np.uint8), np.full(n, peer, np.int32),
        np.ones(n, np.uint64), np.full(n, 8, np.int64),
    )  # fmt: skip


def bounds(*begins: float, first_seq: tuple[int, ...]) -> Bounds:
    """Iterations that begin at these times (ms), the last entry being the end."""
    t = (np.array(begins) * MS).astype(np.int64)
    n = len(t) - 1
    return Bounds(np.arange(n), t[:-1], np.diff(t), np.zeros(n, np.uint8), np.array(first_seq, np.int64))


def own(r: Rows, b: Bounds, overlapped: np.ndarray | None = None) -> list[float]:
    return (own_time(r, iteration_of(r, b), b, None, overlapped).own / MS).round(3).tolist()


def test_blocking_calls() -> None:
    # 10 ms of work before each of two collectives that hold for 5, twice
    r = rows([(10, 10, 15), (25, 25, 30), (40, 40, 45), (55, 55, 60)])
    assert own(r, bounds(0, 30, 60, first_seq=(0, 2))) == [20.0, 20.0]


def test_overlapped_buckets_of_a_rank_that_waits() -> None:
    # Buckets are entered every 25 ms while each still runs; the last one holds until 300
    r = rows([(75, 75, 150), (100, 150, 200), (125, 200, 250), (150, 250, 300), (375, 375, 376)])
    assert own(r, bounds(0, 300, 376, first_seq=(0, 4))) == [150.0, 75.0]


def test_what_is_overlapped_elsewhere_does_not_hold_the_late_rank() -> None:
    r = rows([(150, 150, 160), (200, 200, 210), (250, 250, 260), (300, 300, 310)])
    b = bounds(0, 310, first_seq=(0,))
    assert own(r, b) == [270.0]  # as if each had held for its transfer
    assert own(r, b, np.array([True, True, True, False])) == [300.0]


def test_places_tell_what_runs_on() -> None:
    waits = rows([(75, 75, 150), (100, 150, 200), (150, 200, 300)])
    late = rows([(150, 150, 160), (200, 200, 210), (290, 290, 300)])
    key = np.zeros(3, np.int64)
    code, runs_on = places(waits, np.zeros(3, np.int64), key)
    assert runs_on.tolist() == [True, True, False]
    assert places(late, np.zeros(3, np.int64), key)[0].tolist() == code.tolist()
    assert len(set(code.tolist())) == 3


def test_a_buffered_send_never_holds() -> None:
    r = rows([(10, 10, 40), (20, 20, 30), (50, 50, 51)], op="send", peer=1)
    assert own(r, bounds(0, 60, first_seq=(0,))) == [50.0]


def test_an_iteration_without_its_predecessor_begins_where_it_began() -> None:
    r = rows([(110, 110, 115), (125, 125, 130)])
    assert own(r, bounds(100, 130, first_seq=(0,))) == [20.0]


def test_a_hole_in_the_index_is_not_a_gap() -> None:
    r = rows([(10, 10, 30), (5010, 5010, 5030)])
    b = bounds(0, 30, first_seq=(0,))
    begins, lasted = np.array([0, 5000 * MS]), np.array([30 * MS, 30 * MS])
    hole = Bounds(np.array([0, 7]), begins, lasted, np.zeros(2, np.uint8), np.array([0, 1]))
    assert own(r, hole) == [10.0, 10.0]
    assert own(r, b) == [10.0]


def test_longest_gap_and_its_place() -> None:
    r = rows([(10, 10, 15), (65, 65, 70), (80, 80, 85)])
    b = bounds(0, 90, first_seq=(0,))
    made = own_time(r, iteration_of(r, b), b, np.array([4, 5, 6]))
    assert made.longest.tolist() == [50 * MS]
    assert made.place.tolist() == [5]
    late_start = rows([(50, 50, 55), (60, 60, 70), (80, 80, 85)])
    assert own_time(late_start, iteration_of(late_start, b), b, np.array([4, 5, 6])).place.tolist() == [FIRST + 4]


def test_nothing_is_known_of_nothing() -> None:
    b = bounds(0, 10, first_seq=(0,))
    r = rows([(20, 20, 25)])
    assert np.isnan(own_time(r, iteration_of(r, b), b).own).all()
    empty = rows([])
    assert np.isnan(own_time(empty, iteration_of(empty, b), b).own).all()


def test_the_first_gap_of_a_stretch_is_not_known() -> None:
    r = rows([(10, 10, 15), (25, 25, 30), (40, 40, 45), (55, 55, 60)])
    b = bounds(10, 40, 70, first_seq=(0, 2))  # counted from their first calls
    assert blind(r, iteration_of(r, b), b).tolist() == [True, False]


def test_iterations_that_begin_before_their_first_call_are_known_whole() -> None:
    r = rows([(10, 10, 15), (25, 25, 30), (40, 40, 45), (55, 55, 60)])
    b = bounds(0, 30, 60, first_seq=(0, 2))
    assert blind(r, iteration_of(r, b), b).tolist() == [False, False]


def test_where_every_iteration_is_a_stretch_of_its_own_none_is_blind() -> None:
    r = rows([(10, 10, 15), (25, 25, 30), (40, 40, 45), (55, 55, 60)])
    r.seq = np.array([0, 1, 20, 21])
    b = bounds(10, 30, 60, first_seq=(0, 20))
    b.index = np.array([0, 5])
    b.t_ns = np.array([10, 40]) * MS
    assert blind(r, iteration_of(r, b), b).tolist() == [False, False]
