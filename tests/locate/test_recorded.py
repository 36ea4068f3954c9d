# SPDX-License-Identifier: Apache-2.0
"""Recordings of real gloo jobs on two cores, with what was done to them: gh-profile names that and nobody else.

Made by tests/system/profile_bed.py and passed through `gh-period --keep | gh-bocd --keep`, so that only gh-profile is
tried. Executions are timed over steps 10 to 30 and from three iterations after the fault on, as the chain does.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from ghtools.locate.stage import ProfileStage
from ghtools.stream.framing import sections
from ghtools.stream.records import Suspect

FOLDER = Path(__file__).resolve().parent / "recorded"


class Whole(io.BytesIO):
    """Bytes as a framing.Source."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(-1 if size is None else size)


def said(name: str) -> list[Suspect]:
    """All suspects of a recording."""
    made: list[Suspect] = []
    for section in sections(Whole(gzip.decompress((FOLDER / f"{name}.ght.gz").read_bytes())), pytest.fail):
        stage = ProfileStage(section.head)
        for record in section:
            made += [found for found in stage.feed(record) if isinstance(found, Suspect)]
        made += [found for found in stage.finish() if isinstance(found, Suspect)]
    return made


@pytest.mark.parametrize(
    ("name", "rank", "cause"),
    [
        ("dp4-2", 1, "compute"),  # DDP, a quota of 15 % of a CPU
        ("tp2dp2-1", 2, "compute"),  # its slow transfers in [2, 3] are no slow link; gh-bocd takes the onset back
        ("tp2dp2-3", 2, "compute"),  # while other work on the host made rank 0 late for 17 iterations before
        ("pp2dp2-4", 3, "compute"),  # gh-bocd suspected rank 3 for a while before
        ("quota-pp2dp2-2-hosts-11", 2, "compute"),  # its peer receives between the same hosts and goes on as before
        ("loader-1", 2, "input"),  # 0.2 s of sleep in the loader
    ],
)
def test_a_slow_rank_is_named_and_nobody_else(name: str, rank: int, cause: str) -> None:
    named = {(s.what, tuple(s.ranks), s.cause) for s in said(name) if s.verdict == "attributed"}
    assert named == {("rank", (rank,), cause)}


@pytest.mark.parametrize(
    ("name", "hosts"),
    [
        ("link-2-hosts-1", ["node0", "node1"]),  # tp inside two network namespaces, dp across; tbf 100 Mbit/s
        ("link-3-hosts-2", ["node0", "node1", "node2"]),  # one group over three: nothing tells which of them
    ],
)
def test_a_slow_link_is_named_and_no_rank(name: str, hosts: list[str]) -> None:
    named = [s for s in said(name) if s.verdict == "attributed"]
    assert {(s.cause, tuple(s.hosts)) for s in named} == {("communication", tuple(hosts))}


def test_a_heavier_stage_is_nobodys_fault() -> None:
    made = said("heavier-stage-1")
    assert [(s.what, s.cause, s.verdict) for s in made] == [("none", "imbalance", "cleared")]
    assert made[0].ratio == pytest.approx(2.0, rel=0.25)


def test_a_slow_link_of_a_pipeline_names_nobody_while_receives_are_not_timed() -> None:
    assert not [s for s in said("link-pp2dp2-10") if s.verdict != "inconclusive"]
