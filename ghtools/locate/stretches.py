# SPDX-License-Identifier: Apache-2.0
"""Which iterations were timed from end to end, where executions are timed in stretches that begin and end anywhere."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from .collect import RECV, SEND, Bounds, RankBuffer, Rows, iteration_of

FEW = 4  # iterations, before it is known which share of the calls is timed at all
REMEMBERED = 16


class Stretches:
    """Learns which share of a rank's calls has executions: gloo's barriers with a time-out, for one, have none."""

    def __init__(self, least: float) -> None:
        self._least = least  # share of the usual number of executions without which an iteration is not whole
        self._shares: dict[tuple[int, bool], deque[float]] = {}

    def whole(self, buffer: RankBuffer, bounds: Bounds, rows: Rows, at: Any) -> Any:
        """For each iteration whether as many of its calls have executions as usual; before that is known, all of them.

        `rows` are buffer.executions(), `at` is iteration_of(rows, bounds). Pairs, which gloo does not time, and
        collectives are looked at apart: the few of one must not be lost among the many of the other.
        """
        calls = buffer.entries()
        where = iteration_of(calls, bounds)
        first = np.append(True, rows.seq[1:] != rows.seq[:-1])[: len(rows.seq)]  # a call can be several executions
        made = np.ones(len(bounds.index), bool)
        for pairs in (False, True):
            mine = (where >= 0) & (np.isin(calls.op, (SEND, RECV)) == pairs)
            called = np.bincount(where[mine], minlength=len(made))
            seen = first & (at >= 0) & (np.isin(rows.op, (SEND, RECV)) == pairs)
            share = np.bincount(at[seen], minlength=len(made)) / np.maximum(called, 1)
            usual = self._shares.setdefault((buffer.rank, pairs), deque(maxlen=REMEMBERED))
            usual.extend(share[(called > 0) & (share > 0)][-REMEMBERED:].tolist())
            expected = min(1.0, float(np.median(usual))) if len(usual) >= FEW else 1.0
            made &= (called == 0) | (share >= self._least * expected)
        return made
