# SPDX-License-Identifier: Apache-2.0
"""Studies on synthetic series: the paper's populations, the difficult kinds, quiet series, and the kinds of
ALGORITHMS.md section 1.5 on seeds of this study's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ghtools.detect.score import Report, Scored, score
from ghtools.stream.records import Change
from tests.bench import detect_study_text as text
from tests.bench.detect_study_methods import METHODS, ours
from tests.bench.detect_study_series import (
    HARD,
    NOISES,
    REALISTIC,
    TABLE_3,
    TABLE_4,
    Made,
    Population,
    generator,
    job_of,
    level,
    step,
)
from tests.bench.detector_table import run as run_plain
from tests.bench.detector_table import score as score_plain
from tests.bench.populations import CHANGED, QUIET, case

CHUNK = 50
STEPS = {"quiet": 1.0, "+10 %": 1.10, "+15 %": 1.15, "+50 %": 1.50}


@dataclass
class Sizes:
    """How much to run."""

    series: int = 500
    quiet: int = 10_000
    replicates: int = 5
    seed: int = 9001
    jobs: int = 2
    figures: Path = field(default_factory=Path)


def make(kind: str, number: int, seed: int, figures: Path = Path()) -> Made:
    """Series `number` of a kind, from its name alone, so that any of them can be looked at again."""
    for population in (TABLE_3, TABLE_4):
        if kind.startswith(population.name):
            noises = (kind.split("; ")[1],) if "; " in kind else REALISTIC
            place = number % population.jobs
            return job_of(population, place, generator(seed, kind, number), figures, noises)
    rng = generator(seed, kind, number)
    if kind in HARD:
        return HARD[kind](rng)
    if kind.startswith("1,000 quiet"):
        noise = kind.split("; ")[1]
        return Made(level(rng) * np.exp(NOISES[noise](rng, 1000)))
    change, noise = kind.split("; ")
    return step(noise, STEPS[change])(rng)


def _chunk(args: tuple[str, str, range, int, Path]) -> list[Scored]:
    kind, method, numbers, seed, figures = args
    out = []
    for number in numbers:
        made = make(kind, number, seed, figures)
        try:
            changes = METHODS[method](made)
        except Exception as error:  # a study goes on, and counts the series as wrong in every way
            print(f"{method} failed on {kind}:{number}: {error!r}", file=sys.stderr)
            changes = [Change(stage="confirmed", verdict="fail-slow", onset_index=-1, said_index=-1)]
        out.append(score(made.labels, changes, len(made.x)))
    return out


def measure(kind: str, method: str, count: int, sizes: Sizes, pool: ProcessPoolExecutor) -> Report:
    """Score `count` series of a kind with a method."""
    chunks = [
        (kind, method, range(first, min(first + CHUNK, count)), sizes.seed, sizes.figures)
        for first in range(0, count, CHUNK)
    ]
    report = Report()
    for part in pool.map(_chunk, chunks):
        report.series += part
    return report


def _worst(report: Report, most: int = 4) -> str:
    """Numbers of series that went wrong, for `detect_study.py --one`."""
    bad = [str(number) for number, one in enumerate(report.series) if not one.right]
    return ", ".join(bad[:most]) + (", ..." if len(bad) > most else "") if bad else ""


def _figures(report: Report) -> list[str]:
    shares = report.shares()
    return [
        text.share(*shares["series right"]),
        text.share(sum(bool(one.false) for one in report.series), len(report.series)),
        text.share(*shares["episodes missed"]),
    ]


def paper(sizes: Sizes, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> str:
    """Tables 3 and 4 of the paper."""
    rows, more = [], []
    for population in (TABLE_3, TABLE_4):
        count = population.jobs * sizes.replicates
        for method in METHODS:
            report = measure(population.name, method, count, sizes, pool)
            rows.append(_paper_row(population, method, report))
            say(" | ".join(rows[-1]))
        for noise in REALISTIC:
            kind = f"{population.name}; {noise}"
            report = measure(kind, "gh-bocd", max(population.jobs, count // 8), sizes, pool)
            more.append([kind, str(len(report.series)), *_figures(report), _worst(report)])
    return (
        text.table(
            [
                "population",
                "detector",
                "jobs",
                "accuracy",
                "false positives",
                "false negatives",
                "found after",
                "wrong",
            ],
            rows,
        )
        + "\n\nOurs with one noise at a time (all fault kinds as above):\n\n"
        + text.table(["population; noise", "jobs", "accuracy", "false positives", "false negatives", "wrong"], more)
    )


def _paper_row(population: Population, method: str, report: Report) -> list[str]:
    quiet, slow = [s for s in report.series if s.quiet], [s for s in report.series if not s.quiet]
    return [
        population.name,
        method,
        str(len(report.series)),
        text.share(sum(s.right for s in report.series), len(report.series)),
        text.share(sum(bool(s.false) for s in quiet), len(quiet)),
        text.share(sum(bool(s.missed) for s in slow), len(slow)),
        text.delays(text.all_of(report, "delay")),
        _worst(report),
    ]


HARD_HEADER = ("kind", "series", "right", "false", "missed", "suspected", "confirmed", "end said", "wrong")


def _hard_row(kind: str, report: Report) -> list[str]:
    ends = report.shares()["ends missed"]
    end = text.delays(text.all_of(report, "relief_delay"))
    if ends[0]:
        end += f"; {text.share(*ends)} never"
    misnamed = sum(bool(one.misnamed) for one in report.series)
    name = kind + (f" ({100 * misnamed / len(report.series):.0f} % called fail-slow)" if misnamed else "")
    return [
        name, str(len(report.series)), *_figures(report), text.delays(text.all_of(report, "suspected")),
        text.delays(text.all_of(report, "delay")), end, _worst(report),
    ]  # fmt: skip


def hard(sizes: Sizes, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> str:
    """The difficult kinds."""
    rows = []
    for kind in [*HARD, *(f"{change}; {noise}" for change in STEPS for noise in NOISES)]:
        report = measure(kind, "gh-bocd", sizes.series, sizes, pool)
        rows.append(_hard_row(kind, report))
        say(" | ".join(rows[-1]))
    return text.table(HARD_HEADER, rows)


def quiet(sizes: Sizes, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> str:
    """False alarms in quiet series of 1,000 iterations."""
    rows = []
    for noise in NOISES:
        kind = f"1,000 quiet; {noise}"
        count = sizes.quiet if noise == "CV 2 %" else min(sizes.quiet, sizes.series)
        report = measure(kind, "gh-bocd", count, sizes, pool)
        got = report.as_dict()
        alarms = got["false_alarms_per_10000_iters"]
        doubts = got["false_suspicions_per_10000_iters"]
        low, high = alarms["interval"]
        rows.append(
            [
                kind, str(count), text.share(*report.shares()["quiet series with a false episode"]),
                f"{alarms['value']:.3g} ({low:.2g} to {high:.2g})", f"{doubts['value']:.3g}", _worst(report),
            ]
        )  # fmt: skip
        say(" | ".join(rows[-1]))
    return text.table(
        ["kind", "series", "with a false episode", "false episodes per 10,000 iterations", "suspicions", "wrong"], rows
    )


# ALGORITHMS.md section 1.5, the row "recommended (BOCD)": false per cent of N*, missed per cent of P*, delays.
PUBLISHED = {
    "N0": "0", "N1": "0", "N2": "0", "N3": "0", "N4": ".20", "N5": ".10", "N6": "1.25", "N7": ".55", "N8": "0",
    "P0": "3.05; 6 / 29", "P1": "0; 5 / 13", "P2": "0; 5 / 6", "P3": "0; 6 / 8", "P4": ".25; 8 / 18",
    "P5": "4.9; 29 / 37", "P6": ".75; 15 / 55", "P7": "0; 5 / 9", "P8": "0; 6 / 9", "P9": ".20; 9 / 19",
    "P10": "2.5; 14 / 29",
}  # fmt: skip


def _plain_chunk(args: tuple[str, range, int]) -> list[dict[str, float]]:
    name, numbers, seed = args
    return [score_plain(one, run_plain(one.x)) for one in (case(name, seed, number) for number in numbers)]


def published(sizes: Sizes, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> str:
    """The kinds of section 1.5 on seeds that the detector was not tuned on."""
    rows = []
    for name in [*QUIET, *CHANGED]:
        chunks = [(name, range(k, min(k + CHUNK, sizes.series)), sizes.seed) for k in range(0, sizes.series, CHUNK)]
        got = [row for part in pool.map(_plain_chunk, chunks) for row in part]
        n = len(got)
        false, missed = (int(sum(row[key] for row in got)) for key in ("false", "missed"))
        spread = [text.delays([row[key] for row in got if not np.isnan(row[key])]) for key in ("suspected", "delay")]
        change = name in CHANGED
        row = [name, str(n), text.share(false, n), text.share(missed, n) if change else "-"]
        rows.append([*row, *(spread if change else ["-", "-"]), PUBLISHED.get(name, "-")])
        say(" | ".join(rows[-1]))
    return text.table(
        ["kind", "series", "false", "missed", "suspected", "confirmed", "prototype: false, or missed; confirmed"], rows
    )


def explain(kind: str, numbers: Sequence[int], sizes: Sizes) -> str:
    """What gh-bocd says of single series, with its evidence."""
    lines = []
    for number in numbers:
        made = make(kind, number, sizes.seed, sizes.figures)
        lines.append(f"{kind} {number}: {len(made.x)} iterations, labels {made.labels}")
        changes = ours(made)
        told = score(made.labels, changes, len(made.x))
        lines.append(f"  right {told.right}, false {len(told.false)}, missed {len(told.missed)}")
        lines += [
            f"  {c.type} {c.stage} {c.verdict} onset {c.onset_index} said {c.said_index} x{c.ratio:.3f} {c.why}"
            for c in changes
            if c.stage == "confirmed"
        ]
    return "\n".join(lines)
