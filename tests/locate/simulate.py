# SPDX-License-Identifier: Apache-2.0
"""Runs a synthetic job through gh-profile's stage, for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ghtools.locate.layout import Layout
from ghtools.locate.stage import ProfileStage
from ghtools.source.synth_profile import ProfileSpec, profile_job
from ghtools.stream.records import Head, Iters, Record, Suspect


@dataclass
class Run:
    """What was said, and at which iteration (-1 = at the end)."""

    said: list[Suspect] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    stage: ProfileStage | None = None

    @property
    def attributed(self) -> list[tuple[str, list[int], str]]:
        return [(s.what, s.ranks, s.cause) for s in self.said if s.verdict == "attributed"]


def feed(records: Iterable[Record], layout: Layout | None = None) -> Run:
    """Feed records, the head first, to a stage."""
    stream = iter(records)
    head = next(stream)
    assert isinstance(head, Head)
    made = Run(stage=ProfileStage(head, layout))
    assert made.stage is not None
    newest = 0
    for record in stream:
        if isinstance(record, Iters) and len(record.index):
            newest = int(record.index[-1])
        for said in made.stage.feed(record):
            if isinstance(said, Suspect):
                made.said.append(said)
                made.at.append(newest)
    for said in made.stage.finish():
        if isinstance(said, Suspect):
            made.said.append(said)
            made.at.append(-1)
    return made


def job(spec: ProfileSpec) -> Iterator[Record]:
    """The records of a job but its end."""
    yield from profile_job(spec, Head())


def run(alter: Callable[[Record], Record | None] | None = None, **spec: Any) -> Run:
    """Simulate and judge; `alter` may change each record or drop it."""
    records = job(ProfileSpec(**spec))
    if alter is None:
        return feed(records)
    return feed(made for made in (alter(record) for record in records) if made is not None)
