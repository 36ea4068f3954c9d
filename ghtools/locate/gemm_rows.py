# SPDX-License-Identifier: Apache-2.0
"""The values of a test's result, as csrc/tasks/tasks.h lays them out: a head, then a row for each repeat."""

from __future__ import annotations

from collections.abc import Sequence

from .measured import Repeat

HEAD, ROW = 8, 12  # GH_HEAD_COUNT, GH_ROW_COUNT
HEAD_SIZE = 7  # GH_HEAD_SIZE


def rows_of(values: Sequence[int]) -> tuple[Repeat, ...]:
    """The repeats of a result's values, which another process may have made: empty if they make no sense."""
    if len(values) < HEAD + ROW or (len(values) - HEAD) % ROW or values[0] != (len(values) - HEAD) // ROW:
        return ()
    repeats = tuple(Repeat(*values[at : at + ROW]) for at in range(HEAD, len(values), ROW))
    return repeats if values[2] > 0 and all(row.wall_ns > 0 and row.work > 0 for row in repeats) else ()
