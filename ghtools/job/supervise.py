# SPDX-License-Identifier: Apache-2.0
"""Wait for a watched command and the chain beside it; pass signals on (gh-run, issue 2)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from .chain import Chain, Stage, exit_code

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SIGNALS = {signal.SIGCHLD, *PASSED_ON}
SI_KERNEL = 0x80  # sent by the terminal, which has sent it to the job's processes as well
DRAIN_S = 30.0
FINE = (0, 1, 5)  # done, done and something is slow, could not tell: a stage that ends so has done its work


def block_signals() -> None:
    """Hold the signals for `supervise`; call before anything is started (children get an empty mask)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def supervise(
    job_pid: int | None,
    chain: Chain | None,
    stage_died: Callable[[Stage, bool], None],
    job_ended: Callable[[int], None],
    drain_s: float = DRAIN_S,
) -> int:
    """Wait until job and chain have ended; the job's exit code (0 where there is no job of ours).

    `stage_died(stage, in_time)` is called for each stage that ends with an error code, `in_time` being False
    when the job was still running. The chain has `drain_s` seconds after the job's end, then it is killed. With
    no job of ours (gh-run --attach), SIGINT and SIGTERM go to the first stage, and the rest end after it.
    """
    code: int | None = None if job_pid is not None else 0
    deadline: float | None = None
    asked = False
    while code is None or (chain is not None and chain.running):
        wait = 1.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        info = signal.sigtimedwait(SIGNALS, min(wait, 1.0))
        if info is not None and info.si_signo in PASSED_ON:
            if code is None and job_pid is not None:
                if info.si_code != SI_KERNEL:
                    _send(job_pid, info.si_signo)
            elif chain is not None and not asked:
                asked = True
                _send(chain.stages[0].pid, signal.SIGTERM)
            elif chain is not None:
                chain.kill()
        for pid, status in _reap():
            if pid == job_pid:
                code = exit_code(status)
                deadline = time.monotonic() + drain_s
                job_ended(code)
            elif chain is not None and (stage := chain.ended(pid, exit_code(status))) and stage.status not in FINE:
                stage_died(stage, code is not None)
        if deadline is not None and time.monotonic() > deadline and chain is not None:
            chain.kill()
    return code


def _reap() -> list[tuple[int, int]]:
    """Children that have ended since last asked."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended meanwhile; SIGCHLD tells the rest
