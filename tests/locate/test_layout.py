# SPDX-License-Identifier: Apache-2.0
"""Which ranks do the same work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ghtools.locate.groups import COLLECTIVE, EDGE, Group
from ghtools.locate.layout import known, parse, stages
from ghtools.stream.errors import GhError


def collective(*members: int) -> Group:
    return Group(hash(members) & 0xFFFF, COLLECTIVE, members, len(members))


def edges(*line: int) -> list[Group]:
    """A pipeline: each rank sends to the next, and gradients come back."""
    return [Group(9, EDGE, pair, 2) for a, b in pairwise(line) for pair in ((a, b), (b, a))]


def test_one_group_is_one_stage() -> None:
    assert stages(range(4), [collective(0, 1, 2, 3)]) == [[0, 1, 2, 3]]


def test_tensor_and_data_parallel_of_a_stage_are_peers() -> None:
    # tp 2, dp 2, pp 2: ranks 0-3 are stage 0
    groups = [collective(0, 1), collective(2, 3), collective(4, 5), collective(6, 7)]
    groups += [collective(0, 2), collective(1, 3), collective(4, 6), collective(5, 7), collective(*range(8))]
    groups += [edge for line in ((0, 4), (1, 5), (2, 6), (3, 7)) for edge in edges(*line)]
    assert stages(range(8), groups) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_tied_embeddings_do_not_join_first_and_last_stage() -> None:
    # dp 2, pp 4: the embedding groups hold the ends of a pipeline, which do not talk with each other
    groups = [collective(stage * 2, stage * 2 + 1) for stage in range(4)] + [collective(0, 6), collective(1, 7)]
    groups += [edge for line in ((0, 2, 4, 6), (1, 3, 5, 7)) for edge in edges(*line)]
    assert stages(range(8), groups) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_interleaved_pipeline_whose_last_stage_talks_to_the_first() -> None:
    groups = [collective(stage * 2, stage * 2 + 1) for stage in range(4)] + [collective(*range(8))]
    groups += [edge for line in ((0, 2, 4, 6, 0), (1, 3, 5, 7, 1)) for edge in edges(*line)]
    assert stages(range(8), groups) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_stated_layout_decides() -> None:
    layout = parse("tp=2,dp=2,pp=2,order=pp-tp-dp")
    assert layout.place(5) == {"pp": 1, "tp": 0, "dp": 1}
    assert stages(range(8), [collective(*range(8))], layout) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_layout_that_has_too_few_ranks_is_not_used() -> None:
    assert stages([0, 9], [collective(0, 9)], parse("tp=2")) == [[0, 9]]


@pytest.mark.parametrize(
    "text", ["", "tp=0", "tp=x", "zz=2", "tp=2,order=dp-pp", "tp=2,order=tp-tp", "tp=2,order=tp-zz"]
)
def test_bad_layouts(text: str) -> None:
    with pytest.raises(GhError):
        parse(text)


def test_a_job_records_layout_must_fit_the_world() -> None:
    assert known({"tp": 2, "dp": 4}, 8) is not None
    assert known({"tp": 2, "dp": 4}, 16) is None
    assert known({}, 8) is None
    assert known({"vpp": 3}, 3) is None
