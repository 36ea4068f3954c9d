# SPDX-License-Identifier: Apache-2.0
"""Synthetic jobs whose calls carry durations: ranks that wait for each other, and faults planted in them.

A small simulator of a synchronous job: tensor parallel collectives inside each micro-batch, a 1F1B pipeline with
buffered sends, gradient reduction over data parallel groups (overlapped with the backward pass where there is no
pipeline), a small collective over the world, then the optimizer. Transfers take their own time; waiting comes out of
the simulation and is written nowhere by hand. Every rank's clock is its host's. Ranks are numbered as Megatron does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import GhError
from ghtools.stream.records import DTYPES, FLAG_ASYNC, FLAG_EXEC, OP_CODE, Calls, Change, Comm, Head, Iters, Job, Record

from .synth import T0_NS, Spec
from .synth_calls import comm_id

FAULTS = ("none", "compute", "input", "link", "edge", "host", "both", "imbalance", "uneven", "pauses", "common")
_BF16 = DTYPES.index("bfloat16")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ProfileSpec:
    """What to make. Times in ms; `at` is the first slow iteration (0 = from the start)."""

    tp: int = 1
    dp: int = 4
    pp: int = 1
    iters: int = 30
    micro: int = 4  # micro-batches a replica
    layers: int = 2  # tensor parallel collectives a pass of a micro-batch
    buckets: int = 4
    compute_ms: float = 40.0  # forward pass of a micro-batch; backward takes twice that
    optimizer_ms: float = 6.0
    dp_ms: float = 8.0  # transfer of one bucket
    tp_ms: float = 0.6
    edge_ms: float = 0.5
    world_ms: float = 0.3
    noise: float = 0.02  # of each piece of compute
    bias: float = 0.007  # steady differences between healthy ranks
    transfer_noise: float = 0.06
    ranks_per_host: int = 8
    clock_ms: float = 3.0  # how far hosts' clocks are apart
    fault: str = "none"
    ratio: float = 2.0
    rank: int = 0  # the slow rank; of a link, a member of the slow group; of an edge, the sender
    at: int = 0
    change: bool = False  # also write the confirmed change of the job that gh-bocd would
    durations: bool = True
    seed: int = 0
    t0_ns: int = T0_NS

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.tp * self.dp * self.pp

    def check(self) -> None:
        """Raise GhError for what cannot be made."""
        if min(self.tp, self.dp, self.pp, self.iters, self.micro, self.layers, self.buckets, self.ranks_per_host) < 1:
            raise GhError("cannot make this job", "all counts must be at least 1")
        if self.fault not in FAULTS:
            raise GhError(f"cannot plant {self.fault}", "no such fault", ", ".join(FAULTS))
        if not 0 <= self.rank < self.ranks:
            raise GhError("cannot plant a fault", f"there is no rank {self.rank} of {self.ranks}")
        if self.fault == "edge" and self.rank >= self.ranks - self.tp * self.dp:
            raise GhError("cannot plant a slow edge", f"rank {self.rank} sends to no later stage", "pp=2,rank=0")


@dataclass
class _Rows:
    """Calls of one stage in an iteration: each entry holds arrays of shape (dp, tp)."""

    op: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    slot: list[str] = field(default_factory=list)
    peer: list[int] = field(default_factory=list)
    entry: list[Floats] = field(default_factory=list)
    start: list[Floats] = field(default_factory=list)
    end: list[Floats] = field(default_factory=list)

    def add(self, op: str, size: int, slot: str, entry: Floats, start: Floats, end: Floats, peer: int = -1) -> None:
        self.op.append(OP_CODE[op])
        self.size.append(size)
        self.slot.append(slot)
        self.peer.append(peer)
        self.entry.append(entry.copy())
        self.start.append(start.copy())
        self.end.append(end)


class _Sim:
    """State of the job: `t[p]` is when each rank of stage p is free, shape (dp, tp), ms."""

    def __init__(self, spec: ProfileSpec) -> None:
        self.spec = spec
        self.rng = np.random.default_rng(spec.seed)
        self.shape = (spec.dp, spec.tp)
        self.t = [np.zeros(self.shape) for _ in range(spec.pp)]
        self.bias = [1 + spec.bias * self.rng.standard_normal(self.shape) for _ in range(spec.pp)]
        self.link_bias = {
            name: 1 + 0.02 * self.rng.standard_normal((spec.pp, *self.shape)) for name in ("tp", "dp", "pp")
        }
        self.place = (spec.rank // (spec.tp * spec.dp), spec.rank // spec.tp % spec.dp, spec.rank % spec.tp)
        numbers = np.arange(spec.ranks).reshape(spec.pp, spec.dp, spec.tp)
        self.host = numbers // spec.ranks_per_host
        self.slow = False
        self.i = 0
        self.rows = [_Rows() for _ in range(spec.pp)]
        self.uneven: Floats = np.ones((spec.dp, spec.micro))

    # -- how long things take --------------------------------------------------------------------------

    def work(self, p: int, ms: float, micro: int | None = None) -> Floats:
        """A piece of compute on every rank of a stage."""
        spec, fault = self.spec, self.spec.fault
        made = ms * self.bias[p] * np.exp(spec.noise * self.rng.standard_normal(self.shape))
        if self.slow:
            if fault in ("compute", "both") and p == self.place[0]:
                made[self.place[1:]] *= spec.ratio
            if fault == "common":
                made *= spec.ratio
        if fault == "imbalance" and p == spec.pp - 1 and (spec.pp > 1):
            made *= spec.ratio
        if fault == "uneven" and micro is not None:
            made *= self.uneven[:, micro][:, None]
        return made

    def transfer(self, kind: str, p: int, ms: float, to: int = -1) -> Floats:
        """A transfer for every rank of a stage; members of one group get the same."""
        spec, fault = self.spec, self.spec.fault
        made: Floats = ms * self.link_bias[kind][p] * np.exp(spec.transfer_noise * self.rng.standard_normal(self.shape))
        if kind == "dp":
            made = np.broadcast_to(made[:1], self.shape).copy()
            if self.slow and fault in ("link", "both") and p == self._link_stage():
                made[:, self._link_tp()] *= spec.ratio
            if self.slow and fault == "host":
                touched = (self.host[p] == self.host[self.place]).any(axis=0)
                crosses = np.array([len(set(self.host[p][:, t].tolist())) > 1 for t in range(spec.tp)])
                made[:, touched & crosses] *= spec.ratio
        elif kind == "tp":
            made = np.broadcast_to(made[:, :1], self.shape).copy()
        elif self.slow and fault == "edge" and p == self.place[0] and to == p + 1:
            made[self.place[1:]] *= spec.ratio
        return made

    def _link_stage(self) -> int:
        """With both faults the slow link lies elsewhere, so that the two can be told apart."""
        return (self.place[0] + (self.spec.fault == "both")) % self.spec.pp

    def _link_tp(self) -> int:
        return (self.place[2] + (self.spec.fault == "both" and self.spec.pp == 1)) % self.spec.tp

    # -- what ranks do ---------------------------------------------------------------------------------

    def meet(self, p: int, op: str, size: int, slot: str, kind: str, axis: int, ms: float) -> None:
        """A blocking collective along an axis of (dp, tp)."""
        entry = self.t[p]
        end = np.broadcast_to(entry.max(axis=axis, keepdims=True), self.shape) + self.transfer(kind, p, ms)
        self.rows[p].add(op, size, slot, entry, entry, end)
        self.t[p] = end.copy()

    def passes(self, p: int, ms: float, micro: int) -> None:
        """Forward or backward pass of one micro-batch."""
        spec = self.spec
        for _ in range(spec.layers):
            self.t[p] = self.t[p] + self.work(p, ms / spec.layers, micro)
            if spec.tp > 1:
                self.meet(p, "all_reduce", 1 << 24, "tp", "tp", 1, spec.tp_ms)

    def receive(self, p: int, source: int, sent: Floats, index: int, size: int) -> None:
        """Wait for what another stage has sent; the sender's row ends with it."""
        time = self.transfer("pp", source, self.spec.edge_ms, p)
        entry = self.t[p]
        end = np.maximum(entry, sent) + time
        self.rows[p].add("recv", size, "pp", entry, entry, end, source)
        self.rows[source].end[index] = end
        self.t[p] = end.copy()

    def pipeline(self) -> None:
        """All micro-batches through all stages, 1F1B."""
        spec = self.spec
        plans = [_one_f_one_b(p, spec.pp, spec.micro) for p in range(spec.pp)]
        at = [0] * spec.pp
        sent: dict[tuple[str, int, int], tuple[Floats, int]] = {}
        size = 1 << 22
        while any(at[p] < len(plans[p]) for p in range(spec.pp)):
            for p in range(spec.pp):
                while at[p] < len(plans[p]):
                    what, micro = plans[p][at[p]]
                    source = p - 1 if what == "F" else p + 1
                    needs = 0 <= source < spec.pp
                    if needs and (what, source, micro) not in sent:
                        break
                    if needs:
                        when, index = sent.pop((what, source, micro))
                        self.receive(p, source, when, index, size)
                    self.passes(p, spec.compute_ms * (1 if what == "F" else 2), micro)
                    to = p + 1 if what == "F" else p - 1
                    if 0 <= to < spec.pp:
                        now = self.t[p]
                        self.rows[p].add("send", size, "pp", now, now, now, to)
                        sent[what, p, micro] = (now.copy(), len(self.rows[p].op) - 1)
                    at[p] += 1

    def overlapped(self) -> None:
        """The last micro-batch of plain data parallel: buckets are reduced while the backward pass goes on."""
        spec = self.spec
        host = self.t[0]
        done = np.zeros(self.shape)
        for b in range(spec.buckets):
            host = host + self.work(0, 2 * spec.compute_ms / spec.buckets, spec.micro - 1)
            start = np.maximum(host, done)
            done = np.broadcast_to(start.max(axis=0, keepdims=True), self.shape) + self.transfer("dp", 0, spec.dp_ms)
            self.rows[0].add("all_reduce", (25 << 20) + b * 4096, "dp", host, start, done)
        self.t[0] = np.maximum(host, done)

    def iteration(self) -> None:
        """One step of training."""
        spec = self.spec
        self.slow = self.i >= spec.at
        self.rows = [_Rows() for _ in range(spec.pp)]
        if spec.fault == "uneven":
            self.uneven = np.exp(0.3 * self.rng.standard_normal((spec.dp, spec.micro)))
        if self.slow and spec.fault == "input":
            self.t[self.place[0]][self.place[1:]] += (spec.ratio - 1) * spec.compute_ms * spec.micro
        if spec.fault == "pauses" and self.rng.random() < 0.15:
            p, d, t = (int(self.rng.integers(n)) for n in (spec.pp, spec.dp, spec.tp))
            self.t[p][d, t] += spec.compute_ms * spec.micro * 3 * self.rng.uniform(0.2, 1.0)
        if spec.pp == 1 and spec.tp == 1:
            for micro in range(spec.micro - 1):
                self.t[0] = self.t[0] + self.work(0, 3 * spec.compute_ms, micro)
            self.t[0] = self.t[0] + self.work(0, spec.compute_ms, spec.micro - 1)
            self.overlapped()
        else:
            self.pipeline()
            for p in range(spec.pp):
                for b in range(spec.buckets if spec.dp > 1 else 0):
                    self.meet(p, "reduce_scatter", (25 << 20) + b * 4096, "dp", "dp", 0, spec.dp_ms)
            entry = [t.copy() for t in self.t]
            latest = max(float(t.max()) for t in entry)
            for p in range(spec.pp):
                end = np.full(self.shape, latest + spec.world_ms * float(np.exp(0.05 * self.rng.standard_normal())))
                self.rows[p].add("all_reduce", 4, "world", entry[p], entry[p], end)
                self.t[p] = end
        for p in range(spec.pp):
            self.t[p] = self.t[p] + self.work(p, spec.optimizer_ms)
        self.i += 1


def _one_f_one_b(p: int, pp: int, micro: int) -> list[tuple[str, int]]:
    """Order of forward and backward passes on a stage."""
    warm = min(pp - p - 1, micro)
    plan = [("F", m) for m in range(warm)]
    for m in range(micro - warm):
        plan += [("F", warm + m), ("B", m)]
    return plan + [("B", m) for m in range(micro - warm, micro)]


def parse(base: Spec, layout: dict[str, int], fault: str, noise: float) -> ProfileSpec:
    """A spec from gh-synth's options; `fault` is KIND[:RANK[:RATIO[:AT]]]. Raises GhError."""
    if unknown := layout.keys() - {"tp", "dp", "pp"}:
        raise GhError("cannot read the layout", f"{min(unknown)} is no dimension here", "tp=2,dp=2,pp=2")
    kind, *numbers = fault.split(":")
    try:
        rank = int(numbers[0]) if numbers else 0
        ratio = float(numbers[1]) if len(numbers) > 1 else 2.0
        at = int(numbers[2]) if len(numbers) > 2 else 0
    except ValueError:
        raise GhError(f"cannot read the fault {fault!r}", "a part is not a number", "compute:3:2:12") from None
    if len(numbers) > 3 or not 0 < ratio < 1e6 or not 0 <= at < base.iters:
        raise GhError(f"cannot plant {fault!r}", "it is not KIND:RANK:RATIO:AT within the stream", "compute:3:2:12")
    sizes = layout or {"dp": base.ranks}
    return ProfileSpec(
        tp=sizes.get("tp", 1), dp=sizes.get("dp", 1), pp=sizes.get("pp", 1), iters=base.iters, noise=noise, fault=kind,
        rank=rank, ratio=ratio, at=at, change=at >= 5 and kind not in ("none", "imbalance", "uneven", "pauses"),
        seed=base.seed, t0_ns=base.t0_ns,
    )  # fmt: skip


def truth(spec: ProfileSpec) -> dict[str, Any]:
    """What is planted, for the head."""
    return {"what": "profile", **asdict(spec), "ranks": spec.ranks, "parts": parts(spec)}


def parts(spec: ProfileSpec) -> list[dict[str, Any]]:
    """The parts that are slow and may be named: ranks and cause. Patterns that are nobody's fault have none."""
    numbers = np.arange(spec.ranks).reshape(spec.pp, spec.dp, spec.tp)
    p, t = spec.rank // (spec.tp * spec.dp), spec.rank % spec.tp
    made: list[dict[str, Any]] = []
    if spec.fault in ("compute", "input", "both"):
        made.append({"ranks": [spec.rank], "cause": "input" if spec.fault == "input" else "compute"})
    if spec.fault == "edge":
        made.append({"ranks": [spec.rank, spec.rank + spec.tp * spec.dp], "cause": "communication"})
    if spec.fault == "both":  # the link lies elsewhere
        p, t = (p + 1) % spec.pp, (t + (spec.pp == 1)) % spec.tp
    if spec.fault in ("link", "both"):
        made.append({"ranks": numbers[p, :, t].tolist(), "cause": "communication"})
    return made


def profile_job(spec: ProfileSpec, head: Head) -> Iterator[Record]:
    """The whole stream but its end: head with the truth, job, communicators, then iteration after iteration calls,
    executions and iterations of each rank. Raises GhError for an impossible spec."""
    spec.check()
    sim = _Sim(spec)
    head.job, head.t_ns, head.truth = "synth", spec.t0_ns, truth(spec)
    yield head
    host = sim.host.ravel()
    clock = np.round(1e6 * spec.clock_ms * sim.rng.standard_normal(int(host.max()) + 1)).astype(np.int64)
    yield Job(
        job="synth", t_ns=spec.t0_ns, world_size=spec.ranks, backend="synth",
        ranks=[
            {"rank": r, "local_rank": r % spec.ranks_per_host, "host": f"host{host[r]}", "state": "running"}
            for r in range(spec.ranks)
        ],
    )  # fmt: skip
    comms = _comms(spec)
    for ranks, comm, name in sorted(set(comms.values())):
        for place, rank in enumerate(ranks):
            yield Comm(
                comm=comm, rank=rank, comm_rank=place, size=len(ranks), ranks=list(ranks), name=name, backend="synth"
            )
    seq = np.zeros(spec.ranks, np.int64)
    begins: list[float] = []
    for i in range(spec.iters):
        began = [t.copy() for t in sim.t]
        begins.append(float(began[0].min()))
        sim.iteration()
        yield from _records(spec, sim, comms, began, seq, spec.t0_ns + clock[host], i)
        if spec.change and i == spec.at + 3:
            yield _change(spec, begins, i)


def _comms(spec: ProfileSpec) -> dict[tuple[str, int], tuple[tuple[int, ...], int, str]]:
    """(slot, rank) -> members, identity, name."""
    numbers = np.arange(spec.ranks).reshape(spec.pp, spec.dp, spec.tp)
    made: dict[tuple[str, int], tuple[tuple[int, ...], int, str]] = {}

    def put(slot: str, number: int, ranks: NDArray[Any]) -> None:
        members = tuple(int(rank) for rank in ranks)
        for rank in members:
            made[slot, rank] = (members, comm_id(number, spec.seed * 65_537 + members[0] + 1), slot)

    put("world", 0, numbers.ravel())
    for p in range(spec.pp):
        for d in range(spec.dp):
            put("tp", 1, numbers[p, d])
        for t in range(spec.tp):
            put("dp", 2, numbers[p, :, t])
    for d in range(spec.dp):
        for t in range(spec.tp):
            put("pp", 3, numbers[:, d, t])
    return made


def _records(
    spec: ProfileSpec,
    sim: _Sim,
    comms: dict[tuple[str, int], tuple[tuple[int, ...], int, str]],
    began: list[Floats],
    seq: NDArray[np.int64],
    zero: NDArray[np.int64],
    i: int,
) -> Iterator[Record]:
    """Calls, executions and the iteration of every rank."""
    for p in range(spec.pp):
        rows = sim.rows[p]
        n = len(rows.op)
        entry, start, end = (np.stack(column) for column in (rows.entry, rows.start, rows.end))
        for d in range(spec.dp):
            for t in range(spec.tp):
                rank = t + spec.tp * (d + spec.dp * p)
                at, zero_ns = int(seq[rank]), int(zero[rank])
                comm = np.array([comms[slot, rank][1] for slot in rows.slot], "<u8")

                def ns(ms: Floats, zero_ns: int = zero_ns) -> NDArray[np.int64]:
                    return zero_ns + np.rint(ms * 1e6).astype(np.int64)

                columns: dict[str, Any] = {
                    "op": np.array(rows.op, "u1"), "dtype": np.full(n, _BF16, "u1"), "peer": np.array(rows.peer, "<i4"),
                    "comm": comm, "bytes": np.array(rows.size, "<i8"), "seq": np.arange(at, at + n, dtype=np.int64),
                }  # fmt: skip
                dur = np.full(n, -1, np.int64)
                yield Calls(
                    rank=rank, t_ns=ns(entry[:, d, t]), flags=np.full(n, FLAG_ASYNC, "<u2"), dur_ns=dur, **columns
                )
                if spec.durations:
                    took = ns(end[:, d, t]) - ns(start[:, d, t])
                    yield Calls(
                        rank=rank, t_ns=ns(start[:, d, t]), flags=np.full(n, FLAG_EXEC, "<u2"), dur_ns=took, **columns
                    )
                first, last = ns(began[p][d, t]), ns(sim.t[p][d, t])
                yield Iters(
                    rank=rank, index=np.array([i]), t_ns=np.array([first]), dur_ns=np.array([last - first]),
                    phase=np.zeros(1, "u1"), calls=np.array([n], "<i4"), seq=np.array([at]),
                )  # fmt: skip
                seq[rank] += n


def _change(spec: ProfileSpec, begins: list[float], i: int) -> Change:
    """The onset as the job shows it."""
    each = np.diff(begins)
    before = float(np.median(each[: spec.at])) if spec.at else float(each[0])
    after = float(np.median(each[spec.at :]))
    return Change(
        type="onset", stage="confirmed", level="job", episode=1, verdict="fail-slow", before_ns=round(before * 1e6),
        after_ns=round(after * 1e6), ratio=after / before, onset_index=spec.at, said_index=i,
        onset_t_ns=spec.t0_ns + round(begins[spec.at] * 1e6), said_t_ns=spec.t0_ns + round(begins[-1] * 1e6),
    )  # fmt: skip
