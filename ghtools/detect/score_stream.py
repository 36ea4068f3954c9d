# SPDX-License-Identifier: Apache-2.0
"""One section of a stream to its score: which series there are, and which labels are theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ghtools.stream.errors import GhError
from ghtools.stream.records import Change, Finding, Head, Iters, Record, Suspect

from .labels import Label, Labels, of_truth
from .score import Report, Tolerance, named, score

LEVELS = ("auto", "job", "rank")


def add_section(
    report: Report,
    head: Head,
    records: Iterable[Record],
    labels: Labels | None,
    number: int = 1,
    near: Tolerance | None = None,
    level: str = "auto",
    iters: int = 0,
) -> None:
    """Score one section into `report`; `labels` None takes the head's truth, `iters` is each series' length.

    Level auto is rank where a label names ranks and the ranks do not wait for each other, else job. Memory holds the
    section's changes and accusations. Raises InputError for a head without truth, GhError for an unknown level.
    """
    if level not in LEVELS:
        raise GhError(f"--level {level} is not known", try_="auto, job or rank")
    made = labels or of_truth(head.truth)
    mine = made.of(head.job, number)
    changes: dict[int, list[Change]] = defaultdict(list)
    counted: dict[int, int] = defaultdict(int)
    accused: list[Suspect | Finding] = []
    for record in records:
        if isinstance(record, Change):
            changes[record.rank if record.level == "rank" else -1].append(record)
        elif isinstance(record, Iters):
            counted[record.rank] += len(record.index)
        elif isinstance(record, Suspect | Finding):
            accused.append(record)
    if level == "auto":
        single = any(label.ranks for label in mine) and not head.truth.get("coupled")
        level = "rank" if single else "job"
    length = iters or made.iters
    if level == "job":
        report.add(score(mine, changes[-1], length or max(counted.values(), default=0), near))
    else:
        ranks = set(counted) | {rank for label in mine for rank in label.ranks} | set(changes)
        planted = head.truth.get("ranks")
        if isinstance(planted, int) and 0 < planted <= 1 << 20:
            ranks |= set(range(planted))
        for rank in sorted(ranks - {-1}):
            report.add(score(_of_rank(mine, rank), changes[rank], length or counted[rank], near))
    if accused or "gh-profile" in head.via:
        report.add_named(named(mine, accused))


def _of_rank(labels: list[Label], rank: int) -> list[Label]:
    return [replace(label, ranks=()) for label in labels if not label.ranks or rank in label.ranks]
