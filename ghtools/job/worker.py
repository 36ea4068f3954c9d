# SPDX-License-Identifier: Apache-2.0
"""A process that runs the tasks it is given: one JSON line in, one out, until its input ends (`job/alone.py`)."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from ghtools.job.task import Task, run_task


def request(task: Task, timeout_s: float) -> bytes:
    """A task as a line."""
    item = {"kind": task.kind, "args": list(task.args), "text": task.text, "timeout_s": timeout_s}
    return json.dumps(item).encode() + b"\n"


def answer(line: bytes) -> dict[str, Any]:
    """Run the task of a line; ValueError if it is none."""
    item = json.loads(line)
    result = run_task(Task(item["kind"], tuple(item["args"]), item["text"]), float(item["timeout_s"]))
    return {"status": result.status, "values": result.values, "said": result.said}


def main() -> None:
    """Say that this process is ready, then answer each line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command that started this one
    out = os.dup(1)
    os.dup2(2, 1)  # nothing that a library prints may come between the answers
    os.write(out, b"{}\n")
    for line in sys.stdin.buffer:
        os.write(out, json.dumps(answer(line)).encode() + b"\n")


if __name__ == "__main__":
    main()
