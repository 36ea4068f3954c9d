# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes of our own: tasks reach them, their death is a missing result, and none is left behind."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from ghtools.job.alone import Alone
from ghtools.job.rank_list import parse_ranks
from ghtools.job.task import GEMM, Task
from ghtools.stream.errors import GhError

SMALL = Task(GEMM, (32, 3, 1, 1_000_000))


def test_each_rank_answers_and_ends() -> None:
    with Alone([0, 3]) as held:
        pids = held.pids
        assert held.ranks == [0, 3] and set(held.hosts) == {0, 3} and len(set(pids.values())) == 2
        results = held.run({0: SMALL, 3: Task(99)}, 20.0)
        assert results[0].status == 0 and results[0].values[0] == 3
        assert results[3].status == errno.ENOSYS and results[3].why
        assert set(held.run({3: SMALL}, 20.0)) == {3}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_a_killed_rank_is_a_missing_result() -> None:
    with Alone([0, 1]) as held:
        os.kill(held.pids[1], signal.SIGKILL)
        assert set(held.run({0: SMALL, 1: SMALL}, 20.0)) == {0}
        assert set(held.run({0: SMALL, 1: SMALL}, 20.0)) == {0}


def test_a_stopped_rank_is_a_missing_result_in_time() -> None:
    with Alone([0, 1]) as held:
        os.kill(held.pids[1], signal.SIGSTOP)
        began = time.monotonic()
        assert set(held.run({0: SMALL, 1: SMALL}, 3.0)) == {0}
        assert time.monotonic() - began < 30
    assert not Path(f"/proc/{held.pids[1]}").exists()


@pytest.mark.parametrize(
    ("text", "ranks"), [("0-3", [0, 1, 2, 3]), ("5", [5]), ("7,0-1, 1", [0, 1, 7]), ("131071", [131071])]
)
def test_rank_lists(text: str, ranks: list[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,,2", "0-", "131072", "9" * 30, "0-131072"])
def test_what_is_no_rank_list(text: str) -> None:
    with pytest.raises(GhError, match="cannot read the ranks"):
        parse_ranks(text)
