# SPDX-License-Identifier: Apache-2.0
"""A whole synthetic job's communication calls: all ranks of a layout, in step, with planted changes.

The calls of each rank come from synth_calls; here are the ranks' places in the layout, their communicators
with members, the common iteration times, and chunks so that memory stays bounded. Ranks are numbered as
Megatron does: tensor parallel fastest, then data parallel, then pipeline stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.errors import GhError
from ghtools.stream.records import Calls, Comm, Head, Job, Record

from . import synth
from .synth_calls import CallStream, Extras, Noise, call_stream, comm_id
from .synth_templates import DP, EP, FAMILIES, PP, SLOT_NAMES, TP, WORLD, Template, random_sizes, template

MAX_BATCH_CALLS = 1 << 16
EMBED = DP + 100  # slot of the tied embeddings: first and last stage


@dataclass(frozen=True)
class JobSpec:
    """Beside synth.Spec (times, changes, extras, restarts): the pattern of calls and the layout."""

    family: str = "ddp"
    layout: dict[str, int] = field(default_factory=dict)  # tp, dp, pp, ep
    sizes: dict[str, int] = field(default_factory=dict)  # of synth_templates.random_sizes
    log_every: int = 0
    lost_pct: float = 0.0

    def check(self) -> None:
        """Raise GhError for what cannot be made."""
        if self.family not in FAMILIES:
            raise GhError(f"cannot make calls of family {self.family}", "no such family", ", ".join(FAMILIES))
        if unknown := self.layout.keys() - {"tp", "dp", "pp", "ep"}:
            raise GhError("cannot read the layout", f"{min(unknown)} is no dimension", "tp=2,dp=2,pp=2")
        if any(not 1 <= count <= 1 << 16 for count in (*self.layout.values(), *self.sizes.values())):
            raise GhError("cannot make this layout", "each size must be at least 1 and at most 65,536")


def ranks_of(layout: dict[str, int]) -> int:
    """Ranks that a layout has; expert parallel lies inside data parallel."""
    return layout.get("tp", 1) * layout.get("dp", 1) * layout.get("pp", 1)


def parse_sizes(text: str) -> dict[str, int]:
    """tp=2,dp=2 as a dict; raises GhError."""
    made: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value.isascii() or not value.isdigit() or len(value) > 12:
            raise GhError(f"cannot read {part!r}", "it is not NAME=NUMBER", "tp=2,dp=2,pp=2")
        made[name.strip()] = int(value)
    return made


class _Place:
    """One rank of the layout: its template, and the real communicator in each slot."""

    def __init__(self, rank: int, spec: synth.Spec, job: JobSpec, base: dict[str, Any]) -> None:
        tp, dp, pp = (job.layout.get(name, 1) for name in ("tp", "dp", "pp"))
        t, d, p = rank % tp, rank // tp % dp, rank // (tp * dp)
        self.rank = rank
        sizes = {name: value for name, value in base.items() if name != "family"} | {"stage": p}
        self.template: Template = template(job.family, np.random.default_rng(spec.seed), **sizes)
        column = [t + tp * (d + dp * stage) for stage in range(pp)]
        row = [t + tp * (other + dp * p) for other in range(dp)]
        self._members = {
            WORLD: list(range(spec.ranks)),
            TP: [other + tp * (d + dp * p) for other in range(tp)],
            DP: row,
            PP: column,
            EP: row,
            EMBED: sorted({column[0], column[-1]}),
        }
        self._salt = spec.seed + 1

    def comm_of(self, slot: int) -> int:
        """Identity of this rank's communicator in a slot, equal on all its members."""
        return comm_id(slot, self._salt * 65_537 + self._members[slot][0])

    def comms(self) -> Iterator[Comm]:
        """A record for each communicator that the template uses."""
        for slot in sorted({call.slot for call in self.template.calls} | {WORLD}):
            members = self._members[slot]
            yield Comm(
                comm=self.comm_of(slot), rank=self.rank, comm_rank=members.index(self.rank), size=len(members),
                ranks=members, name=SLOT_NAMES.get(slot, "embedding"), backend="synth",
            )  # fmt: skip

    def swap_comms(self, calls: Calls) -> None:
        """Put the real communicators where call_stream used those of slots."""
        found, where = np.unique(calls.comm, return_inverse=True)
        by_slot = {comm_id(slot): self.comm_of(slot) for slot in self._members}
        calls.comm = np.array([by_slot[int(comm)] for comm in found], "<u8")[where]


def job_calls(spec: synth.Spec, job: JobSpec, head: Head) -> Iterator[Record]:
    """The whole stream but its end: head with the truth, the job, its communicators, batches of calls rank by rank.

    Raises GhError for an impossible spec.
    """
    spec.check()
    job.check()
    rng = np.random.default_rng(spec.seed)
    given = {"megatron": {"pp": 1}, "moe": {"pp": 1, "ep": job.layout.get("dp", 1)}}.get(job.family, {})
    if job.family in ("megatron", "moe", "pipeline"):
        given |= job.layout
    base = random_sizes(job.family, rng, **given)
    if unknown := job.sizes.keys() - base.keys():
        raise GhError(f"cannot set the size {min(unknown)}", f"{job.family} has none", ", ".join(sorted(base)))
    base |= job.sizes
    places = [_Place(rank, spec, job, base) for rank in range(spec.ranks)]
    head.job, head.t_ns = spec.job, spec.t0_ns
    head.truth = {
        **synth.truth(spec),
        "what": "calls",
        "family": job.family,
        "layout": dict(job.layout),
        "sizes": base,
        "calls_an_iteration": [len(place.template.calls) for place in places],
        "log_every": job.log_every,
        "lost_pct": job.lost_pct,
    }
    yield head
    yield _job(spec, job, spec.t0_ns, 0)
    for place in places:
        yield from place.comms()
    yield from _chunks(spec, job, places)


def _job(spec: synth.Spec, job: JobSpec, t_ns: int, incarnation: int) -> Job:
    record = synth.job_record(spec, t_ns, incarnation)
    record.layout = dict(job.layout)
    return record


def _chunks(spec: synth.Spec, job: JobSpec, places: list[_Place]) -> Iterator[Record]:
    """Calls of some iterations at a time, all ranks in step."""
    restarts = set(spec.restarts)
    begin_ns, incarnation = spec.t0_ns, 0
    count = [0] * spec.ranks  # calls so far in this incarnation
    told = [0] * spec.ranks  # the seq that comes next if none is lost
    for number, (first, each) in enumerate(_times(spec)):
        if first in restarts:
            incarnation += 1
            begin_ns += synth.RESTART_PAUSE_NS
            count, told = [0] * spec.ranks, [0] * spec.ranks
            yield _job(spec, job, begin_ns, incarnation)
        shared: np.ndarray[Any, Any] | None = None
        for place in places:
            made = _some(spec, job, place, number, first, each, begin_ns, incarnation)
            end = int(made.starts[-1])  # the last iteration is only there to tell where the one before ends
            shared = made.starts_ns if shared is None else shared
            calls = made.calls
            calls.t_ns = np.interp(calls.t_ns, made.starts_ns, shared).astype("<i8")
            place.swap_comms(calls)
            done, count[place.rank] = count[place.rank], count[place.rank] + end
            for part in made.batches(MAX_BATCH_CALLS):
                inside = int(np.searchsorted(part.seq, end))
                if not inside:
                    break
                part = _first(part, inside)
                part.seq = part.seq + done
                part.lost = int(part.seq[0]) - told[place.rank]
                told[place.rank] = int(part.seq[-1]) + 1
                yield part
        assert shared is not None
        begin_ns = int(shared[-1])


def _first(calls: Calls, count: int) -> Calls:
    from .synth_calls import take

    made = take(calls, slice(0, count))
    made.incarnation = calls.incarnation
    return made


def _times(spec: synth.Spec) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """(first iteration, time of each) by chunks that restarts and `batch` cut; shape (n,)."""
    plain = synth.Spec(**{**vars(spec), "eval_every": 0, "ckpt_every": 0, "coupled": True})  # those are calls here
    restarts = sorted(set(spec.restarts))
    for index, dur_ns, _ in synth.durations(plain):
        for begin, end in synth.cuts(index, spec.batch, restarts):
            yield int(index[begin]), dur_ns[begin:end, 0]


def _some(
    spec: synth.Spec,
    job: JobSpec,
    place: _Place,
    number: int,
    first: int,
    each: np.ndarray[Any, Any],
    begin_ns: int,
    incarnation: int,
) -> CallStream:
    """Calls of one rank over one chunk and one iteration more."""
    return call_stream(
        place.template,
        len(each) + 1,
        np.random.default_rng([spec.seed, number, place.rank]),
        iter_ns=np.append(each, each[-1]).astype(float),
        extras=Extras(log_every=job.log_every, eval_every=spec.eval_every, ckpt_every=spec.ckpt_every),
        noise=Noise(gap_cv=0.04, iter_cv=0.0, drop=job.lost_pct / 100),
        rank=place.rank,
        incarnation=incarnation,
        begin_ns=begin_ns,
        first_iter=first,
    )
