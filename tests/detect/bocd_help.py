# SPDX-License-Identifier: Apache-2.0
"""Series and short forms for the tests of gh-bocd."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ghtools.detect.detector import Detector
from ghtools.detect.memory import Settings
from ghtools.detect.series import Model, Prior
from ghtools.detect.watch import Watch
from ghtools.stream.records import Change, Iters

MODEL = Model(Prior())


def noisy(n: int, *steps: tuple[int, int, float], level: float = 1.0, cv: float = 0.02, seed: int = 0) -> np.ndarray:
    """Seconds: noise of `cv` about `level`, times ratio between from and to for each step."""
    x = level * np.exp(cv * np.random.default_rng(seed).standard_normal(n))
    for begin, end, ratio in steps:
        x[begin:end] *= ratio
    return x


def iters(x: np.ndarray, rank: int = 0, first: int = 0, t0: int = 0, incarnation: int = 0) -> Iters:
    """A batch of steady iterations that follow each other."""
    dur = np.rint(np.asarray(x) * 1e9).astype("<i8")
    n = len(dur)
    return Iters(
        rank=rank,
        incarnation=incarnation,
        index=np.arange(first, first + n),
        t_ns=t0 + np.cumsum(dur) - dur,
        dur_ns=dur,
        phase=np.zeros(n, "u1"),
    )


def cut(rec: Iters, size: int) -> Iterable[Iters]:
    """The same iterations in batches of `size`."""
    for at in range(0, len(rec.index), size):
        part = {name: getattr(rec, name)[at : at + size] for name in ("index", "t_ns", "dur_ns", "phase")}
        yield Iters(rank=rec.rank, incarnation=rec.incarnation, **part)


def changes(x: np.ndarray, settings: Settings | None = None) -> list[Change]:
    """All rank-level changes of one series."""
    return list(Watch(0, MODEL, settings or Settings()).feed(iters(x)))


def confirmed(made: Iterable[Change]) -> list[tuple[str, str, int]]:
    """type, verdict and first iteration of the confirmed ones."""
    return [(c.type, c.verdict, c.onset_index) for c in made if c.stage == "confirmed"]


def job_changes(series: list[np.ndarray], size: int = 1) -> list[Change]:
    """Job-level changes of several ranks whose batches of `size` come by turns."""
    detector, made = Detector(), []
    for batch in zip(*(list(cut(iters(x, rank), size)) for rank, x in enumerate(series)), strict=True):
        for rec in batch:
            made += [c for c in detector.feed(rec) if c.level == "job"]
    return made
