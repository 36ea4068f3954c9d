# SPDX-License-Identifier: Apache-2.0
"""Accuracy of gh-profile over injected episodes in simulation, as Markdown.

    python tests/bench/profile_table.py [--episodes N] [--first SEED] [--max-ranks N] [--results FILE] [--verbose]

Each episode is one seeded synthetic job (ghtools.source.synth_profile): a layout of 8 to 1,024 ranks, a fault or none,
noise, steady differences between ranks, hosts with clocks of their own. Three modes in turn: durations all the time
and an onset; durations only from the onset on, as gh-run makes them; no onset, the window judged as it is. Seeds
below 10,000 were used to set thresholds; the default begins above. What counts:

right         the planted part is attributed and nothing else is; without a part to name, nobody is attributed
wrong         something else is attributed, too or instead
inconclusive  the planted part is not attributed, and nothing else is
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ghtools.locate.stage import ProfileStage
from ghtools.source.synth_profile import ProfileSpec, parts, profile_job
from ghtools.stream.records import FLAG_EXEC, Calls, Head, Record, Suspect

SMALL = ((1, 8, 1), (2, 4, 1), (1, 4, 2), (2, 2, 2), (4, 2, 1), (2, 4, 2), (1, 4, 4), (4, 4, 1), (1, 16, 1), (2, 4, 4))
MIDDLE = ((4, 4, 4), (2, 16, 2), (8, 8, 2), (1, 64, 1), (4, 8, 4))
LARGE = ((8, 8, 4), (4, 16, 8), (8, 16, 8), (1, 256, 1))
FAULTS = ("compute", "compute", "link", "edge", "both", "input", "imbalance", "uneven", "pauses", "common", "none")
MODES = ("onset, past known", "onset, no past", "no onset")
AT = 25
LEAST_EFFECT = 1.10  # a fault that changes the iteration by less would not have had an onset


@dataclass
class Row:
    """Tally of one kind of episode."""

    n: int = 0
    right: int = 0
    wrong: int = 0
    delays: list[int] = field(default_factory=list)


def make(seed: int, max_ranks: int) -> tuple[ProfileSpec, str]:
    """The episode of a seed."""
    rng = np.random.default_rng([seed, 7])
    pool = (SMALL, SMALL, SMALL, MIDDLE, MIDDLE, LARGE)[int(rng.integers(6))]
    sizes = [s for s in pool if s[0] * s[1] * s[2] <= max_ranks] or list(SMALL)
    tp, dp, pp = sizes[int(rng.integers(len(sizes)))]
    fault = FAULTS[seed % len(FAULTS)]
    mode = MODES[seed // len(FAULTS) % len(MODES)]
    if fault in ("edge", "imbalance") and pp == 1:
        tp, dp, pp = 2, 4, 2
    if fault == "both" and tp * pp == 1:
        tp, dp, pp = 2, 4, 1  # the link needs a group of its own
    ranks = tp * dp * pp
    rank = int(rng.integers(ranks - (tp * dp if fault == "edge" else 0)))
    low, high = {
        "compute": (1.2, 3.0), "both": (1.3, 3.0), "link": (3.0, 8.0), "edge": (30.0, 120.0), "input": (1.3, 2.5),
        "imbalance": (1.2, 1.7), "common": (1.2, 2.0),
    }.get(fault, (1.0, 1.0))  # fmt: skip
    at = AT if mode != "no onset" or fault == "common" else 0
    if fault == "common":
        mode = MODES[0]  # only a past can show it
    return ProfileSpec(
        tp=tp, dp=dp, pp=pp, rank=rank, fault=fault, ratio=float(rng.uniform(low, high)), iters=at + 30, at=at,
        change=mode != "no onset" and fault not in ("none", "uneven", "pauses", "imbalance"), seed=seed,
        micro=int(rng.choice([2, 4, 8])) if ranks <= 64 else 4, layers=2, noise=float(rng.uniform(0.01, 0.04)),
        bias=float(rng.uniform(0.003, 0.01)), transfer_noise=float(rng.uniform(0.03, 0.1)),
        dp_ms=float(rng.uniform(6, 14)), clock_ms=float(rng.choice([0.1, 3.0, 2000.0])),
    ), mode  # fmt: skip


def records(spec: ProfileSpec, mode: str) -> Iterator[Record]:
    """The stream of an episode; in the second mode executions are left out before the onset."""
    iteration: dict[int, int] = {}
    for record in profile_job(spec, Head()):
        if isinstance(record, Calls) and mode == MODES[1] and len(record.flags) and record.flags[0] & FLAG_EXEC:
            iteration[record.rank] = iteration.get(record.rank, -1) + 1
            if iteration[record.rank] < spec.at:
                continue
        yield record


def effect(spec: ProfileSpec) -> float:
    """How much longer an iteration takes with the fault than without it, from a short run."""
    from dataclasses import replace

    from ghtools.source.synth_profile import _Sim

    def pace(one: ProfileSpec) -> float:
        sim = _Sim(one)
        ends = []
        for _ in range(6):
            sim.iteration()
            ends.append(float(sim.t[0].max()))
        return float(np.median(np.diff(ends)))

    return pace(replace(spec, at=0)) / pace(replace(spec, at=0, fault="none"))


def wanted(spec: ProfileSpec) -> list[tuple[str, frozenset[int]]]:
    """The parts that must be named: (rank or communication, ranks)."""
    return [
        ("communication" if part["cause"] == "communication" else "rank", frozenset(part["ranks"]))
        for part in parts(spec)
    ]


def run(spec: ProfileSpec, mode: str) -> tuple[list[Suspect], int | None]:
    """All suspects of an episode, and how many iterations after the onset the first was attributed."""
    stream = records(spec, mode)
    head = next(stream)
    assert isinstance(head, Head)
    stage = ProfileStage(head)
    said: list[Suspect] = []
    delay = None
    index = 0
    for record in stream:
        if record.kind == "iters":
            index = max(index, int(record.index[-1]))  # type: ignore[attr-defined]
        for made in stage.feed(record):
            if isinstance(made, Suspect):
                said.append(made)
                if made.verdict == "attributed" and delay is None:
                    delay = index - spec.at + 1
    said += [made for made in stage.finish() if isinstance(made, Suspect)]
    return said, delay


def judged(spec: ProfileSpec, said: list[Suspect]) -> str:
    """right, wrong or inconclusive."""
    planted = wanted(spec)
    named = [
        (s.cause if s.cause == "communication" else "rank", frozenset(s.ranks))
        for s in said
        if s.verdict == "attributed"
    ]
    if any(part not in planted for part in named):
        return "wrong"
    return "right" if all(part in named for part in planted) else "inconclusive"


def episode(seed: int, max_ranks: int, verbose: bool) -> dict[str, Any] | None:
    """Run one episode; None if its fault is too small to have an onset."""
    spec, mode = make(seed, max_ranks)
    if wanted(spec) and effect(spec) < LEAST_EFFECT:
        return None
    said, delay = run(spec, mode)
    verdict = judged(spec, said)
    if verbose and verdict != "right":
        print(f"seed {seed} {verdict}: {spec.fault} x{spec.ratio:.2f} rank {spec.rank} tp{spec.tp} dp{spec.dp} "
              f"pp{spec.pp} micro {spec.micro}, {mode}")  # fmt: skip
        for s in said:
            print(f"    {s.verdict} {s.what} {s.ranks[:6]} {s.cause}: {s.text[:230]}", flush=True)
    counted = delay is not None and wanted(spec) and spec.at > 0
    return {
        "seed": seed, "fault": spec.fault, "mode": mode, "ranks": spec.ranks, "verdict": verdict,
        "delay": delay if counted else None,
    }  # fmt: skip


def show(episodes: list[dict[str, Any]], left_out: int) -> None:
    """Print the table."""
    rows: dict[str, Row] = {}
    for one in episodes:
        for key in (one["fault"], f"mode: {one['mode']}", "all"):
            row = rows.setdefault(key, Row())
            row.n += 1
            row.right += one["verdict"] == "right"
            row.wrong += one["verdict"] == "wrong"
            if one["delay"] is not None:
                row.delays.append(one["delay"])
    sizes, seeds = [one["ranks"] for one in episodes], [one["seed"] for one in episodes]
    print(f"{len(episodes)} episodes, {min(sizes)} to {max(sizes)} ranks, seeds {min(seeds)} to {max(seeds)};")
    print(f"{left_out} more left out since the fault changed the iteration by under 10 %\n")
    print("| planted | episodes | right part named | wrong part named | inconclusive | iterations to name, median / most |")  # fmt: skip  # noqa: E501
    print("|---|---|---|---|---|---|")
    for key in [*dict.fromkeys(FAULTS), *(f"mode: {mode}" for mode in MODES), "all"]:
        if key not in rows:
            continue
        row = rows[key]
        delays = f"{np.median(row.delays):.0f} / {max(row.delays)}" if row.delays else "-"
        print(f"| {key} | {row.n} | {row.right} | {row.wrong} | {row.n - row.right - row.wrong} | {delays} |")


def main() -> None:
    """Run the episodes and print the table; with --results in pieces that add to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=220)
    parser.add_argument("--first", type=int, default=10_000)
    parser.add_argument("--max-ranks", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long; go on with the same --results")
    parser.add_argument("--results", type=Path, help="JSON lines, one an episode; those in it are not run again")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    lines = options.results.read_text().splitlines() if options.results and options.results.exists() else []
    done = [json.loads(line) for line in lines]
    began, seed = time.perf_counter(), options.first + len(done)
    while sum("verdict" in one for one in done) < options.episodes and time.perf_counter() - began < options.seconds:
        done.append(episode(seed, options.max_ranks, options.verbose) or {"seed": seed})
        seed += 1
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    judged_ones = [one for one in done if "verdict" in one]
    show(judged_ones, len(done) - len(judged_ones))


if __name__ == "__main__":
    main()
