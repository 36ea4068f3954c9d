# SPDX-License-Identifier: Apache-2.0
"""Processes beside a job: the watched command itself and a chain of stages joined by pipes (gh-run, issue 2).

The job keeps its own stdin, stdout, stderr, process group and terminal. Each stage runs in a session of
its own, so that Ctrl-C reaches the job alone, and at a lower priority than the job.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ghtools.stream.errors import GhError, MissingError

NICE = 5
# Python ignores these two, and exec would hand that down.
RESET = (signal.SIGPIPE, signal.SIGXFSZ)


def preload(environment: Mapping[str, str], shim: Path, job: str) -> dict[str, str]:
    """The job's environment: the shim first in LD_PRELOAD, what was there kept, and the job's id."""
    kept = [entry for entry in environment.get("LD_PRELOAD", "").replace(":", " ").split() if entry != str(shim)]
    return {**environment, "LD_PRELOAD": ":".join([str(shim), *kept]), "GHT_JOB": job}


def find_command(name: str) -> str:
    """Path of a program: beside the running command first (a virtual environment need not be active)."""
    own = Path(sys.argv[0]).parent / name
    if "/" not in name and own.is_file() and os.access(own, os.X_OK):
        return str(own)
    path = shutil.which(name)
    if path is None:
        raise MissingError(f"cannot start {name}", "there is no such program on PATH")
    return path


def parse_chain(text: str) -> list[list[str]]:
    """`"gh-trace | gh-bocd"` to argument lists. No shell is involved, so nothing else of its syntax works."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    stages: list[list[str]] = [[]]
    try:
        for token in lexer:
            if token == "|":
                stages.append([])
            else:
                stages[-1].append(token)
    except ValueError as error:
        raise GhError(f"cannot read the chain {text!r}", str(error).lower()) from None
    if not all(stages):
        raise GhError(f"cannot read the chain {text!r}", "a stage is empty", "stages joined by single bars")
    return stages


def with_tests(stages: Sequence[Sequence[str]], job: str, more: Sequence[str] = ()) -> list[list[str]]:
    """The chain with tests of what gh-profile suspects after it, with `more` options; GhError if nothing suspects."""
    at = next((n for n, stage in enumerate(stages) if stage[0] == "gh-profile"), None)
    if at is None:
        raise GhError("cannot test suspects", "no gh-profile is in the chain", "--validate never")
    tests = [[test, "--suspects", "-", "--job", job, *more] for test in ("gh-validate-gemm", "gh-validate-ring")]
    return [[*stage] for stage in stages[: at + 1]] + tests + [[*stage] for stage in stages[at + 1 :]]


def spawn_job(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the watched command as it would have been started without us; its pid."""
    path = shutil.which(command[0], path=environment.get("PATH"))
    if path is None:
        raise MissingError(f"cannot start {command[0]}", "there is no such program on PATH")
    try:
        return os.posix_spawn(path, list(command), dict(environment), setsigmask=(), setsigdef=RESET)
    except OSError as error:
        raise MissingError(f"cannot start {command[0]}", (error.strerror or str(error)).lower()) from None


@dataclass
class Stage:
    """One process of a chain; `status` is its exit code (128 + n for signal n), None while it runs."""

    name: str
    pid: int
    status: int | None = None


class Chain:
    """A running chain of stages; `fd` is where the last one's records can be read."""

    def __init__(self, stages: Sequence[Sequence[str]], environment: Mapping[str, str]) -> None:
        paths = [find_command(stage[0]) for stage in stages]
        self.stages: list[Stage] = []
        before = os.open(os.devnull, os.O_RDONLY)
        for path, arguments in zip(paths, stages, strict=True):
            after, write = os.pipe()
            actions = [(os.POSIX_SPAWN_DUP2, before, 0), (os.POSIX_SPAWN_DUP2, write, 1)]
            pid = os.posix_spawn(
                path,
                list(arguments),
                dict(environment),
                file_actions=actions,
                setsigmask=(),
                setsigdef=RESET,
                setsid=True,
            )
            os.setpriority(os.PRIO_PROCESS, pid, NICE)
            os.close(before)
            os.close(write)
            before = after
            self.stages.append(Stage(arguments[0], pid))
        self.fd = before

    def ended(self, pid: int, status: int) -> Stage | None:
        """Note that a process has ended; its stage, or None if it is not of this chain."""
        for stage in self.stages:
            if stage.pid == pid:
                stage.status = status
                return stage
        return None

    @property
    def running(self) -> bool:
        return any(stage.status is None for stage in self.stages)

    def kill(self) -> None:
        """End what still runs."""
        for stage in self.stages:
            if stage.status is None:
                os.kill(stage.pid, signal.SIGKILL)


def exit_code(wait_status: int) -> int:
    """A wait status to a shell's exit code: 128 + n for a process that signal n ended."""
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else code
