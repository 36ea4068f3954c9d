# SPDX-License-Identifier: Apache-2.0
"""The records that frame a test of our own: who made it, and the ranks it ran on."""

from __future__ import annotations

import os
import time

from ghtools import __version__
from ghtools.job.pause import Held
from ghtools.stream.records import Head, Job


def head_of(tool: str, job: str) -> Head:
    """The head of a stream that begins here."""
    return Head(tool=tool, version=__version__, host=os.uname().nodename, job=job, t_ns=time.time_ns())


def job_of(held: Held) -> Job:
    """Our own ranks: with their pids, so that people can look at them while they run."""
    ranks = [
        {"rank": rank, "local_rank": at, "host": held.hosts[rank], "pid": held.pids[rank], "device": "cpu",
         "incarnation": 0, "state": "running"}
        for at, rank in enumerate(held.ranks)
    ]  # fmt: skip
    return Job(t_ns=time.time_ns(), world_size=len(ranks), backend="tcp", ranks=ranks)
