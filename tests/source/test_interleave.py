# SPDX-License-Identifier: Apache-2.0
"""Records of ranks put side by side: nothing is lost or changed, and all ranks are at the same iteration."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.source import interleave
from ghtools.source.interleave import Interleave
from ghtools.stream.records import Calls, Iters, columns


def calls(rank: int, t_ns: list[int]) -> Calls:
    made = {name: np.zeros(len(t_ns), dtype) for name, dtype in columns(Calls).items()}
    return Calls(rank=rank, **made | {"t_ns": np.array(t_ns, np.int64), "seq": np.arange(len(t_ns))})


def iters(rank: int, index: list[int], t_ns: list[int]) -> Iters:
    made = {name: np.zeros(len(t_ns), dtype) for name, dtype in columns(Iters).items()}
    return Iters(rank=rank, **made | {"t_ns": np.array(t_ns, np.int64), "index": np.array(index, np.int64)})


def merged(*records: Calls | Iters) -> list[Calls | Iters]:
    together = Interleave()
    return [made for record in records for made in together.add(record)] + list(together.release())


def test_iterations_side_by_side_on_clocks_that_differ() -> None:
    out = merged(
        calls(0, [5, 11, 12, 21]), calls(0, [6, 13]), iters(0, [7, 8, 9], [10, 20, 30]),
        calls(1, [1001, 1011, 1021]), iters(1, [7, 8], [1010, 1020]),
    )  # fmt: skip
    told = [(type(r).__name__[0], r.rank, r.t_ns.tolist()) for r in out]
    assert told == [
        ("C", 0, [5, 11, 12]), ("C", 0, [6, 13]), ("C", 1, [1001, 1011]), ("I", 0, [10]), ("I", 1, [1010]),
        ("C", 0, [21]), ("C", 1, [1021]), ("I", 0, [20]), ("I", 1, [1020]), ("I", 0, [30]),
    ]  # fmt: skip


def test_without_iterations_equal_shares() -> None:
    out = merged(calls(0, list(range(200))), calls(1, list(range(1000, 1100))))
    assert [r.rank for r in out] == [0, 1] * 4
    assert np.concatenate([r.t_ns for r in out if r.rank == 0]).tolist() == list(range(200))


def test_one_rank_stays_whole() -> None:
    assert len(merged(calls(0, list(range(500))), iters(0, [1, 2], [0, 250]))) == 2
    assert merged() == []


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random input, iteration numbers in any order and twice, several times let go."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(interleave, "MAX_ROWS", int(rng.integers(5, 200)))
    monkeypatch.setattr(interleave, "MAX_PARTS", int(rng.integers(1, 40)))
    given: list[Calls | Iters] = []
    for _ in range(int(rng.integers(0, 20))):
        rank, count = int(rng.integers(4)), int(rng.integers(0, 30))
        t_ns = np.sort(rng.integers(0, 100, count)).tolist()
        given.append(calls(rank, t_ns) if rng.integers(2) else iters(rank, rng.integers(0, 9, count).tolist(), t_ns))
    out = merged(*given)
    for kind in (Calls, Iters):
        for rank in range(4):
            put, got = (
                sorted(t for r in records if isinstance(r, kind) and r.rank == rank for t in r.t_ns.tolist())
                for records in (given, out)
            )
            assert put == got
