# SPDX-License-Identifier: Apache-2.0
"""Seeded series for the detector's studies: kinds of noise, and what can happen to a job's iteration time.

Other kinds than those of populations.py, which the detector was tuned on. Times are in seconds.
"""

from __future__ import annotations

import csv
import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ghtools.detect.labels import Label

Floats = NDArray[np.float64]
RECORDED = Path(__file__).with_name("recorded_noise.csv")
BLOCK = 20  # iterations of recorded noise that stay together


@dataclass
class Made:
    """A series, its labels, and marks that a real stream would carry."""

    x: Floats
    labels: list[Label] = field(default_factory=list)
    restarts: tuple[int, ...] = ()  # a new process begins with these iterations
    schedule: tuple[int, ...] = ()  # changes that the detector is told of


def generator(seed: int, what: str, number: int) -> Generator:
    """The generator of series `number` of a kind; seeds never overlap between kinds."""
    return np.random.default_rng([seed, zlib.crc32(what.encode()), number])


# -- noise: log of the iteration time around its level ------------------------------------------------


def gauss(rng: Generator, n: int) -> Floats:
    return 0.02 * rng.standard_normal(n)


def calm(rng: Generator, n: int) -> Floats:
    return 0.005 * rng.standard_normal(n)


def pauses(rng: Generator, n: int) -> Floats:
    """Garbage collection: one iteration in 30 to 300 takes 1.2 to 4 times as long."""
    y = rng.uniform(0.005, 0.03) * rng.standard_normal(n)
    return y + (rng.random(n) < 1 / rng.uniform(30, 300)) * np.log(rng.uniform(1.2, 4, n))


def allocator(rng: Generator, n: int) -> Floats:
    """Allocator misses: 1 to 3 iterations, 5 to 60 % longer, every 30 or so, more at the begin, 4 or more apart."""
    y = rng.uniform(0.005, 0.02) * rng.standard_normal(n)
    at = 0
    while (at := at + 4 + int(rng.exponential(25 if at > 50 else 8))) < n:
        width = int(rng.integers(1, 4))
        y[at : at + width] += np.log(rng.uniform(1.05, 1.6))
        at += width
    return y


def lengths(rng: Generator, n: int) -> Floats:
    """Sequence-length jitter: the longest of a batch's sequences, so a skewed time, CV 2 to 10 %."""
    batch = int(rng.integers(4, 33))
    longest = rng.gamma(4.0, size=(n, batch)).max(axis=1)
    y = np.log(1 + rng.uniform(0.15, 0.5) * longest / np.median(longest))
    return y - np.median(y)


def heavy(rng: Generator, n: int) -> Floats:
    """Student t with 2 degrees of freedom about a 1 to 2 % scale."""
    return np.clip(rng.uniform(0.01, 0.02) * rng.standard_t(2, n), -0.4, 2.0)


def bimodal(rng: Generator, n: int) -> Floats:
    """Every iteration falls at random into one of two modes, 8 to 30 % apart."""
    y = rng.uniform(0.005, 0.02) * rng.standard_normal(n)
    return y + (rng.random(n) < rng.uniform(0.05, 0.45)) * np.log(rng.uniform(1.08, 1.3))


def evaluation(rng: Generator, n: int) -> Floats:
    """An evaluation, unmarked, every 10 to 100 iterations, 1 to 3 iterations long."""
    y = rng.uniform(0.005, 0.03) * rng.standard_normal(n)
    every, width, size = int(rng.integers(10, 101)), int(rng.integers(1, 4)), np.log(rng.uniform(1.2, 4))
    for at in range(int(rng.integers(0, every)), n, every):
        y[at : at + width] += size
    return y


def correlated(rng: Generator, n: int) -> Floats:
    """AR(1) with 0.8, CV 2 %: a shared network's slow breathing."""
    noise = rng.standard_normal(n) * 0.02 * np.sqrt(1 - 0.8**2)
    for i in range(1, n):
        noise[i] += 0.8 * noise[i - 1]
    return noise


def breathing(rng: Generator, n: int) -> Floats:
    """A sawtooth of up to 6 % over 100 to 500 iterations (growing memory, reset), on 1.5 % noise."""
    ramp = (np.arange(n) + rng.integers(0, 500)) / rng.integers(100, 501) % 1.0
    return 0.015 * rng.standard_normal(n) + np.log1p(rng.uniform(0.01, 0.06)) * ramp


@functools.cache
def _recorded() -> tuple[Floats, ...]:
    parts: dict[str, list[float]] = {}
    with RECORDED.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            parts.setdefault(row["part"], []).append(float(row["dur_us"]))
    return tuple(_detrended(np.log(values)) for values in parts.values())


def _detrended(y: Floats) -> Floats:
    """Without the host's own slow phases: less the running median of 21."""
    padded = np.concatenate((y[10:0:-1], y, y[-2:-12:-1]))
    return y - np.median(np.lib.stride_tricks.sliding_window_view(padded, 21), axis=1)


def recorded(rng: Generator, n: int) -> Floats:
    """Blocks of 20 iterations of real gloo jobs on a busy 2-core host, levels taken out: a CV of 20 % and more."""
    part = _recorded()[int(rng.integers(0, len(_recorded())))]
    begins = rng.integers(0, len(part) - BLOCK + 1, n // BLOCK + 1)
    return np.concatenate([part[b : b + BLOCK] for b in begins])[:n]


def half_recorded(rng: Generator, n: int) -> Floats:
    """The same at a fifth of its size: a CV of about 4 %."""
    return recorded(rng, n) / 5


NOISES: dict[str, Callable[[Generator, int], Floats]] = {
    "CV 2 %": gauss, "CV 0.5 %": calm, "GC pauses": pauses, "allocator misses": allocator,
    "sequence lengths": lengths, "heavy tails": heavy, "bimodal": bimodal, "evaluation": evaluation,
    "correlated": correlated, "sawtooth": breathing, "recorded / 5": half_recorded, "recorded": recorded,
}  # fmt: skip
# Those that a GPU job shows; the paper's populations are drawn with them.
REALISTIC = (
    "CV 2 %", "CV 0.5 %", "GC pauses", "allocator misses", "sequence lengths", "heavy tails", "bimodal", "evaluation",
)  # fmt: skip


def level(rng: Generator) -> float:
    """A job's iteration time, 0.2 to 30 s."""
    return float(np.exp(rng.uniform(np.log(0.2), np.log(30))))


# -- what happens ----------------------------------------------------------------------------------------


def step(noise: str, ratio: float, n: int = 600) -> Callable[[Generator], Made]:
    """A lasting step at 100 to 450; ratio 1 is a quiet series."""

    def make(rng: Generator) -> Made:
        y, at = NOISES[noise](rng, n), int(rng.integers(100, 451))
        y[at:] += np.log(ratio)
        return Made(level(rng) * np.exp(y), [Label(at, ratio=ratio)] if ratio != 1 else [])

    return make


def blip(rng: Generator) -> Made:
    """1 to 12 blips of one or two iterations, up to 10 times as long."""
    y = gauss(rng, 600)
    labels = []
    for at in np.sort(rng.choice(np.arange(20, 590, 6), int(rng.integers(1, 13)), replace=False)):
        width = int(rng.integers(1, 3))
        y[at : at + width] += np.log(rng.uniform(1.15, 10))
        labels.append(Label(int(at), int(at) + width, "blip"))
    return Made(level(rng) * np.exp(y), labels)


def slow_drift(rng: Generator) -> Made:
    """12 to 30 % over 200 to 400 iterations, then it stays."""
    y, at, size = gauss(rng, 900), int(rng.integers(100, 250)), rng.uniform(0.12, 0.30)
    full = at + int(rng.integers(200, 401))
    y += np.log1p(size * np.clip((np.arange(900) - at) / (full - at), 0, 1))
    return Made(level(rng) * np.exp(y), [Label(at, kind="drift", full=full, ratio=1 + size, within=100)])


def small_drift(rng: Generator) -> Made:
    """Up to 3 % over the whole series: nothing."""
    return Made(level(rng) * np.exp(gauss(rng, 900) + np.log1p(rng.uniform(0, 0.03)) * np.arange(900) / 900))


def ladder(rng: Generator) -> Made:
    """2 to 4 steps of 5 to 9 % each, 40 to 120 iterations apart, 12 % or more in all: found as drift."""
    while True:
        sizes = np.log1p(rng.uniform(0.05, 0.09, int(rng.integers(2, 5))))
        if sizes.sum() >= np.log(1.12):
            break
    y, at = gauss(rng, 900), int(rng.integers(100, 250))
    first, crossed, total = at, -1, 0.0
    for size in sizes:
        y[at:] += size
        total += size
        if crossed < 0 and total >= np.log(1.12):
            crossed = at
        at += int(rng.integers(40, 121))
    label = Label(first, kind="drift", full=crossed, ratio=float(np.exp(total)))
    return Made(level(rng) * np.exp(y), [label])


def small_loss(rng: Generator) -> Made:
    """5 to 6 % that last: found, if later."""
    y, at, size = 0.01 * rng.standard_normal(900), int(rng.integers(150, 400)), rng.uniform(0.05, 0.06)
    y[at:] += np.log1p(size)
    return Made(level(rng) * np.exp(y), [Label(at, kind="drift", ratio=1 + size, within=200)])


def recovery(rng: Generator) -> Made:
    """15 to 200 % for 15 to 200 iterations, and back."""
    y, at = gauss(rng, 700), int(rng.integers(100, 300))
    end, ratio = at + int(rng.integers(15, 201)), 1 + float(np.exp(rng.uniform(np.log(0.15), np.log(2))))
    y[at:end] += np.log(ratio)
    return Made(level(rng) * np.exp(y), [Label(at, end, ratio=ratio)])


def several(rng: Generator) -> Made:
    """Three to five episodes of 15 to 100 %, 20 to 100 iterations long, 40 to 150 apart."""
    y, at, labels = gauss(rng, 1500), int(rng.integers(60, 150)), []
    for _ in range(int(rng.integers(3, 6))):
        end, ratio = at + int(rng.integers(20, 101)), rng.uniform(1.15, 2)
        y[at:end] += np.log(ratio)
        labels.append(Label(at, end, ratio=float(ratio)))
        at = end + int(rng.integers(40, 151))
    return Made(level(rng) * np.exp(y), labels)


def _warm(rng: Generator, n: int) -> Floats:
    """The first 3 to 60 iterations take longer, the very first up to 50 times."""
    age, tau = np.arange(n), rng.uniform(2, 25)
    y = np.log1p(rng.uniform(0.1, 1.5) * np.exp(-age / tau))
    y[0] += np.log(rng.uniform(2, 50))
    return y


def warm_up(rng: Generator) -> Made:
    """A slow start, unmarked, then nothing."""
    return Made(level(rng) * np.exp(gauss(rng, 500) + _warm(rng, 500)), [Label(0, 100, "warm-up")])


def warm_up_step(rng: Generator) -> Made:
    """The first 50 to 90 iterations 7 to 10 % slow (as Mixtral's), then nothing."""
    y = gauss(rng, 500)
    y[: int(rng.integers(50, 91))] += np.log1p(rng.uniform(0.07, 0.10))
    return Made(level(rng) * np.exp(y + _warm(rng, 500)), [Label(0, 100, "warm-up")])


def restart(rng: Generator) -> Made:
    """A restart with a slow start, marked as a new process, and the same pace after it."""
    at = int(rng.integers(80, 400))
    y = gauss(rng, 600) + _warm(rng, 600)
    y[at:] += _warm(rng, 600 - at)
    return Made(level(rng) * np.exp(y), [Label(0, 100, "warm-up"), Label(at, at + 100, "restart")], restarts=(at,))


def restart_unmarked(rng: Generator) -> Made:
    """The same in a log that does not tell: up to 8 slow iterations are no episode."""
    at = int(rng.integers(120, 400))
    y = gauss(rng, 600)
    y[at : at + int(rng.integers(1, 4))] += np.log(rng.uniform(2, 50))
    return Made(level(rng) * np.exp(y), [Label(at, at + 30, "restart")])


def planned(told: bool) -> Callable[[Generator], Made]:
    """A batch size that changes on purpose, 20 to 100 %; the schedule given or not."""

    def make(rng: Generator) -> Made:
        y, at = gauss(rng, 600), int(rng.integers(100, 450))
        y[at:] += np.log(rng.uniform(1.2, 2))
        return Made(level(rng) * np.exp(y), [Label(at, kind="planned")], schedule=(at,) if told else ())

    return make


HARD: dict[str, Callable[[Generator], Made]] = {
    "blips of 1-2 iterations": blip, "drift of 12-30 %": slow_drift, "drift under 3 %": small_drift,
    "ladder under 10 %": ladder, "5-6 % that lasts": small_loss, "episode with recovery": recovery,
    "several episodes": several, "warm-up": warm_up, "warm-up 7-10 %": warm_up_step, "restart, marked": restart,
    "restart, unmarked": restart_unmarked, "planned, schedule given": planned(True),
    "planned, no schedule": planned(False),
}  # fmt: skip


# -- the paper's populations -------------------------------------------------------------------------------

DEPTHS = (1.10, 5.0)  # what is less is no fail-slow by the paper's own threshold


def curve(path: Path) -> tuple[Floats, Floats]:
    """A CDF read from a figure: values and shares, both rising."""
    rows = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return rows[:, 0], np.maximum.accumulate(np.clip(rows[:, 1], 0, 1))


def draw(rng: Generator, cdf: tuple[Floats, Floats]) -> float:
    """One value of the distribution."""
    values, shares = cdf
    return float(np.interp(rng.uniform(shares[0], shares[-1]), shares, values))


@dataclass(frozen=True)
class Population:
    """Jobs of one of the paper's tables; lengths are minutes, `iter_s` the range of the iteration time."""

    name: str
    jobs: int
    slow: tuple[tuple[str, int], ...]  # (curve of durations, jobs that have such a fault)
    slowdown: str  # curve of the JCT's slowdown, per cent
    job_min: tuple[float, float]
    iter_s: tuple[float, float]


TABLE_3 = Population("Table 3: one node", 392, (("comp", 4), ("comp", 2)), "1node", (60, 90), (1.0, 4.0))
TABLE_4 = Population("Table 4: four nodes", 107, (("comm", 42), ("comp", 1)), "4node", (120, 480), (4.0, 12.0))


def job_of(population: Population, number: int, rng: Generator, figures: Path, noises: tuple[str, ...]) -> Made:
    """Job `number` of a population; those that are slow come first.

    Of Figure 1 come how long a fail-slow lasts and how much longer the job took; the depth follows from both and
    the job's length. Draws that give less than 10 %, or over 5 times, or under 8 iterations, are drawn again.
    """
    noise, iter_s = noises[int(rng.integers(0, len(noises)))], float(rng.uniform(*population.iter_s))
    kinds = [kind for kind, count in population.slow for _ in range(count)]
    n = int(rng.uniform(*population.job_min) * 60 / iter_s)
    y = NOISES[noise](rng, n)
    if number >= len(kinds):
        return Made(iter_s * np.exp(y))
    durations = curve(figures / f"atc25_fig1_cdf_duration_{kinds[number]}.csv")
    slowdowns = curve(figures / f"atc25_fig1_cdf_jct_slowdown_{population.slowdown}.csv")
    while True:
        lasts_s, loss = draw(rng, durations) * 60, draw(rng, slowdowns) / 100
        lost_s = loss * n * iter_s
        ratio = lasts_s / (lasts_s - lost_s) if lost_s < lasts_s else np.inf
        count = int(lasts_s / (iter_s * ratio)) if ratio < np.inf else 0
        if DEPTHS[0] <= ratio <= DEPTHS[1] and 8 <= count <= n - 120:
            break
    at = int(rng.integers(60, n - count - 30))
    y[at : at + count] += np.log(ratio)
    return Made(iter_s * np.exp(y), [Label(at, at + count, ratio=float(ratio), within=count + 60)])
