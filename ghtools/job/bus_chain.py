# SPDX-License-Identifier: Apache-2.0
"""One chain of stages over several hosts: what gh-run starts on each of them (DESIGN section 8)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ghtools.stream.errors import GhError

LOCAL = ("gh-trace", "gh-period")  # stages that stay on the host of the ranks; what comes after them needs all hosts
_NODE = ("GROUP_RANK", "SLURM_NODEID", "NODE_RANK")
_JOB = ("GHT_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_NUMBER = re.compile(r"\d{1,6}")


def bus_job(option: str, environment: Mapping[str, str]) -> str:
    """The job's id, which must be the same on all hosts; GhError if there is none."""
    for found in (option, *(environment.get(name, "") for name in _JOB)):
        if found:
            return found
    raise GhError("cannot join the hosts of the job", "it has no id that is the same on all of them", "--job ID")


def node_rank(environment: Mapping[str, str], command: Sequence[str]) -> int:
    """Number of this host in the job: of torchrun or Slurm, else the command's own --node-rank; GhError if unknown."""
    given = [environment.get(name, "") for name in _NODE]
    for at, word in enumerate(command):
        name, mark, value = word.replace("_", "-").partition("=")
        if name == "--node-rank":
            given.append(value if mark else "".join(command[at + 1 : at + 2]))
    for found in given:
        if _NUMBER.fullmatch(found):
            return int(found)
    raise GhError(
        "cannot tell which host this is",
        f"none of {', '.join(_NODE)} is set and the command has no --node-rank",
        "NODE_RANK=0 on the host that shall run the analysis, 1, 2, ... on the others",
    )


def _serves(stage: Sequence[str]) -> bool:
    """Whether this gh-trace can serve a control page and was not told to."""
    return not any(word.partition("=")[0] in ("--serve", "--attach", "--list") for word in stage[1:])


def bus_stages(stages: Sequence[Sequence[str]], stream: str, node: int) -> list[list[str]]:
    """The stages of this host: those before the bus, gh-pub, and on host 0 gh-sub and those after it.

    gh-pub writes nothing and gh-sub reads nothing, so on host 0 both stand in one chain. The other hosts go on with
    their own records alone, so that they detect what they can whatever becomes of Redis. Each gh-trace serves its
    host's control page, so that host 0 can have executions timed everywhere.
    """
    stages = [[*stage, "--serve", "-"] if stage[0] == "gh-trace" and _serves(stage) else [*stage] for stage in stages]
    at = next((n for n, stage in enumerate(stages) if stage[0] not in LOCAL), len(stages))
    before, after = [[*stage] for stage in stages[:at]], [[*stage] for stage in stages[at:]]
    if node:
        return [*before, ["gh-pub", "--tee", stream], *after]
    return [*before, ["gh-pub", stream], ["gh-sub", stream], *after]
