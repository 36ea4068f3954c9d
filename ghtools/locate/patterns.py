# SPDX-License-Identifier: Apache-2.0
"""What looks like a straggler and is none: named, and nobody is blamed.

Host pauses that rotate, uneven sequences, a heavier stage, everybody alike. Each function gives the numbers that
show its pattern, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .groups import COLLECTIVE, Groups
from .lateness import Floats, Own, nanmedian
from .match import Members

EVENT = 0.05  # a rank that is late by this share of an iteration in that iteration
EVENT_SIGMAS = 5.0
FEW = 0.5  # of iterations: fewer are pauses, more are uneven work
FAVOURITE = 0.6  # a rank with more of the events than this is not one of many
UNEVEN_SPREAD = 0.12  # waiting of the longest waiting member, share of the iteration
ALIKE = 1.1
STAGE_MATERIAL = 0.04


@dataclass
class Pattern:
    """A pattern and the numbers behind it."""

    cause: str  # host pause, imbalance or common
    name: str
    text: str
    ranks: list[int]
    loss: float  # share of the iteration it costs
    evidence: dict[str, Any]


def changing_ranks(own: Own, over: Floats) -> Pattern | None:
    """Another rank late in each of some iterations: pauses if they are few, uneven work if they are many."""
    n = int(np.sum(np.isfinite(over).any(axis=1)))
    if n < 6:
        return None
    flat = over - np.nan_to_num(nanmedian(over))[None, :]
    noise = 1.4826 * float(np.nanmedian(np.abs(flat)))
    late = flat > max(EVENT, EVENT_SIGMAS * noise)
    rows = late.any(axis=1)
    events = int(rows.sum())
    if events < 3:
        return None
    worst = np.where(np.isfinite(flat), flat, -np.inf).argmax(axis=1)[rows]
    who, count = np.unique(worst, return_counts=True)
    favourite = float(count.max() / events)
    if len(who) < 2 or favourite > FAVOURITE:
        return None
    share = events / n
    size = float(np.mean(np.where(np.isfinite(flat), flat, 0.0).max(axis=1)[rows]))
    evidence = {
        "iters_with_a_late_rank": events, "iters": n, "ranks_in_turn": len(who), "most_frequent_share": favourite,
        "late_by_share_of_iteration": size,
    }  # fmt: skip
    ranks = [int(own.ranks[col]) for col in who[np.argsort(-count)]][:64]
    if share < FEW:
        text = (
            f"host pauses: in {events} of {n} iterations one rank is late, on {len(who)} ranks in turn, by "
            f"{100 * size:.0f} % of an iteration (a garbage collector or the like); no rank is to blame"
        )
        return Pattern("host pause", "rotating pauses", text, ranks, share * size, evidence)
    if len(who) < 3 and favourite > FEW + 0.05:
        return None
    text = (
        f"uneven work: another rank is late in each iteration ({len(who)} ranks in {n} iterations), by "
        f"{100 * size:.0f} % of it (sequence lengths or the like); no rank is to blame"
    )
    return Pattern("imbalance", "uneven sequences", text, ranks, share * size, evidence)


def uneven_inside(members: Members, groups: Groups, iters: int, iter_ns: float) -> Pattern | None:
    """Another member late in every collective of an iteration: uneven micro-batches."""
    worst: Pattern | None = None
    for number in np.unique(members.group):
        group = groups.group(int(number))
        if group.kind != COLLECTIVE:
            continue
        rows = members.group == number
        who, at = np.unique(members.rank[rows], return_inverse=True)
        last, spread = np.bincount(at, members.last[rows]), np.bincount(at, members.spread[rows])
        calls = float(np.median(np.bincount(at, members.n[rows]))) / iters
        total = float(spread.max())
        cost = min(1.0, total / (iters * iter_ns))  # collectives that overlap are waited in at once
        if len(who) < 2 or calls < 2 or cost < UNEVEN_SPREAD or not last.sum():
            continue
        share = last / last.sum()
        if share.max() > max(0.5, 1.6 / len(who)) or (share > 0.3 / len(who)).sum() < max(2, 0.6 * len(who)):
            continue
        if worst is None or cost > worst.loss:
            evidence = {
                "comm": group.comm, "spread_share_of_iteration": cost, "collectives_an_iteration": calls,
                "late_share_by_rank": {str(r): float(s) for r, s in zip(who[:64], share[:64], strict=True)},
            }  # fmt: skip
            text = (
                f"uneven work: in {calls:.0f} collectives an iteration another of {len(who)} ranks is late each time, "
                f"{100 * cost:.0f} % of the iteration in all (sequence lengths, a busy host); no rank is to blame"
            )
            worst = Pattern("imbalance", "uneven sequences", text, [int(r) for r in who][:64], cost, evidence)
    return worst


def heavier_stage(own: Own, classes: list[list[int]], before: Own | None = None) -> Pattern | None:
    """One stage works longer on all its replicas alike."""
    if len(classes) < 2:
        return None
    mine = nanmedian(own.own)
    by_stage = [mine[np.isin(own.ranks, ranks)] for ranks in classes]
    middle = np.array([float(np.nanmedian(m)) if np.isfinite(m).any() else np.nan for m in by_stage])
    if np.isfinite(middle).sum() < 2:
        return None
    top = int(np.nanargmax(middle))
    others = np.sort(np.delete(middle, top)[np.isfinite(np.delete(middle, top))])
    usual = float(others[(len(others) - 1) // 2])
    cost = (middle[top] - usual) / own.iter_ns
    if usual <= 0 or middle[top] < ALIKE * usual or cost < STAGE_MATERIAL:
        return None
    inside = by_stage[top][np.isfinite(by_stage[top])]
    alone = len(inside) < 2
    if not alone and float(inside.max()) > ALIKE * float(inside.min()):
        return None
    ratio = middle[top] / usual
    evidence = {"stage": top, "stages": len(classes), "own_time_ratio": ratio, "replicas": len(inside)}
    text = f"stage {top} of {len(classes)} works {ratio:.2f} times as long as the others"
    if alone:
        text += "; it has one rank only, so a heavier stage and a slow device look the same"
    else:
        text += f", on all its {len(inside)} ranks alike: imbalance by design, no rank is to blame"
    return Pattern("imbalance", "alone" if alone else "heavier stage", text, classes[top][:64], float(cost), evidence)


def everybody(own: Own, before: Own | None, before_ns: float) -> Pattern | None:
    """All ranks work longer than they did, and equally so; from their own past, or from the old iteration time."""
    mine = nanmedian(own.own)
    if before is not None:
        _, here, there = np.intersect1d(own.ranks, before.ranks, return_indices=True)
        ratio = mine[here] / nanmedian(before.own)[there]
        ratio = ratio[np.isfinite(ratio)]
        if len(ratio) < 2:
            return None
        middle = float(np.median(ratio))
        alike = float(np.mean(np.abs(ratio / middle - 1) < 0.1 + 0.2 * (middle - 1)))
        cost = float(np.nanmedian(mine)) * (1 - 1 / middle) / own.iter_ns
        if middle < 1.05 or alike < 0.8 or cost < STAGE_MATERIAL or (ratio > 1 + 0.4 * (middle - 1)).mean() < 0.9:
            return None
    else:
        finite = mine[np.isfinite(mine)]
        if before_ns <= 0 or len(finite) < 2 or float(finite.min()) < 1.05 * before_ns:
            return None
        middle, cost = float(np.median(finite)) / before_ns, 1 - before_ns / own.iter_ns
    text = (
        f"all {len(own.ranks)} ranks work {middle:.2f} times as long as before, alike: a common cause, nobody's fault"
    )
    evidence = {"own_time_ratio": middle, "ranks": len(own.ranks)}
    return Pattern("common", "everybody", text, [], cost, evidence)
