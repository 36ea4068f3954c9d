# SPDX-License-Identifier: Apache-2.0
"""The process that Alone starts: `python -m ghtools.job.alone_ranks RANK:FD ...`, one fork a rank.

Each fork reads tasks as JSON lines from its socket and answers with their results, until the socket is closed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys

from ghtools.job.task import Task, run_task

PR_SET_PDEATHSIG = 1


def serve(fd: int) -> None:
    """Run tasks until the other end closes."""
    with socket.socket(fileno=fd) as line, line.makefile("rb") as lines:
        line.sendall(json.dumps({"number": 0, "pid": os.getpid()}).encode() + b"\n")
        for text in lines:
            number, kind, args, words, timeout_s = json.loads(text)
            result = run_task(Task(kind, tuple(args), words), timeout_s)
            answer = {"number": number, "status": result.status, "values": result.values, "said": result.said}
            line.sendall(json.dumps(answer).encode() + b"\n")


def end_with_parent() -> None:
    """Have the kernel end this process when the one that made it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(words: list[str]) -> None:
    """Fork a process for each RANK:FD and wait for them."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command that started this one
    places = [tuple(int(part) for part in word.split(":")) for word in words]
    children = []
    for _, fd in places:
        child = os.fork()
        if not child:
            end_with_parent()
            for _, other in places:
                if other != fd:
                    os.close(other)
            try:
                serve(fd)
            finally:
                os._exit(0)
        children.append(child)
    for _, fd in places:
        os.close(fd)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
