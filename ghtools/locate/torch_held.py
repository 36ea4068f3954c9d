# SPDX-License-Identifier: Apache-2.0
"""Ranks that a launcher started, as held ones: they meet over torch.distributed, and no shared directory is needed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.job.task import TEXT_BYTES, VALUES, Task, TaskResult, run_task, unpack_result

from .torch_group import Talk, joined_group

NONE, STATUS, COUNT, FIRST = 0, 1, 2, 3  # places in a row: whether there is a result, and what it says
HOST_BYTES = 256
PATIENCE_S = 180.0  # over all that a task may take


@contextmanager
def held_over_torch(tool: str) -> Iterator[TorchHeld | None]:
    """`Held` (job/pause.py) in rank 0; in the others None, after they have done what rank 0 asked until it ended.

    Errors are those of `joined_group`.
    """
    with joined_group(tool, "gloo", PATIENCE_S) as talk:
        held = TorchHeld(talk)
        if talk.rank:
            while (words := talk.told(None)) is not None:
                talk.gather(_row(_mine(words, talk.rank)))
            yield None
            return
        try:
            yield held
        finally:
            talk.told({})


class TorchHeld:
    """All ranks of the launcher, driven by rank 0. Made in every rank at once."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        text = json.dumps([socket.gethostname(), os.getpid()]).encode()[:HOST_BYTES]
        rows = talk.gather(np.frombuffer(text.ljust(HOST_BYTES), np.uint8).copy())
        told = [json.loads(row.tobytes()) for row in rows] if rows is not None else []
        self.hosts: Mapping[int, str] = {rank: str(host) for rank, (host, _) in enumerate(told)}
        self.pids: Mapping[int, int] = {rank: int(pid) for rank, (_, pid) in enumerate(told)}

    @property
    def ranks(self) -> list[int]:
        """All of them."""
        return list(range(self._talk.world))

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """As Held.run: all ranks begin when they hear of it."""
        packed = {str(rank): [task.kind, list(task.args), task.text] for rank, task in tasks.items()}
        words = {"tasks": packed, "timeout_s": timeout_s}
        self._talk.told(words)
        rows = self._talk.gather(_row(_mine(words, 0)))
        return {rank: _result(rows[rank]) for rank in tasks if rows[rank][NONE]}


def _mine(words: dict[str, Any], rank: int) -> TaskResult | None:
    item = words["tasks"].get(str(rank))
    return run_task(Task(item[0], tuple(item[1]), item[2]), words["timeout_s"]) if item is not None else None


def _row(result: TaskResult | None) -> NDArray[np.int64]:
    row = np.zeros(FIRST + VALUES + TEXT_BYTES // 8, np.int64)
    if result is not None:
        row[:FIRST] = 1, result.status, len(result.values)
        row[FIRST : FIRST + len(result.values)] = result.values
        said = result.said.encode()[: TEXT_BYTES - 1].ljust(TEXT_BYTES, b"\0")
        row[FIRST + VALUES :] = np.frombuffer(said, np.int64)
    return row


def _result(row: NDArray[np.int64]) -> TaskResult:
    values, said = row[FIRST : FIRST + VALUES], row[FIRST + VALUES :].tobytes()
    return unpack_result(int(row[STATUS]), int(row[COUNT]), values, said)
