# SPDX-License-Identifier: Apache-2.0
"""Seeded populations of iteration times for measuring gh-bocd: quiet kinds N0-N8, kinds with a change P0-P10.

The kinds are those of ALGORITHMS.md section 1.4, so that figures can be compared; the generator is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LENGTH = 600


@dataclass
class Case:
    """Iteration times in seconds and what happens in them."""

    x: Floats
    onset: int = -1  # first iteration at which the change is whole
    starts: int = -1  # first iteration of anything unusual; -1 = none
    relief: int = -1
    down: bool = False


def base(rng: Generator, n: int, cv: float | None = None) -> tuple[Floats, float]:
    """A level of 0.3 to 30 s with Gaussian noise of 0.5 to 5 %; the log series and its CV."""
    cv = cv if cv is not None else float(rng.uniform(0.005, 0.05))
    return np.log(rng.uniform(0.3, 30)) + cv * rng.standard_normal(n), cv


def heavy(rng: Generator, y: Floats, cv: float) -> Floats:
    """Student t noise with 3 degrees, and garbage-collector pauses."""
    n = len(y)
    y = np.full(n, np.median(y)) + cv * rng.standard_t(3, n) / np.sqrt(3)
    pauses = rng.random(n) < rng.uniform(0.003, 0.02)
    return y + pauses * np.log(rng.uniform(1.3, 5, n))


def periodic(rng: Generator, y: Floats) -> Floats:
    """A checkpoint or an evaluation every 5 to 100 iterations."""
    y = y.copy()
    y[rng.integers(0, 5) :: rng.integers(5, 101)] += np.log(rng.uniform(1.2, 3))
    return y


def blips(rng: Generator, y: Floats) -> Floats:
    """3 to 9 isolated blips of 1 or 2 iterations."""
    y = y.copy()
    for _ in range(rng.integers(3, 10)):
        at = int(rng.integers(0, len(y) - 2))
        y[at : at + rng.integers(1, 3)] += np.log(rng.uniform(1.15, 3))
    return y


def correlated(rng: Generator, n: int) -> Floats:
    """AR(1) noise of 0.7, CV 1 to 4 %."""
    cv, phi = rng.uniform(0.01, 0.04), 0.7
    noise = rng.standard_normal(n) * cv * np.sqrt(1 - phi**2)
    for i in range(1, n):
        noise[i] += phi * noise[i - 1]
    return np.log(rng.uniform(0.3, 30)) + noise


def _noise(kind: str, rng: Generator, n: int) -> Floats:
    y, cv = base(rng, n)
    if kind in ("heavy", "all"):
        y = heavy(rng, y, cv)
    if kind in ("periodic", "all"):
        y = periodic(rng, y)
    if kind in ("blips", "all"):
        y = blips(rng, y)
    if kind == "ar":
        y = correlated(rng, n)
    return y


def quiet(kind: str) -> Callable[[Generator, int], Case]:
    return lambda rng, n: Case(np.exp(_noise(kind, rng, n)))


def n4(rng: Generator, n: int) -> Case:
    y, _ = base(rng, n)
    t = np.arange(n)
    y += np.log1p(rng.uniform(0, 0.05)) * t / n + 0.02 * np.sin(2 * np.pi * t / rng.uniform(50, 400))
    return Case(np.exp(y))


def n6(rng: Generator, n: int) -> Case:
    y, _ = base(rng, n)
    y[int(rng.integers(120, 420)) :] += np.log(rng.uniform(1.03, 1.07))
    return Case(np.exp(y))


def n7(rng: Generator, n: int) -> Case:
    y, _ = base(rng, n)
    return Case(np.exp(y + (rng.random(n) < rng.uniform(0.1, 0.9)) * np.log(rng.uniform(1.1, 1.5))))


def step(low: float, high: float, kind: str = "plain", down: bool = False) -> Callable[[Generator, int], Case]:
    def make(rng: Generator, n: int) -> Case:
        y, at = _noise(kind, rng, n), int(rng.integers(120, 420))
        size = rng.uniform(low, high)
        y[at:] += np.log(1 - size if down else 1 + size)
        return Case(np.exp(y), at, at, down=down)

    return make


def g15(rng: Generator, n: int) -> Case:
    """The goal's step: 15 % in 2 % noise."""
    y, at = base(rng, n, 0.02)[0], int(rng.integers(120, 420))
    y[at:] += np.log(1.15)
    return Case(np.exp(y), at, at)


def p5(rng: Generator, n: int) -> Case:
    y, at = _noise("plain", rng, n), int(rng.integers(120, 420))
    second = at + int(rng.integers(30, 81))
    y[at:] += np.log(rng.uniform(1.06, 1.08))
    y[second:] += np.log(rng.uniform(1.06, 1.08))
    return Case(np.exp(y), second, at)


def p6(rng: Generator, n: int) -> Case:
    y, at = _noise("plain", rng, n), int(rng.integers(120, 420))
    size = rng.uniform(0.15, 0.25)
    t = np.arange(n)
    y += np.log1p(size * np.clip((t - at) / 50, 0, 1))
    return Case(np.exp(y), at + int(np.ceil(50 * 0.10 / size)), at)


def p8(rng: Generator, n: int) -> Case:
    y, at = _noise("plain", rng, n), int(rng.integers(120, 420))
    end = at + int(rng.integers(20, 41))
    y[at:end] += np.log(rng.uniform(1.15, 1.5))
    return Case(np.exp(y), at, at, end)


QUIET: dict[str, Callable[[Generator, int], Case]] = {
    "N0": quiet("plain"), "N1": quiet("heavy"), "N2": quiet("periodic"), "N3": quiet("blips"), "N4": n4,
    "N5": quiet("ar"), "N6": n6, "N7": n7, "N8": quiet("all"),
}  # fmt: skip
CHANGED: dict[str, Callable[[Generator, int], Case]] = {
    "P0": step(0.10, 0.12), "P1": step(0.12, 0.15), "P2": step(0.15, 1.0), "P3": step(0.12, 0.15, "heavy"),
    "P4": step(0.12, 0.15, "periodic"), "P5": p5, "P6": p6, "P7": step(0.11, 0.15, down=True), "P8": p8,
    "P9": step(0.12, 0.15, "all"), "P10": step(0.12, 0.15, "ar"), "G15": g15,
}  # fmt: skip


def case(name: str, seed: int, number: int, n: int = LENGTH) -> Case:
    """Series `number` of that kind; the same arguments give the same series."""
    make = {**QUIET, **CHANGED}[name]
    return make(np.random.default_rng([seed, sum(map(ord, name)), number]), n)
