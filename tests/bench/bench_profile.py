# SPDX-License-Identifier: Apache-2.0
"""Speed of gh-profile: calls a second through its stage, and iterations from an onset to a name; what timing costs.

    python tests/bench/bench_profile.py

A tensor, data and pipeline parallel job in simulation, made beforehand; what is timed is the stage alone, from records
to suspects. A call and its execution count as two rows. The cost of timing executions is that of the shim's hooks
around a call that enqueues and executes a work which does nothing, with timing on and off (tests/bench/gloo_call.c).
Prints one line a figure: name, value, unit, remark.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmark beside this one
from ghtools.locate.stage import ProfileStage
from ghtools.source.synth_profile import ProfileSpec, profile_job
from ghtools.stream.records import Calls, Head, Iters, Record, Suspect, columns
from tests.bench.bench_shim import gloo

JOBS = (
    ("8 ranks, tp2 dp2 pp2", ProfileSpec(tp=2, dp=2, pp=2, micro=16, layers=12, iters=80, fault="compute", rank=3)),
    ("64 ranks, tp4 dp4 pp4", ProfileSpec(tp=4, dp=4, pp=4, micro=8, layers=12, iters=16, fault="compute", rank=3)),
    ("512 ranks, tp8 dp16 pp4", ProfileSpec(tp=8, dp=16, pp=4, micro=4, layers=6, iters=12, fault="compute", rank=3)),
)


def batched(records: Iterable[Record], iters: int) -> list[Record]:
    """The same records with `iters` iterations of a rank in one batch, as a tracer that polls makes them."""
    made: list[Record] = []
    held: dict[tuple[str, int, bool], list[Calls | Iters]] = {}
    for record in records:
        if not isinstance(record, Calls | Iters):
            made.append(record)
            continue
        is_exec = isinstance(record, Calls) and bool(len(record.flags)) and bool(record.flags[0] & 32)
        some = held.setdefault((record.kind, record.rank, is_exec), [])
        some.append(record)
        if len(some) == iters:
            made.append(_join(some))
            some.clear()
    made += [_join(some) for some in held.values() if some]
    return made


def _join(some: list[Calls | Iters]) -> Record:
    cls = type(some[0])
    values: dict[str, Any] = {name: np.concatenate([getattr(r, name) for r in some]) for name in columns(cls)}
    return cls(rank=some[0].rank, **values)


def through(records: list[Record]) -> tuple[float, list[Suspect]]:
    """Seconds a stage takes, and what it says."""
    stage = ProfileStage(Head())
    said: list[Suspect] = []
    began = time.perf_counter()
    for record in records:
        said += [made for made in stage.feed(record) if isinstance(made, Suspect)]
    said += [made for made in stage.finish() if isinstance(made, Suspect)]
    return time.perf_counter() - began, said


def main() -> None:
    """Print the figures."""
    for name, spec in JOBS:
        records = batched(list(profile_job(spec, Head()))[1:], 4)
        rows = sum(len(r.t_ns) for r in records if isinstance(r, Calls))
        took = []
        for _ in range(3):
            seconds, said = through(records)
            took.append(seconds)
        named = [s.ranks for s in said if s.verdict == "attributed"]
        print(f"gh-profile, {name}\t{rows / min(took) / 1e6:.2f}\tmillion rows/s\t{rows} rows, named {named}")
    delays = []
    for seed in range(20):
        spec = ProfileSpec(
            tp=2, dp=4, fault="compute", rank=seed % 8, ratio=1.5, at=20, iters=36, change=True, seed=seed
        )
        stage, index = ProfileStage(Head()), 0
        for record in list(profile_job(spec, Head()))[1:]:
            index = int(record.index[-1]) if isinstance(record, Iters) else index
            if any(isinstance(s, Suspect) and s.ranks == [spec.rank] for s in stage.feed(record)):
                delays.append(index - spec.at + 1)
                break
    print(f"onset to name\t{np.median(delays):.0f}\titerations\tmost {max(delays)}, {len(delays)} of 20 jobs; goal 10")
    hooks()


def hooks() -> None:
    """What the shim's hooks add to a collective of Gloo, executions timed and not."""
    try:
        import torch  # noqa: F401
    except ImportError:
        print("gloo hooks, call and execution\t-\tns\ttorch is not installed")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        cost = {on: [] for on in (False, True)}
        for _ in range(5):
            for on, found in cost.items():
                bare, hooked = gloo(Path(tempfile.mkdtemp(dir=name)), works=True, profile=on)
                found.append(hooked - bare)
        off, on = statistics.median(cost[False]), statistics.median(cost[True])
    print(f"gloo hooks, call and execution, timing off\t{off:.0f}\tns\tgoal 100 for the call")
    print(f"gloo hooks, call and execution, timed\t{on:.0f}\tns\t{on - off:.0f} ns more an execution")


if __name__ == "__main__":
    main()
