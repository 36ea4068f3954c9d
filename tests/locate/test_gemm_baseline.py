# SPDX-License-Identifier: Apache-2.0
"""The history of devices in a file: round trip, who may read it, and lines that are hostile."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ghtools.locate.gemm_baseline import KEEP, load, save, updated
from ghtools.locate.measured import Key, Measured, Past, Repeat, key_of
from ghtools.stream.errors import Exit, GhError, MissingError

KEY = Key("a", "cpu", "cpu avx2", "gemm", "float32", 384, 1, 4)
GOOD = {"v": 1, **KEY._asdict(), "t_ns": 5, "rates": [1e9, 2e9], "shares": [0.5, 1.0]}


def measured(rank: int, work: int) -> Measured:
    return Measured(rank, "a", kind="cpu avx2", size=384, together=4, repeats=(Repeat(9, 10**9, 5 * 10**8, work),))


def test_round_trip_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "history"
    assert load(path) == {}
    history = {KEY: Past((1e9, 2.5e9), (0.5, 1.0), 5), KEY._replace(host="b\n"): Past((3.0,), (-1.0,), 6)}
    save(path, history)
    assert load(path) == history
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["history"]
    assert len(path.read_text().splitlines()) == 2


def test_one_result_for_all_ranks_of_a_device_and_a_bound() -> None:
    history: dict[Key, Past] = {}
    for number in range(KEEP + 5):
        history = updated(history, [measured(rank, 100 + number + rank) for rank in range(3)])
    assert list(history) == [key_of(measured(0, 1))] == [KEY]
    past = history[KEY]
    assert len(past.rates) == len(past.shares) == KEEP
    assert past.rates[-1] == 100 + KEEP + 4 + 1 and past.shares[-1] == 0.5 and past.t_ns == 9


def test_a_failed_test_is_not_remembered() -> None:
    assert updated({}, [Measured(0, "a", status="failed", why="x")]) == {}


BAD = {
    "no JSON": b"{",
    "no object": b"[]",
    "another version": json.dumps({**GOOD, "v": 2}).encode(),
    "a number as text": json.dumps({**GOOD, "size": "384"}).encode(),
    "a bool as number": json.dumps({**GOOD, "size": True}).encode(),
    "negative": json.dumps({**GOOD, "threads": -1}).encode(),
    "over 64 bits": json.dumps({**GOOD, "t_ns": 1 << 70}).encode(),
    "no rates": json.dumps({**GOOD, "rates": [], "shares": []}).encode(),
    "rates and shares differ": json.dumps({**GOOD, "shares": [1.0]}).encode(),
    "NaN": json.dumps({**GOOD, "rates": [float("nan"), 1.0]}).encode(),
    "infinite": json.dumps({**GOOD, "rates": [1e999, 1.0]}).encode(),
    "zero": json.dumps({**GOOD, "rates": [0, 1.0]}).encode(),
    "a huge integer": json.dumps({**GOOD, "rates": [10**400, 1.0]}).encode(),
    "too many": json.dumps({**GOOD, "rates": [1.0] * 33, "shares": [1.0] * 33}).encode(),
    "long text": json.dumps({**GOOD, "host": "x" * 300}).encode(),
    "a key is missing": json.dumps({k: v for k, v in GOOD.items() if k != "kind"}).encode(),
    "deep": b"[" * 100_000,
    "a long line": json.dumps({**GOOD, "more": "x" * 20_000}).encode(),
    "not UTF-8": b'{"v": 1, "host": "\xff"}',
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_hostile_lines_are_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "history"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    with pytest.raises(GhError, match="line 2") as caught:
        load(path)
    assert caught.value.code == Exit.INPUT and "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path):
        with pytest.raises(GhError, match="cannot"):
            load(path)
    with pytest.raises(MissingError, match="cannot write"):
        save(tmp_path / "none" / "history", {})
