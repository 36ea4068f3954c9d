# SPDX-License-Identifier: Apache-2.0
"""The evidence of a judgement as lines of a small table."""

from __future__ import annotations

from .judge import HEADER, Judgement


def lines(judgement: Judgement) -> list[str]:
    """Aligned lines, at most a dozen ranks; then each verdict."""
    table = [HEADER, *judgement.rows]
    widths = [max(len(row[col]) for row in table) for col in range(len(HEADER) - 1)]
    made = [f"evidence over {judgement.iters} iterations:"] if judgement.rows else []
    if judgement.rows:
        for row in table:
            cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=True)]
            made.append("  ".join([*cells, row[-1]]))
    made += [f"{suspect.verdict}: {suspect.text}" for suspect in judgement.suspects]
    return made
