# SPDX-License-Identifier: Apache-2.0
"""Why a test was slow: it was not let run (a quota, other work), or it was slow while it ran (clock, hardware)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

from .measured import Measured

MOST = 0.5  # of the slow-down, in its logarithm: what explains more is the cause
CLOCK_RATIO = 1.05


@dataclass(frozen=True)
class Cause:
    """`word`: throttled, contended, not running, slow clock, slow while running or GPU throttled."""

    word: str
    text: str


def cause_of(one: Measured, ratio: float, share: float, waited: float, mhz: float) -> Cause:
    """Why `one` was `ratio` times slower than a reference with that share of CPU, of waiting, and clock (-1: unknown).

    The slow-down is the product of two parts: the CPU time it got, and the work done for each second of it.
    """
    own = one.share("cpu_ns")
    if own < 0:
        return _of_gpu(one)
    expected = share if share > 0 else 1.0
    if own > 0 and log(max(expected / own, 1e-9)) < MOST * log(ratio):
        return _while_running(one, mhz)
    throttled, queued = max(0.0, one.throttled), max(0.0, one.waited)
    if throttled >= max(queued - max(0.0, waited), 0.0) and throttled > 0:
        quota = f"quota {one.quota:.3g} CPU, " if one.quota > 0 else ""
        return Cause("throttled", f"throttled by its cgroup ({quota}throttled {_percent(throttled)} of the time)")
    if queued > 0:
        forced = sum(max(0, repeat.forced) for repeat in one.repeats)
        against = f", {_percent(waited)} there" if waited > 0.01 else ""
        return Cause(
            "contended",
            f"contended by other work (waited for a CPU {_percent(queued)} of the time{against}; "
            f"{forced} involuntary switches)",
        )
    return Cause(
        "not running", f"it ran only {_percent(own)} of the time, and neither a quota nor a run queue says why"
    )


def _while_running(one: Measured, mhz: float) -> Cause:
    if one.mhz > 0 and mhz > one.mhz * CLOCK_RATIO:
        return Cause("slow clock", f"slow for each second of CPU: clock {one.mhz:.0f} MHz against {mhz:.0f} MHz")
    return Cause(
        "slow while running", "slow for each second of CPU: its clock, its hardware, or other work on the same core"
    )


def _of_gpu(one: Measured) -> Cause:
    reasons: Any = one.facts.get("throttle")
    if isinstance(reasons, list) and reasons:
        return Cause("GPU throttled", f"the GPU says it is throttled: {', '.join(map(str, reasons))}")
    return Cause("slow while running", "and the GPU gives no reason")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
