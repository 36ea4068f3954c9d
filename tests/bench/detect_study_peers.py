# SPDX-License-Identifier: Apache-2.0
"""gh-bocd beside other detectors on the same series: accuracy, delay, time an observation, memory.

The peers live in an interpreter of their own (GHT_PEERS, see peers.txt); without them the part says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ghtools.detect.score import Report, Scored, Tolerance, score
from ghtools.detect.watch import Settings, Watch
from ghtools.stream.records import Change, Iters
from tests.bench import detect_study_text as text
from tests.bench.detect_study_methods import MODEL, Episodes, iters_of, ours
from tests.bench.detect_study_peers_run import PEERS, have
from tests.bench.detect_study_series import REALISTIC, Made, generator, step
from tests.bench.detect_study_synthetic import HARD, STEPS, Sizes

RUNNER = Path(__file__).with_name("detect_study_peers_run.py")
EACH = 4  # series of a kind
OFFLINE = Tolerance(early=15, within=60)  # it sees the whole series, so it may place a change early
LENGTHS = (500, 2000)


def _series(seed: int) -> list[tuple[str, Made]]:
    made = []
    for noise in REALISTIC:
        for change in STEPS:
            kind = f"{change}; {noise}"
            made += [(kind, step(noise, STEPS[change])(generator(seed, "peers; " + kind, k))) for k in range(EACH)]
    for kind in ("episode with recovery", "several episodes", "blips of 1-2 iterations"):
        made += [(kind, HARD[kind](generator(seed, "peers; " + kind, k))) for k in range(2 * EACH)]
    return made


def _scored(made: Made, told: list[tuple[int, int, float]], online: bool) -> Scored:
    episodes, changes, level = Episodes(), [], 0.0
    for at, said, ratio in told:
        after = level + float(np.log(ratio))
        changes += list(episodes.change(level, after, at, said))
        level = after
    return score(made.labels, changes, len(made.x), Tolerance() if online else OFFLINE)


def _one_by_one(made: Made) -> list[Change]:
    """gh-bocd given each iteration in a record of its own, as a live job does."""
    watch, out = Watch(0, MODEL, Settings()), []
    for rec in iters_of(made):
        for k in range(len(rec.index)):
            part = slice(k, k + 1)
            piece = Iters(rank=0, index=rec.index[part], t_ns=rec.t_ns[part], dur_ns=rec.dur_ns[part],
                          phase=rec.phase[part])  # fmt: skip
            out += list(watch.feed(piece))
    return out


def _ours(series: list[tuple[str, Made]], run: Callable[[Made], list[Change]]) -> tuple[list[Scored], float]:
    scored, spent, n = [], 0.0, 0
    for _, made in series:
        began = time.process_time()
        changes = run(made)
        spent += time.process_time() - began
        n += len(made.x)
        scored.append(score(made.labels, changes, len(made.x)))
    return scored, 1e6 * spent / n


def _ours_long(run: Callable[[Made], list[Change]]) -> list[tuple[float, float]]:
    import resource

    out = []
    for n in LENGTHS:
        made = Made(0.3 * np.exp(0.02 * np.random.default_rng(1).standard_normal(n)))
        run(Made(made.x[:60]))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        run(made)
        spent = time.process_time() - began
        out.append((1e6 * spent / n, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))
    return out


def _row(name: str, online: bool, scored: list[Scored], us: float, grown: list[tuple[float, float]]) -> list[str]:
    report = Report(scored)
    shares = report.shares()
    quiet = [one for one in scored if one.quiet]
    return [
        name, "yes" if online else "no", text.share(*shares["series right"]),
        text.share(sum(bool(one.false) for one in quiet), len(quiet)), text.share(*shares["episodes missed"]),
        text.delays(text.all_of(report, "delay")) if online else "-", f"{us:.2f}",
        " / ".join(f"{spent:.2f}" for spent, _ in grown), " / ".join(f"{memory:.1f}" for _, memory in grown),
    ]  # fmt: skip


def peers(sizes: Sizes, say: Callable[[str], None]) -> str:
    """The table, or why there is none."""
    python = os.environ.get("GHT_PEERS") or (sys.executable if have() else "/tmp/peers/bin/python")
    if not Path(python).exists():
        say("skipped, no peers are installed; see tests/bench/peers.txt")
        return "Skipped: no peers are installed (tests/bench/peers.txt says how)."
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def child(*words: str) -> str:
        return subprocess.run(
            [python, str(RUNNER), *words], env=env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    versions = json.loads(child("have"))
    series = _series(sizes.seed)
    with tempfile.TemporaryDirectory() as folder:
        given, got = Path(folder) / "in.npz", Path(folder) / "out.json"
        np.savez(given, *[made.x for _, made in series])
        child(str(given), str(got), str(sizes.jobs))
        told = json.loads(got.read_text())
    n = sum(len(made.x) for _, made in series)
    rows = []
    for name, run in (("gh-bocd, batches", ours), ("gh-bocd, one by one", _one_by_one)):
        scored, us = _ours(series, run)
        rows.append(_row(name, True, scored, us, _ours_long(run)))
    for name, (_, online, _) in PEERS.items():
        if name not in told:
            say(f"{name} is not installed")
            continue
        scored = [_scored(made, one[0], online) for (_, made), one in zip(series, told[name], strict=True)]
        us = 1e6 * sum(one[1] for one in told[name]) / n
        grown = [tuple(json.loads(child("long", name, str(length)))) for length in LENGTHS]
        rows.append(_row(name, online, scored, us, grown))
        say(" | ".join(rows[-1]))
    header = [
        "detector", "online", "series right", "false, of quiet ones", "episodes missed", "confirmed", "us/observation",
        "the same at n = 500 / 2,000", "MB gained at n = 500 / 2,000",
    ]  # fmt: skip
    found = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"{len(series)} series, {n} observations: {EACH} of each of "
        f"{', '.join(STEPS)} under each of {', '.join(REALISTIC)}; {2 * EACH} each of episodes with recovery, several "
        f"episodes, blips. {found}. Peers get the logarithm in units of the noise of the first 30, and what moves the "
        "mean by less than 10 % is dropped, which spares them most false alarms. Offline ones see the whole series, "
        "are not charged for delay, and may place a change 15 iterations early; to watch a job they are run again and "
        "again. gh-bocd's time is of the whole detector with verification and its Python part."
        "\n\n" + text.table(header, rows)
    )
