# SPDX-License-Identifier: Apache-2.0
"""Ranks that a launcher started (srun, torchrun, mpirun): each runs its own tasks, and rank 0 asks and gathers.

They meet in a directory that all of them see. Rank 0 names a round; every rank answers it with a word of its own; what
rank 0 asks carries those words, so that a file left by a run that was killed is never taken for one of this run.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ghtools.job.pause import CouldNotTell
from ghtools.job.task import Task, TaskResult, run_task, unpack_result
from ghtools.stream.errors import GhError, MissingError

POLL_S = 0.005
MEET_S = 60.0
MAX_BYTES = 1 << 20
MAX_ASKS = 10_000
_OURS = re.compile(r"ght-(round|here|ask|answer|over)[-.\w]*")


def _write(path: Path, item: dict[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(json.dumps(item))
        temporary.replace(path)
    except OSError as error:
        raise MissingError(f"cannot write in {path.parent}", (error.strerror or str(error)).lower()) from None


def _read(path: Path) -> dict[str, Any] | None:
    """What a file holds; None while it is not there. One that is no JSON object is as good as none."""
    try:
        with path.open("rb") as file:
            item = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None


class Gathered:
    """Rank 0's side: `Held` of job/pause.py over all ranks of the launcher. A context manager that lets them end."""

    def __init__(self, place: Path, world_size: int, meet_s: float = MEET_S) -> None:
        """Waits until all ranks are there; CouldNotTell names who is missing after `meet_s` seconds."""
        if not place.is_dir():
            raise GhError(f"cannot meet in {place}", "it is no directory", "one that all ranks see")
        self._place, self._round, self._asked = place, secrets.token_hex(8), 0
        for path in place.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
        self._word: dict[int, str] = {0: self._round}
        self.hosts: dict[int, str] = {0: socket.gethostname()}
        self.pids: dict[int, int] = {0: os.getpid()}
        _write(place / "ght-round", {"round": self._round})
        deadline = time.monotonic() + meet_s
        while len(self._word) < world_size:
            for rank in set(range(world_size)) - set(self._word):
                here = _read(place / f"ght-here-{self._round}-{rank}")
                if here is not None:
                    self._word[rank] = str(here.get("word", ""))
                    self.hosts[rank] = str(here.get("host", ""))[:64]
                    self.pids[rank] = pid if isinstance(pid := here.get("pid"), int) else -1
            if time.monotonic() > deadline:
                missing = sorted(set(range(world_size)) - set(self._word))
                self.close()
                why = f"rank {missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else f"rank {missing[0]}"
                raise CouldNotTell("the ranks did not meet", f"{why} did not come to {place} in {meet_s:g} s")
            time.sleep(POLL_S)

    @property
    def ranks(self) -> list[int]:
        return sorted(self._word)

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        """As Held.run: all ranks begin when they see the asking; rank 0 runs its own task in this thread."""
        number = self._asked
        self._asked += 1
        asked = {
            str(rank): {"kind": task.kind, "args": list(task.args), "text": task.text} for rank, task in tasks.items()
        }
        words = {str(rank): word for rank, word in self._word.items()}
        ask = {"words": words, "tasks": asked, "timeout_s": timeout_s}
        _write(self._place / f"ght-ask-{self._round}-{number}", ask)
        deadline = time.monotonic() + timeout_s + 2
        results = {0: run_task(tasks[0], timeout_s)} if 0 in tasks else {}
        while (missing := set(tasks) - set(results)) and time.monotonic() < deadline:
            for rank in missing:
                item = _read(self._place / f"ght-answer-{self._round}-{number}-{rank}")
                if item is not None:
                    results[rank] = _result(item)
            time.sleep(POLL_S)
        return results

    def close(self) -> None:
        """Let the others end, and take away what this run wrote, but for the word that it is over."""
        with suppress(OSError, MissingError):
            _write(self._place / f"ght-over-{self._round}", {"words": {str(r): w for r, w in self._word.items()}})
            for path in self._place.glob(f"ght-*{self._round}-*"):
                path.unlink(missing_ok=True)

    def __enter__(self) -> Gathered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _result(item: dict[str, Any]) -> TaskResult:
    """A result from a file, checked."""
    values, status, said = item.get("values"), item.get("status"), item.get("said")
    good = isinstance(values, list) and all(type(v) is int and -(1 << 63) <= v < 1 << 63 for v in values)
    if not good or type(status) is not int or not isinstance(said, str):
        return unpack_result(-1, 0, [], b"")
    assert isinstance(values, list)
    return unpack_result(status, len(values), values, said.encode())


def follow(place: Path, rank: int, meet_s: float = MEET_S) -> bool:
    """The other ranks' side: run what rank 0 asks until it says that it is over; False if rank 0 fell silent.

    Nothing is heard for `meet_s` seconds between two askings: then rank 0 has gone.
    """
    word, number, joined = secrets.token_hex(8), 0, ""
    deadline = time.monotonic() + meet_s
    while time.monotonic() < deadline and number < MAX_ASKS:
        opened = _read(place / "ght-round")
        current = str(opened.get("round", "")) if opened else ""
        if current and current != joined and re.fullmatch("[0-9a-f]{16}", current):
            here = {"word": word, "host": socket.gethostname(), "pid": os.getpid()}
            _write(place / f"ght-here-{current}-{rank}", here)
            joined, number = current, 0
        if joined:
            over = _read(place / f"ght-over-{joined}")
            if over is not None and _for_us(over, rank, word):
                return True
            ask = _read(place / f"ght-ask-{joined}-{number}")
            if ask is not None and _for_us(ask, rank, word):
                task = ask.get("tasks", {}).get(str(rank))
                if task is not None:
                    _write(place / f"ght-answer-{joined}-{number}-{rank}", _run(task, float(ask["timeout_s"])))
                number += 1
                deadline = time.monotonic() + meet_s
        time.sleep(POLL_S)
    return False


def _for_us(item: dict[str, Any], rank: int, word: str) -> bool:
    words = item.get("words")
    return isinstance(words, dict) and words.get(str(rank)) == word


def _run(item: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    result = run_task(Task(item["kind"], tuple(item["args"]), item["text"]), timeout_s)
    return {"status": result.status, "values": result.values, "said": result.said}
