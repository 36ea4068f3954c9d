# SPDX-License-Identifier: Apache-2.0
"""What gh-run --bus starts on which host."""

from __future__ import annotations

import pytest

from ghtools.job.bus_chain import bus_job, bus_stages, node_rank
from ghtools.job.chain import parse_chain
from ghtools.stream.errors import GhError


def test_host_0_has_the_analysis_and_the_others_their_own() -> None:
    stages = parse_chain("gh-trace -q | gh-period --marker x | gh-bocd | gh-alert")
    shown = [" | ".join(" ".join(stage) for stage in bus_stages(stages, "ght:j", node)) for node in (0, 1)]
    assert shown == [
        "gh-trace -q --serve - | gh-period --marker x | gh-pub ght:j | gh-sub ght:j | gh-bocd | gh-alert",
        "gh-trace -q --serve - | gh-period --marker x | gh-pub --tee ght:j | gh-bocd | gh-alert",
    ]
    for words in (["gh-trace", "--serve", "redis://x"], ["gh-trace", "--attach", "7"], ["cat", "x.ght"]):
        before = [words] if words[0] == "gh-trace" else []
        assert bus_stages([words], "s", 0) == [*before, ["gh-pub", "s"], ["gh-sub", "s"], *([] if before else [words])]


@pytest.mark.parametrize(
    ("environment", "command", "node"),
    [
        ({"SLURM_NODEID": "3"}, [], 3),
        ({"GROUP_RANK": "0", "SLURM_NODEID": "3"}, [], 0),
        ({}, ["torchrun", "--nnodes", "2", "--node-rank", "1", "x"], 1),
        ({}, ["torchrun", "--node_rank=2"], 2),
        ({"SLURM_NODEID": "x"}, ["torchrun", "--node-rank=0"], 0),
    ],
)
def test_which_host_this_is(environment: dict[str, str], command: list[str], node: int) -> None:
    assert node_rank(environment, command) == node


@pytest.mark.parametrize("command", [[], ["torchrun", "--node-rank"], ["torchrun", "--node-rank", "-1"]])
def test_a_host_without_a_number_is_refused(command: list[str]) -> None:
    with pytest.raises(GhError, match="NODE_RANK"):
        node_rank({}, command)


def test_the_id_of_the_job() -> None:
    assert bus_job("a", {"GHT_JOB": "b"}) == "a"
    assert bus_job("", {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "r"}) == "r"
    with pytest.raises(GhError, match="--job"):
        bus_job("", {})
