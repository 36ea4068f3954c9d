# SPDX-License-Identifier: Apache-2.0
"""Synthetic iteration streams with planted truth: seeded, in bounded memory, the same bytes for the same seed.

Pure: the seed and the first time are arguments, pacing gets its clock and sleep. Calls are in synth_calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import GhError
from ghtools.stream.records import PHASE_CODE, Head, Iters, Job, Record

T0_NS = 1_767_225_600_000_000_000  # 2026-01-01 00:00:00 UTC: the first time of a stream that is not given one
BLOCK_VALUES = 1 << 18  # durations drawn at a time over all ranks
RESTART_PAUSE_NS = 30 * 10**9  # a restarted job is away this long


@dataclass(frozen=True)
class Planted:
    """One planted change of the iteration time.

    step: x ratio from `at` to before `end`. ramp: from x 1 at `at` to x ratio at `full`, then as a step.
    blip: x ratio at `at` alone. `rank` -1 is every rank; `end` -1 is for ever.
    """

    type: str
    at: int
    ratio: float
    rank: int = -1
    end: int = -1
    full: int = -1


@dataclass(frozen=True)
class Spec:
    """What to make. Counts are in iterations; `coupled` gives every rank the slowest rank's time, as a
    synchronous job shows it."""

    ranks: int = 4
    iters: int = 300
    iter_ns: int = 312_000_000
    noise_pct: float = 1.0
    tails: bool = False
    seed: int = 0
    changes: tuple[Planted, ...] = ()
    coupled: bool = False
    eval_every: int = 0
    eval_ratio: float = 2.0
    ckpt_every: int = 0
    ckpt_ratio: float = 4.0
    warmup: int = 0
    warmup_ratio: float = 3.0
    restarts: tuple[int, ...] = ()
    marked: bool = True
    batch: int = 64
    t0_ns: int = T0_NS
    job: str = field(default="synth")

    def check(self) -> None:
        """Raise GhError for what cannot be made."""
        if self.ranks < 1 or self.iters < 1 or self.iter_ns < 1 or self.batch < 1:
            raise GhError("cannot make this stream", "ranks, iterations, their time and the batch must be at least 1")
        for change in self.changes:
            if not 0 < change.ratio < 1e6:
                raise GhError("cannot plant a change", f"its ratio is {change.ratio}", "a ratio such as 1.5")
            if change.rank >= self.ranks:
                raise GhError("cannot plant a change", f"there is no rank {change.rank} of {self.ranks}")
            if change.at < 0 or -1 < change.end <= change.at or -1 < change.full < change.at:
                raise GhError("cannot plant a change", "it ends before it begins")


def truth(spec: Spec) -> dict[str, Any]:
    """The planted truth, for the head: what the stream is made of, and each change as a map."""
    extras = {}
    if spec.eval_every:
        extras["eval"] = {"every": spec.eval_every, "ratio": spec.eval_ratio}
    if spec.ckpt_every:
        extras["checkpoint"] = {"every": spec.ckpt_every, "ratio": spec.ckpt_ratio}
    return {
        "what": "iters",
        "seed": spec.seed,
        "ranks": spec.ranks,
        "iters": spec.iters,
        "iter_ns": spec.iter_ns,
        "noise_pct": spec.noise_pct,
        "tails": spec.tails,
        "coupled": spec.coupled,
        "changes": [asdict(change) for change in spec.changes],
        "extras": extras,
        "warmup": spec.warmup,
        "restarts": list(spec.restarts),
    }


def factors(spec: Spec, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """What planted changes multiply the time by: shape (iterations, ranks)."""
    made = np.ones((len(index), spec.ranks))
    for change in spec.changes:
        ranks = slice(None) if change.rank < 0 else slice(change.rank, change.rank + 1)
        if change.type == "blip":
            inside = index == change.at
        else:
            inside = (index >= change.at) & ((index < change.end) | (change.end < 0))
        ratio = np.full(len(index), change.ratio)
        if change.type == "ramp" and change.full > change.at:
            done = np.clip((index - change.at) / (change.full - change.at), 0.0, 1.0)
            ratio = 1 + (change.ratio - 1) * done
        made[inside, ranks] *= ratio[inside, None]
    return made


def phases(spec: Spec, index: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Phase code and time factor of each iteration, of what is planned and of warm-up; shape (iterations,)."""
    phase = np.zeros(len(index), np.uint8)
    factor = np.ones(len(index))
    for every, ratio in ((spec.eval_every, spec.eval_ratio), (spec.ckpt_every, spec.ckpt_ratio)):
        if every:
            now = (index % every == every - 1) & (index > 0)
            phase[now] = PHASE_CODE["outlier"]
            factor[now] *= ratio
    for start in (0, *spec.restarts):
        if spec.warmup:
            age = index - start
            young = (age >= 0) & (age < spec.warmup)
            phase[young] = PHASE_CODE["warmup"]
            factor[young] *= 1 + (spec.warmup_ratio - 1) * (1 - age[young] / spec.warmup) ** 2
        if start:
            phase[index == start] = PHASE_CODE["restart"]
    return phase, factor


def durations(spec: Spec) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]]:
    """Blocks of (index (n,), dur_ns (n, ranks), phase (n,)), drawn in order from one generator."""
    rng = np.random.default_rng(spec.seed)
    block = max(1, BLOCK_VALUES // spec.ranks)
    for first in range(0, spec.iters, block):
        index = np.arange(first, min(first + block, spec.iters), dtype=np.int64)
        shape = (len(index), spec.ranks)
        noise = rng.standard_t(3, shape) / np.sqrt(3.0) if spec.tails else rng.standard_normal(shape)
        value = np.exp(np.clip(noise * spec.noise_pct / 100, -0.5, 3.0))
        if spec.tails:  # garbage collection and the like: one iteration in a hundred, on its own rank
            value *= np.where(rng.random(shape) < 0.01, rng.uniform(1.3, 3.0, shape), 1.0)
        phase, planned = phases(spec, index)
        value *= factors(spec, index) * planned[:, None]
        if spec.coupled:
            value[:] = value.max(axis=1, keepdims=True)
        if not spec.marked:
            phase = np.zeros_like(phase)
        yield index, np.maximum(1, np.rint(value * spec.iter_ns)).astype(np.int64), phase


def cuts(index: NDArray[np.int64], batch: int, restarts: list[int]) -> Iterator[tuple[int, int]]:
    """Pieces of a block: at most `batch` iterations, a new one at each restart."""
    places = {0, *range(0, len(index), batch), *(restart - int(index[0]) for restart in restarts), len(index)}
    yield from pairwise(sorted(place for place in places if 0 <= place <= len(index)))


def iters(spec: Spec, head: Head) -> Iterator[Record]:
    """The whole stream but its end: head with the truth, the job, and batches of iterations rank by rank.

    Raises GhError for an impossible spec.
    """
    spec.check()
    head.job, head.t_ns, head.truth = spec.job, spec.t0_ns, truth(spec)
    yield head
    yield job_record(spec, spec.t0_ns, 0)
    clock = np.full(spec.ranks, spec.t0_ns, np.int64)
    incarnation = 0
    restarts = sorted(set(spec.restarts))
    for index, dur_ns, phase in durations(spec):
        for begin, end in cuts(index, spec.batch, restarts):
            if int(index[begin]) in restarts:
                incarnation += 1
                clock[:] = clock.max() + RESTART_PAUSE_NS
                yield job_record(spec, int(clock[0]), incarnation)
            part = dur_ns[begin:end]
            begins = clock + np.cumsum(part, axis=0) - part
            clock += part.sum(axis=0)
            for rank in range(spec.ranks):
                yield Iters(
                    rank=rank,
                    incarnation=incarnation,
                    index=index[begin:end],
                    t_ns=begins[:, rank],
                    dur_ns=part[:, rank],
                    phase=phase[begin:end],
                    calls=np.zeros(end - begin, np.int32),
                    seq=np.full(end - begin, -1, np.int64),
                )


def job_record(spec: Spec, t_ns: int, incarnation: int) -> Job:
    """The job of a synthetic stream, all ranks on one host."""
    ranks = [
        {"rank": rank, "local_rank": rank, "host": "synth", "incarnation": incarnation, "state": "running"}
        for rank in range(spec.ranks)
    ]
    return Job(job=spec.job, t_ns=t_ns, world_size=spec.ranks, backend="synth", ranks=ranks)


def when(record: Record) -> int | None:
    """When a live source would have said this record: the end of the last iteration or call in it."""
    t_ns = getattr(record, "t_ns", None)
    if not isinstance(t_ns, np.ndarray):
        return None
    if not len(t_ns):
        return None
    dur_ns = getattr(record, "dur_ns", t_ns * 0)
    return int(t_ns[-1]) + max(0, int(dur_ns[-1]))


def pace(
    records: Iterator[Record], speed: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[Record]:
    """Hold each record back until its time has come, `speed` times as fast as written; clocks in seconds."""
    began = clock()
    first: int | None = None
    for record in records:
        t_ns = when(record)
        if t_ns is not None:
            first = t_ns if first is None else first
            ahead = (t_ns - first) / 1e9 / speed - (clock() - began)
            if ahead > 0:
                sleep(ahead)
        yield record


def parse(steps: list[str], ramps: list[str], blips: list[str]) -> tuple[Planted, ...]:
    """Planted changes from their option texts; raises GhError naming the text that cannot be read."""
    made = [_planted("step", text, ("at", "ratio", "rank", "end")) for text in steps]
    made += [_planted("ramp", text, ("at", "ratio", "full", "rank", "end")) for text in ramps]
    made += [_planted("blip", text, ("at", "ratio", "rank")) for text in blips]
    return tuple(sorted(made, key=lambda change: change.at))


def _planted(kind: str, text: str, names: tuple[str, ...]) -> Planted:
    form = ":".join(names).upper()
    parts = text.split(":")
    if not 2 + (kind == "ramp") <= len(parts) <= len(names):
        raise GhError(f"cannot read the {kind} {text!r}", "it has the wrong number of parts", form)
    values: dict[str, Any] = {}
    try:
        for name, part in zip(names, parts, strict=False):
            if part in ("", "all") and name in ("rank", "end"):
                continue
            values[name] = float(part) if name == "ratio" else int(part)
    except ValueError:
        raise GhError(f"cannot read the {kind} {text!r}", "a part is not a number", form) from None
    return Planted(type=kind, **values)
