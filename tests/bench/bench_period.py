# SPDX-License-Identifier: Apache-2.0
"""gh-period on held-out synthetic streams (the paper's rule beside it), and calls a second on one core.

python tests/bench/bench_period.py [--seeds 200] [--calls 10000000] [--only speed|table]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ghtools.detect.period import PeriodFinder
from ghtools.source.synth_calls import CallStream, Extras, Noise, call_stream, take
from ghtools.stream.records import Calls
from tests.detect.period_score import run, score

SEED = 555_000  # held out: no seed of this range was looked at while the rules were made
ROWS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("DDP", "ddp", {}, {}),
    ("hand-written all_reduce loop", "loop", {}, {}),
    ("FSDP", "fsdp", {}, {}),
    ("Megatron (TP, DP, PP)", "megatron", {}, {}),
    ("MoE", "moe", {}, {}),
    ("GPipe alone", "pipeline", {}, {}),
    ("DDP, equal buckets", "ddp", {"equal": True}, {}),
    ("DDP, one bucket", "ddp", {"buckets": 1}, {}),
    ("FSDP, no distinct root", "fsdp", {"root": False, "loose": False}, {}),
    ("Megatron, DP = 1", "megatron", {"dp": 1}, {}),
    ("MoE, DP = 1", "moe", {"dp": 1}, {}),
    ("MoE, DP = 1, no norm", "moe", {"dp": 1, "norm": False}, {}),
    ("DDP, .1 % lost", "ddp", {}, {"drop": 0.001}),
    ("FSDP, .1 % lost", "fsdp", {}, {"drop": 0.001}),
    ("Megatron, .05 % lost", "megatron", {}, {"drop": 0.0005}),
    ("MoE, .05 % lost", "moe", {}, {"drop": 0.0005}),
)


def stream(family: str, seed: int, sizes: dict[str, Any], noise: dict[str, Any]) -> CallStream:
    """Stream `seed` of a row: about 60,000 calls at most, extras, a start in the middle of an iteration."""
    rng = np.random.default_rng([SEED, seed])
    extras = Extras.random(rng)
    first = call_stream(family, 1, np.random.default_rng([SEED, seed, 1]), sizes=sizes)
    n = int(min(100, max(30, 60_000 // first.n_calls)))
    return call_stream(
        first.template, n, rng, extras=extras, noise=Noise(**({"swap": 0.02} | noise)),
        start=int(rng.integers(0, first.n_calls + 1)),
    )  # fmt: skip


def table(seeds: int) -> None:
    """Print, for each row, how many of `seeds` streams each method got right, wrong, and did not decide."""
    print("| streams | right | wrong | unknown | acf: right |")
    print("|---|---|---|---|---|")
    for name, family, sizes, noise in ROWS:
        ours: Counter[str] = Counter()
        theirs: Counter[str] = Counter()
        for seed in range(seeds):
            made = stream(family, seed, sizes, noise)
            lossy = bool(noise)
            for tally, method in ((ours, "anchors"), (theirs, "acf")):
                iters, _ = run(PeriodFinder(method), made.batches(512))
                tally[score(made, iters, lossy=lossy).state] += 1
        print(f"| {name} | {ours['right']} | {ours['wrong']} | {ours['unknown']} | {theirs['right']} |", flush=True)


def long_calls(n: int, batch: int) -> list[Calls]:
    """n calls of a Megatron rank in batches, time and seq running on."""
    one = call_stream(
        "megatron", 64, np.random.default_rng(1), sizes={"tp": 4, "pp": 1, "dp": 4, "layers": 6, "micro": 8}
    )
    base = one.calls
    period, span = len(base.seq), int(base.t_ns[-1] - base.t_ns[0]) + 250_000_000
    out = []
    for lo in range(0, n, batch):
        at = np.arange(lo, min(lo + batch, n))
        part = take(base, at % period)
        part.t_ns = part.t_ns + at // period * span
        part.seq = at
        out.append(part)
    return out


def speed(n: int) -> None:
    """Print calls a second over `n` calls in batches of several sizes, best of three."""
    for batch in (65_536, 4_096):
        parts = long_calls(n, batch)
        best = min(timed(lambda p=parts: run(PeriodFinder(), p)) for _ in range(3))  # type: ignore[misc]
        print(f"{n:,} calls in batches of {batch:,}: {best:.3f} s, {n / best / 1e6:.1f} million calls a second\n")


def timed(body: Callable[[], object]) -> float:
    """Seconds of CPU time of one call."""
    begin = time.process_time()
    body()
    return time.process_time() - begin


def main() -> None:
    """Print what was asked for."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--seeds", type=int, default=200)
    parse.add_argument("--calls", type=int, default=10_000_000)
    parse.add_argument("--only", choices=["speed", "table"])
    args = parse.parse_args()
    print(
        f"`python tests/bench/bench_period.py {' '.join(sys.argv[1:])}`, numpy {np.__version__}, seeds {SEED} and on.\n"
    )
    if args.only != "table":
        speed(args.calls)
    if args.only != "speed":
        table(args.seeds)


if __name__ == "__main__":
    main()
