# SPDX-License-Identifier: Apache-2.0
"""Measure gh-bocd on the populations of ALGORITHMS.md sections 1.4 and 1.5; prints Markdown.

FPR: series with a confirmed onset or drift of verdict fail-slow where none was planted, or any confirmed
change of the threshold's size. FNR: the planted change not confirmed within 60 iterations of being whole.
Delays are iterations after the first slow one (P5: after the second step, P6: after it passes 10 %).
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from ghtools import __version__
from ghtools.detect.memory import Settings
from ghtools.detect.series import Model, Prior
from ghtools.detect.watch import Watch
from ghtools.stream.records import Change, Iters
from tests.bench.populations import CHANGED, LENGTH, QUIET, Case, case

WITHIN = 60
MODEL = Model(Prior())


def run(x: np.ndarray) -> list[Change]:
    """Rank-level changes of one series of seconds."""
    dur = np.maximum(np.rint(x * 1e9), 1).astype("<i8")
    n = len(dur)
    rec = Iters(index=np.arange(n, dtype="<i8"), t_ns=np.cumsum(dur) - dur, dur_ns=dur, phase=np.zeros(n, "u1"))
    return list(Watch(0, MODEL, Settings()).feed(rec))


def reports(changes: list[Change]) -> list[Change]:
    """Confirmed changes that claim at least the threshold; a small lasting loss (`unknown`) and its end do not."""
    told = [c for c in changes if c.stage == "confirmed"]
    small = {c.episode for c in told if c.type == "drift" and c.verdict == "unknown"}
    small -= {c.episode for c in told if c.verdict == "fail-slow"}
    return [c for c in told if c.episode == 0 or c.episode not in small]


def score(found: Case, changes: list[Change]) -> dict[str, float]:
    """What one series adds to the table; delays are NaN when missed."""
    told = reports(changes)
    out = {"false": 0.0, "missed": 0.0, "delay": np.nan, "suspected": np.nan, "early": 0.0}
    if found.starts < 0:
        out["false"] = float(bool(told))
        out["suspected"] = sum(c.stage == "suspected" for c in changes)
        return out
    kinds = ("relief",) if found.down else ("onset", "drift")
    told = [c for c in told if not (c.type == "drift" and c.verdict == "unknown")]
    hits = [c for c in told if c.type in kinds and found.starts <= c.said_index <= found.onset + WITHIN]
    out["missed"] = float(not hits)
    if hits:
        out["delay"] = hits[0].said_index - found.onset
    if found.relief >= 0:
        back = [c for c in told if c.type == "relief" and found.relief <= c.said_index <= found.relief + WITHIN]
        out["missed"] = float(not hits or not back)
    thought = [c for c in changes if c.stage == "suspected" and found.starts <= c.said_index <= found.onset + WITHIN]
    if thought:
        out["suspected"] = thought[0].said_index - found.onset
    out["false"] = float(any(c.said_index < found.starts for c in told))
    return out


def table(count: int, seed: int, names: list[str]) -> str:
    """The table for `count` series of each kind."""
    lines = [
        "| kind | series | false % | missed % | confirmed, median / p95 | suspected, median / p95 | suspicions each |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        rows = []
        for number in range(count):
            one = case(name, seed, number)
            rows.append(score(one, run(one.x)))

        def share(key: str) -> str:
            return f"{100 * float(np.mean([row[key] for row in rows])):.2f}"  # noqa: B023

        def spread(key: str) -> str:
            values = np.array([row[key] for row in rows])  # noqa: B023
            values = values[~np.isnan(values)]
            return f"{np.median(values):.0f} / {np.percentile(values, 95):.0f}" if len(values) else "-"

        if name in QUIET:
            mean = float(np.mean([row["suspected"] for row in rows]))
            lines.append(f"| {name} | {count} | {share('false')} | - | - | - | {mean:.2f} |")
        else:
            lines.append(
                f"| {name} | {count} | {share('false')} | {share('missed')} | {spread('delay')} "
                f"| {spread('suspected')} | - |"
            )
        print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def quiet(count: int, seed: int, n: int, cv: float) -> str:
    """False alarms in quiet series, as the goal states it."""
    false = 0
    for number in range(count):
        rng = np.random.default_rng([seed, 77, number])
        false += bool(reports(run(rng.uniform(0.3, 30) * np.exp(cv * rng.standard_normal(n)))))
    return f"quiet series of {n} iterations, CV {100 * cv:.0f} %: {false} of {count} with a confirmed change"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=400, help="series of each kind")
    parser.add_argument("--quiet", type=int, default=1000, help="quiet series of 1,000 iterations")
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--kinds", default="", help="comma list; default all")
    options = parser.parse_args()
    names = options.kinds.split(",") if options.kinds else [*QUIET, *CHANGED]
    began = time.perf_counter()
    print(f"ghtools {__version__}, numpy {np.__version__}, seed {options.seed}, {LENGTH} iterations a series\n")
    print(table(options.series, options.seed, names))
    if options.quiet:
        print("\n" + quiet(options.quiet, options.seed, 1000, 0.02))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
