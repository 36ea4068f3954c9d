# SPDX-License-Identifier: Apache-2.0
"""The records of a stream: one dataclass a kind, one doc line a field (DESIGN section 3).

The man pages' INPUT and OUTPUT sections are printed from this file. Fields carry their unit in the
name. A field made with `col()` is a numpy column of a batch: all columns of one record have the same
length, and on the wire each is the raw little-endian bytes of that dtype. Keys that a record does not
know are kept in `extra` and written back unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

STREAM_MAJOR, STREAM_MINOR = 1, 0

# Communication operations. The order is the wire code and equals csrc/ops.h (a test compares them).
OPS: tuple[str, ...] = (
    "unknown",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
    "put_signal",
    "wait_signal",
)
OP_CODE: dict[str, int] = {name: code for code, name in enumerate(OPS)}

# Element types, numbered by ourselves (ncclDataType_t and at::ScalarType are mapped to these in csrc).
DTYPES: tuple[str, ...] = (
    "unknown", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
    "float32", "float64", "float8_e4m3", "float8_e5m2", "bool", "complex64", "complex128", "int16",
)  # fmt: skip

# Bits of `calls.flags`.
FLAG_DUR_INVALID = 1  # a duration was asked for and could not be trusted
FLAG_CAPTURE = 2  # the call was captured into a CUDA graph, not run
FLAG_GROUPED = 4  # the call was made between GroupStart and GroupEnd
FLAG_ASYNC = 8  # the call returned before its work was done
FLAG_BYTES_UNKNOWN = 16  # the size could not be read (bytes is 0)
FLAG_EXEC = 32  # not a call but its execution: t_ns is when it began to run, dur_ns how long it ran
FLAG_PAUSED = 64  # the rank was held before this call (a test at a boundary); the time up to it is not the job's

# Phases of `iters.phase`; the order is the wire code.
PHASES: tuple[str, ...] = (
    "steady",  # an ordinary iteration
    "warmup",  # among the first iterations of a job or after a restart
    "outlier",  # extra or missing calls: evaluation, logging, checkpoint
    "restart",  # the first iteration after a rank restarted
    "rearm",  # the first iteration after the pattern of calls changed
    "gap",  # calls were lost inside it; its duration is not trusted
)
PHASE_CODE: dict[str, int] = {name: code for code, name in enumerate(PHASES)}

Array = NDArray[Any]


def doc(text: str, **kw: Any) -> Any:
    """A plain field with its doc line."""
    return field(metadata={"doc": text}, **kw)


def col(dtype: str, text: str) -> Any:
    """A column of a batch: numpy `dtype` and a doc line."""
    return field(metadata={"doc": text, "dtype": dtype}, default_factory=lambda: np.empty(0, dtype))


@dataclass(kw_only=True, eq=False)
class Record:
    """Base of all records."""

    kind: ClassVar[str] = ""
    made_by: ClassVar[str] = ""
    extra: dict[str, Any] = doc("keys this version does not know; forwarded untouched", default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Head(Record):
    """First record of a stream: who made it."""

    kind: ClassVar[str] = "head"
    made_by: ClassVar[str] = "all"
    v: list[int] = doc("stream version [major, minor]", default_factory=lambda: [STREAM_MAJOR, STREAM_MINOR])
    tool: str = doc("command that made the stream", default="")
    version: str = doc("its version", default="")
    via: list[str] = doc("filters the stream has passed, in order", default_factory=list)
    host: str = doc("host name", default="")
    job: str = doc("job id, empty if none", default="")
    t_ns: int = doc("when the stream was begun, ns since the epoch", default=0)
    truth: dict[str, Any] = doc("what a synthetic stream has planted (gh-synth)", default_factory=dict)


@dataclass(kw_only=True, eq=False)
class End(Record):
    """Last record of a stream; without it the stage before died."""

    kind: ClassVar[str] = "end"
    made_by: ClassVar[str] = "all"
    count: int = doc("records written since the head", default=0)
    lost: int = doc("events known to be lost (overwritten in a ring, dropped by a bound)", default=0)
    reason: str = doc("why the stream ended; empty or 'done' is good, anything else is a cut", default="done")


@dataclass(kw_only=True, eq=False)
class Job(Record):
    """A job and its ranks; sent again whenever a rank appears, restarts or ends."""

    kind: ClassVar[str] = "job"
    made_by: ClassVar[str] = "gh-trace, gh-import, gh-synth"
    job: str = doc("job id", default="")
    t_ns: int = doc("when this was seen", default=0)
    world_size: int = doc("ranks the job should have, 0 = unknown", default=0)
    backend: str = doc("nccl, gloo, or a comma list", default="")
    ranks: list[dict[str, Any]] = doc(
        "one map a rank: rank, local_rank, host, pid, device, incarnation (0, 1, ...), state (running, ended, died)",
        default_factory=list,
    )
    layout: dict[str, int] = doc("parallel sizes where known: tp, dp, pp, ...", default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Comm(Record):
    """A communicator; sent before the first call on it, and again when more is known."""

    kind: ClassVar[str] = "comm"
    made_by: ClassVar[str] = "gh-trace, gh-import, gh-synth"
    comm: int = doc("identity, equal on all its ranks (unsigned 64-bit hash)", default=0)
    rank: int = doc("global rank that saw it", default=-1)
    comm_rank: int = doc("that rank's number inside the communicator, -1 = unknown", default=-1)
    size: int = doc("number of members", default=0)
    ranks: list[int] = doc("global ranks of the members, empty = not known yet", default_factory=list)
    name: str = doc("name or description if the library gave one", default="")
    backend: str = doc("nccl or gloo", default="")


@dataclass(kw_only=True, eq=False)
class Calls(Record):
    """A batch of communication calls of one rank, oldest first."""

    kind: ClassVar[str] = "calls"
    made_by: ClassVar[str] = "gh-trace, gh-import, gh-synth"
    rank: int = doc("global rank", default=0)
    incarnation: int = doc("0 for the first process of this rank, 1 after a restart, ...", default=0)
    lost: int = doc("calls lost immediately before this batch", default=0)
    t_ns: Array = col("<i8", "when the host entered the call, ns since the epoch")
    op: Array = col("u1", "operation (0 unknown, 1 all_reduce, 2 all_gather, ...: records.OPS)")
    dtype: Array = col("u1", "element type (records.DTYPES)")
    flags: Array = col(
        "<u2",
        "bits: 1 duration invalid, 2 captured, 4 grouped, 8 async, 16 size unknown, 32 execution, 64 held before it",
    )
    peer: Array = col("<i4", "peer (send, recv) or root inside the communicator, -1 = none")
    comm: Array = col("<u8", "communicator identity")
    bytes: Array = col("<i8", "message size in bytes, as the rank passed it")
    seq: Array = col("<i8", "number of the call in this process, from 0")
    dur_ns: Array = col("<i8", "measured duration, -1 = not measured")


@dataclass(kw_only=True, eq=False)
class Iters(Record):
    """A batch of iterations of one rank, oldest first."""

    kind: ClassVar[str] = "iters"
    made_by: ClassVar[str] = "gh-period, gh-import, gh-synth"
    rank: int = doc("global rank, -1 = the job as a whole (a log has no ranks)", default=0)
    incarnation: int = doc("as in calls", default=0)
    index: Array = col("<i8", "number of the iteration; a jump is a gap")
    t_ns: Array = col("<i8", "when it began, ns since the epoch (or since the first point of a log)")
    dur_ns: Array = col("<i8", "its duration")
    phase: Array = col("u1", "0 steady, 1 warmup, 2 outlier, 3 restart, 4 rearm, 5 gap (records.PHASES)")
    calls: Array = col("<i4", "communication calls inside it, 0 = not known")
    seq: Array = col("<i8", "seq of the call with which it began, -1 = not known")


@dataclass(kw_only=True, eq=False)
class Period(Record):
    """What gh-period believes an iteration of one rank is; sent when that changes."""

    kind: ClassVar[str] = "period"
    made_by: ClassVar[str] = "gh-period"
    rank: int = doc("global rank, -1 = all ranks agree on this", default=0)
    t_ns: int = doc("when it was said", default=0)
    state: str = doc("found, unknown or rearm", default="unknown")
    calls: int = doc("calls an iteration has, 0 = unknown", default=0)
    dur_ns: int = doc("median duration so far, 0 = unknown", default=0)
    method: str = doc("anchors, timing, ranks, acf or marker", default="")
    anchor: str = doc("the call that begins an iteration, for people", default="")
    confidence: float = doc("share of calls inside pieces that repeat, 0 to 1", default=0.0)
    candidates: list[dict[str, Any]] = doc(
        "what else it could be: calls, dur_ns, share, why (longest first)", default_factory=list
    )


@dataclass(kw_only=True, eq=False)
class Change(Record):
    """A change of the iteration time."""

    kind: ClassVar[str] = "change"
    made_by: ClassVar[str] = "gh-bocd"
    type: str = doc("onset (slower), relief (back or faster) or drift (slowly slower)", default="onset")
    stage: str = doc(
        "suspected (may be wrong, alerts nobody), confirmed, or withdrawn (a suspicion that passed)",
        default="suspected",
    )
    level: str = doc("rank or job", default="rank")
    rank: int = doc("global rank, -1 at level job", default=-1)
    episode: int = doc("number that onset, its updates and relief share, per rank or job", default=0)
    verdict: str = doc("fail-slow, recovered, warm-up, restart, planned, blip or unknown", default="unknown")
    before_ns: int = doc("iteration time before, median", default=0)
    after_ns: int = doc("iteration time after, median", default=0)
    ratio: float = doc("after / before", default=1.0)
    ratio_lo: float = doc("lower end of its 95 % interval", default=1.0)
    ratio_hi: float = doc("upper end of its 95 % interval", default=1.0)
    probability: float = doc("posterior mass of a change at look-back run lengths, 0 to 1", default=0.0)
    onset_index: int = doc("first iteration of the new level", default=0)
    said_index: int = doc("iteration at which this was said", default=0)
    onset_t_ns: int = doc("begin of iteration onset_index", default=0)
    said_t_ns: int = doc("end of iteration said_index", default=0)
    n_iters: int = doc("relief: iterations the episode lasted", default=0)
    lost_ns: int = doc("relief: time lost against the level before the episode", default=0)
    ranks: list[int] = doc("level job: the ranks that changed", default_factory=list)
    why: str = doc("evidence in a few words", default="")


@dataclass(kw_only=True, eq=False)
class Alert(Record):
    """One sentence for a person, and its fields for a machine."""

    kind: ClassVar[str] = "alert"
    made_by: ClassVar[str] = "gh-alert"
    id: str = doc("job/level/rank/episode: the same for onset, updates and relief", default="")
    state: str = doc("slow, drift, update, named, cleared, unnamed, recovered or stalled", default="slow")
    severity: str = doc("info, warning or critical", default="warning")
    text: str = doc("the sentence", default="")
    job: str = doc("job id", default="")
    level: str = doc("rank or job", default="job")
    rank: int = doc("rank, -1 for the job", default=-1)
    episode: int = doc("number of the episode, as in change", default=0)
    t_ns: int = doc("time of the change it speaks of", default=0)
    ratio: float = doc("after / before", default=1.0)
    before_ns: int = doc("iteration time before", default=0)
    after_ns: int = doc("iteration time after", default=0)
    onset_index: int = doc("first iteration of the change", default=0)
    said_index: int = doc("iteration at which it was confirmed", default=0)
    n_iters: int = doc("recovered: iterations the episode lasted", default=0)
    lost_ns: int = doc("recovered: what it cost", default=0)
    lost_pct: float = doc("recovered: the same as a share of the time the episode took, per cent", default=0.0)
    suspects: list[dict[str, Any]] = doc(
        "parts named for the episode so far: what, ranks, hosts, cause, ratio, since, verdict (attributed, confirmed), "
        "by (the test), why and test_ratio",
        default_factory=list,
    )


@dataclass(kw_only=True, eq=False)
class Suspect(Record):
    """A rank, link or group that may be slow (or stalled), with the evidence for it."""

    kind: ClassVar[str] = "suspect"
    made_by: ClassVar[str] = "gh-profile, gh-import"
    what: str = doc("rank, link, group, host or none", default="rank")
    ranks: list[int] = doc("the ranks it is about; a link: sender, receiver", default_factory=list)
    hosts: list[str] = doc("their hosts, where known", default_factory=list)
    comm: int = doc("the communicator it was seen on, 0 = several", default=0)
    cause: str = doc(
        "compute, communication, input, imbalance, host pause, common, stalled or unknown", default="unknown"
    )
    verdict: str = doc("attributed, cleared or inconclusive", default="inconclusive")
    ratio: float = doc("how many times slower than its peers, 0 = not measured", default=0.0)
    iters: int = doc("iterations of evidence", default=0)
    t_ns: int = doc("when it was said", default=0)
    text: str = doc("one sentence for people", default="")
    evidence: dict[str, Any] = doc("the numbers behind it", default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Gemm(Record):
    """One measured matrix multiplication or memory bandwidth test of one device."""

    kind: ClassVar[str] = "gemm"
    made_by: ClassVar[str] = "gh-validate-gemm"
    rank: int = doc("global rank, -1 = none", default=-1)
    host: str = doc("host name", default="")
    device: str = doc("cpu, or the UUID of a GPU", default="")
    test: str = doc("gemm or bandwidth", default="gemm")
    dtype: str = doc("element type", default="")
    size: int = doc("matrix edge, or bytes moved", default=0)
    repeat: int = doc("number of the repeat, from 0", default=0)
    dur_ns: int = doc("how long it took", default=0)
    rate: float = doc("TFLOP/s (gemm) or GB/s (bandwidth)", default=0.0)
    t_ns: int = doc("when it began", default=0)
    status: str = doc("ok, skipped or failed", default="ok")
    facts: dict[str, Any] = doc(
        "clocks, throttling, temperature, switches; what explains a number", default_factory=dict
    )


@dataclass(kw_only=True, eq=False)
class Link(Record):
    """One measured transfer between ranks, nodes or devices."""

    kind: ClassVar[str] = "link"
    made_by: ClassVar[str] = "gh-validate-ring, gh-import"
    test: str = doc("sendrecv, all_reduce, ...", default="sendrecv")
    ends: list[str] = doc("the two or more ends: rank, host or node names", default_factory=list)
    ranks: list[int] = doc("their ranks, empty = not known", default_factory=list)
    type: str = doc("nvlink, pcie, network, loopback or unknown", default="unknown")
    bytes: int = doc("message size", default=0)
    repeat: int = doc("number of the repeat, from 0", default=0)
    dur_ns: int = doc("how long one transfer took", default=0)
    algbw_gbps: float = doc("bytes / time, in GB/s (1e9), as nccl-tests", default=0.0)
    busbw_gbps: float = doc("bus bandwidth in GB/s, as nccl-tests", default=0.0)
    step: int = doc("pass of the schedule, from 0", default=0)
    t_ns: int = doc("when it began", default=0)
    status: str = doc("ok, skipped, failed or no result", default="ok")
    facts: dict[str, Any] = doc("devices, interfaces, GPUs per node and what else is known", default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Finding(Record):
    """A suspect that a test confirmed or cleared."""

    kind: ClassVar[str] = "finding"
    made_by: ClassVar[str] = "gh-validate-gemm, gh-validate-ring"
    what: str = doc("rank, link, host or device", default="rank")
    ranks: list[int] = doc("the ranks it is about", default_factory=list)
    hosts: list[str] = doc("their hosts", default_factory=list)
    cause: str = doc("as in suspect", default="unknown")
    verdict: str = doc("confirmed, cleared or could not tell", default="could not tell")
    ratio: float = doc("how many times slower the test found it, 0 = not measured", default=0.0)
    by: str = doc("the test that says so", default="")
    t_ns: int = doc("when it was said", default=0)
    text: str = doc("one sentence for people", default="")
    evidence: dict[str, Any] = doc("the numbers behind it", default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Sample(Record):
    """A batch of one metric series."""

    kind: ClassVar[str] = "sample"
    made_by: ClassVar[str] = "gh-watch, gh-import"
    metric: str = doc("name of the metric", default="")
    unit: str = doc("its unit, empty = not known", default="")
    labels: dict[str, Any] = doc("hostname, uuid, rank and what else names the series", default_factory=dict)
    t_ns: Array = col("<i8", "time of each sample")
    value: Array = col("<f8", "its value; NaN = no data")


KINDS: dict[str, type[Record]] = {
    r.kind: r for r in (Head, End, Job, Comm, Calls, Iters, Period, Change, Suspect, Gemm, Link, Finding, Alert, Sample)
}


@dataclass(kw_only=True, eq=False)
class Unknown(Record):
    """A record of a kind this version does not know: forwarded untouched from `extra`."""


def columns(cls: type[Record]) -> dict[str, str]:
    """Column name -> numpy dtype of a batch kind; empty for a plain record."""
    return {f.name: f.metadata["dtype"] for f in fields(cls) if "dtype" in f.metadata}
