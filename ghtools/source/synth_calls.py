# SPDX-License-Identifier: Apache-2.0
"""Synthetic streams of communication calls of one rank, seeded, with the truth beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.source.synth_templates import SLOT_NAMES, WORLD, Spec, Template, template
from ghtools.stream.records import DTYPES, OP_CODE, Calls, Comm

I64 = NDArray[np.int64]
_FLOAT32 = DTYPES.index("float32")
_SIZE_OF_SLOT = {2: "tp", 3: "dp", 4: "pp", 5: "ep"}


@dataclass(frozen=True)
class Extras:
    """Calls that are made only every so many iterations; 0 = never."""

    log_every: int = 0  # a scalar all_reduce
    eval_every: int = 0  # `eval_batches` forward passes and a few scalars
    eval_batches: int = 4
    ckpt_every: int = 0  # a barrier, small gathers, and a pause of several iterations

    @classmethod
    def random(cls, rng: np.random.Generator) -> Extras:
        """Usual intervals; each kind is there in two jobs of three."""
        some = rng.random(3) < 0.66
        return cls(
            log_every=int(rng.choice([5, 10, 20, 50])) if some[0] else 0,
            eval_every=int(rng.choice([17, 25, 50, 100])) if some[1] else 0,
            eval_batches=int(rng.integers(2, 9)),
            ckpt_every=int(rng.choice([29, 50, 100])) if some[2] else 0,
        )


@dataclass(frozen=True)
class Noise:
    """How far the host times and the order of calls stray."""

    gap_cv: float = 0.04  # of each gap
    iter_cv: float = 0.01  # common to all gaps of an iteration
    swap: float = 0.0  # chance that a `loose` call trades places with the one after it
    drop: float = 0.0  # chance that a call is lost in the ring


@dataclass
class CallStream:
    """What `call_stream` made: the calls, their communicators and what is true of them."""

    calls: Calls
    comms: list[Comm]
    starts: I64  # per iteration: seq of its first call
    starts_ns: I64  # per iteration: when the loop began it (the clock of the loop, before any call)
    regular: NDArray[np.bool_]  # per iteration: no extra call in it
    n_calls: int  # calls of an ordinary iteration
    template: Template
    extra: dict[str, Any] = field(default_factory=dict)

    def batches(self, size: int) -> list[Calls]:
        """The calls cut into records of `size`, `lost` set where seq jumps between two."""
        out, seq = [], self.calls.seq
        for lo in range(0, len(seq), size):
            part = take(self.calls, slice(lo, lo + size))
            part.lost = int(seq[lo] - seq[lo - 1] - 1) if lo else 0
            out.append(part)
        return out


def take(calls: Calls, where: slice | NDArray[Any]) -> Calls:
    """Rows `where` of a batch as a new record (views where numpy gives views)."""
    return Calls(
        rank=calls.rank, incarnation=calls.incarnation,
        t_ns=calls.t_ns[where], op=calls.op[where], dtype=calls.dtype[where], flags=calls.flags[where],
        peer=calls.peer[where], comm=calls.comm[where], bytes=calls.bytes[where], seq=calls.seq[where],
        dur_ns=calls.dur_ns[where],
    )  # fmt: skip


def comm_id(slot: int, salt: int = 0) -> int:
    """A 64-bit identity for the communicator in `slot`."""
    return ((slot + 1) * 0x9E3779B97F4A7C15 + salt * 0xC2B2AE3D27D4EB4F) % (1 << 64)


def call_stream(
    family: str | Template,
    n_iters: int,
    rng: np.random.Generator,
    *,
    iter_ns: float | NDArray[Any] = 250e6,
    extras: Extras | None = None,
    noise: Noise | None = None,
    rank: int = 0,
    incarnation: int = 0,
    start: int = 0,
    begin_ns: int = 1_700_000_000_000_000_000,
    first_iter: int = 0,
    salt: int = 0,
    sizes: dict[str, Any] | None = None,
) -> CallStream:
    """Calls of one rank over `n_iters` iterations.

    `family` is a name of synth_templates.FAMILIES (sizes drawn from `rng`, `sizes` overriding) or a
    template. `iter_ns` is the time of an ordinary iteration, one for all or one each, shape (n_iters,);
    extras come on top. `start` leaves out that many calls at the beginning (a tracer that was attached in
    the middle). `first_iter` shifts the numbers that extras count by. Deterministic for a given `rng`.
    """
    tmpl = template(family, rng, **(sizes or {})) if isinstance(family, str) else family
    extras, noise = extras or Extras(), noise or Noise()
    specs, number = _table(tmpl)
    body = np.array([number[s] for s in tmpl.calls], np.int64)
    forward = np.array([number[s] for s in tmpl.forward], np.int64)
    loose = np.flatnonzero([s.loose for s in tmpl.calls[:-1]])
    unit = sum(s.gap for s in tmpl.calls)
    each = np.broadcast_to(np.asarray(iter_ns, float), (n_iters,))
    scalar, barrier, small = len(specs) - 3, len(specs) - 2, len(specs) - 1

    rows: list[NDArray[np.int64]] = []
    scale: list[float] = []
    pause: list[float] = []  # before the first call of the row, in units
    regular = np.ones(n_iters, bool)
    began: list[int] = []  # row with which an iteration begins
    for i in range(n_iters):
        began.append(len(rows))
        row = body
        if noise.swap and len(loose):
            row = body.copy()
            for j in loose[rng.random(len(loose)) < noise.swap]:
                row[j], row[j + 1] = row[j + 1], row[j]
        rows.append(row)
        scale.append(each[i] / unit * float(rng.lognormal(0, noise.iter_cv)))
        pause.append(0.0)
        at = first_iter + i + 1
        for every, more, wait in (
            (extras.log_every, [scalar], 0.0),
            (extras.eval_every, [*np.tile(forward, extras.eval_batches), scalar, scalar], 0.3 * unit),
            (extras.ckpt_every, [barrier, small, small, small, barrier], 4.0 * unit),
        ):
            if every and at % every == 0:
                rows.append(np.array(more, np.int64))
                scale.append(each[i] / unit)
                pause.append(wait)
                regular[i] = False
    ids = np.concatenate(rows) if rows else np.empty(0, np.int64)
    lengths = np.array([len(r) for r in rows], np.int64)
    gaps = np.array([s.gap for s in specs])[ids] * np.repeat(scale, lengths) * rng.lognormal(0, noise.gap_cv, len(ids))
    first = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    gaps[first] += np.array(pause) * np.array(scale)
    t = begin_ns + np.cumsum(np.maximum(gaps, 300.0)).astype(np.int64)
    starts = first[began]
    starts_ns = np.where(starts > 0, t[starts - 1], begin_ns) if n_iters else np.empty(0, np.int64)
    keep = np.arange(len(ids)) >= start
    if noise.drop:
        keep &= rng.random(len(ids)) >= noise.drop
    slots = np.array([s.slot for s in specs], np.int64)
    comms = {s: comm_id(int(s), salt) for s in np.unique(slots)}
    calls = Calls(
        rank=rank,
        incarnation=incarnation,
        t_ns=t[keep],
        op=np.array([s.code for s in specs], "u1")[ids][keep],
        dtype=np.full(int(keep.sum()), _FLOAT32, "u1"),
        flags=np.zeros(int(keep.sum()), "<u2"),
        peer=np.array([s.peer for s in specs], "<i4")[ids][keep],
        comm=np.array([comms[s] for s in slots], "<u8")[ids][keep],
        bytes=np.array([s.bytes for s in specs], "<i8")[ids][keep],
        seq=np.flatnonzero(keep).astype("<i8"),
        dur_ns=np.full(int(keep.sum()), -1, "<i8"),
    )
    sized = {int(s): int(tmpl.sizes.get(_SIZE_OF_SLOT.get(int(s), ""), 0)) for s in comms}
    records = [
        Comm(comm=c, rank=rank, size=sized[int(s)], name=SLOT_NAMES.get(int(s), "embd")) for s, c in comms.items()
    ]
    return CallStream(calls, records, starts, starts_ns, regular, len(body), tmpl)


def _table(tmpl: Template) -> tuple[list[Spec], dict[Spec, int]]:
    """Distinct calls of a template and, last, those of the extras; and their numbers."""
    specs = list(dict.fromkeys([*tmpl.calls, *tmpl.forward]))
    number = {s: i for i, s in enumerate(specs)}
    extra = [
        Spec("all_reduce", 8, WORLD, gap=0.1),
        Spec("barrier", 0, WORLD, gap=0.3),
        Spec("gather", 2048, WORLD, 0, gap=0.2),
    ]
    assert all(s.op in OP_CODE for s in specs)
    return specs + extra, number
