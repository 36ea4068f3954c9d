# SPDX-License-Identifier: Apache-2.0
"""Per-operation times of a training job as parquet, in the columns of ByteDance's StragglerAnalysis (what-if).

The columns are dp_rank, stage, rank, step, optype, start_ts and duration (s, from the begin of the step); a tracer in a
Megatron-like job makes them, one row an operation. Sends, receives and collectives become executions with durations,
steps iterations, all other operations (forward-compute, optimizer) samples in seconds. The ranks of a tensor parallel
group are one. Sizes and clock times are not in it: steps are laid end to end from time 0, bandwidth cannot be told; who
waits least, and which stage computes longest, can. Needs pyarrow: pip install 'ghtools[parquet]'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.stream.errors import InputError, MissingError
from ghtools.stream.records import FLAG_BYTES_UNKNOWN, FLAG_EXEC, OP_CODE, Calls, Comm, Iters, Job, Record, Sample

from .comm_names import group_id
from .each_file import each_file, read_all
from .importers import File, Options

NAME = "what-if"
DOC = "per-operation times as parquet in the columns of ByteDance's StragglerAnalysis; needs pyarrow"

MAX_FILE_BYTES = 1 << 30
MAX_ROWS = 1 << 23
MAX_PARTS = 1 << 12  # batches a kind of record
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
# Operation -> code, and which group it runs in.
OPERATIONS: dict[str, tuple[str, str]] = {
    "forward-send": ("send", "pp"),
    "forward-recv": ("recv", "pp"),
    "backward-send": ("send", "pp"),
    "backward-recv": ("recv", "pp"),
    "grads-reduce-scatter": ("reduce_scatter", "dp"),
    "grads-all-reduce": ("all_reduce", "dp"),
    "params-all-gather": ("all_gather", "dp"),
    "layernorm-grads-all-reduce": ("all_reduce", "tp"),
    "embedding-grads-all-reduce": ("all_reduce", "embedding"),
}
# Stage of the other side, counted from this one.
PEER_STAGE = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}


def looks_like(first: bytes) -> bool:
    """Whether this is parquet; whether it is ours is for `read` to say."""
    return first[:4] == b"PAR1"


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Job, comm, and for each rank calls (executions), iters and samples, in memory of about the file unpacked.

    Steps are laid end to end from time 0, for start_ts counts from the begin of a step. InputError where a column is
    missing or holds what it should not, MissingError without pyarrow.
    """
    yield from each_file(files, lambda file: _read_file(file, options), options.warn)


@dataclass
class _Table:
    """The columns, in order of rank, step and time."""

    dp: NDArray[np.int64]
    stage: NDArray[np.int64]
    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    op: NDArray[np.int64]  # index into names
    begin_ns: NDArray[np.int64]  # from the begin of the step
    dur_ns: NDArray[np.int64]
    names: list[str]


def _read_file(file: File, options: Options) -> Iterator[Record]:
    table = _load(read_all(file, MAX_FILE_BYTES), file.name)
    ranks = np.unique(table.rank)
    place = {int(r): (int(table.dp[i]), int(table.stage[i])) for r, i in zip(ranks, _first(table.rank), strict=True)}
    tp = int(np.diff(ranks).min()) if len(ranks) > 1 else 1
    stages, replicas = len({s for _, s in place.values()}), len({d for d, _ in place.values()})
    yield Job(
        job=options.job, world_size=len(ranks) * tp, layout={"tp": tp, "dp": replicas, "pp": stages},
        ranks=[{"rank": rank, "host": "", "state": "ended"} for rank in place],
    )  # fmt: skip
    unknown = sorted(name for name in table.names if name.endswith(("-send", "-recv", "-reduce", "-gather", "-scatter"))
                     and name not in OPERATIONS)  # fmt: skip
    if unknown:
        options.warn(f"{file.name}: operations that are read as samples, not as communication: {', '.join(unknown)}")
    steps, at = np.unique(table.step, return_inverse=True)
    length = np.zeros(len(steps), np.int64)
    np.maximum.at(length, at, table.begin_ns + table.dur_ns)
    t_ns = (np.cumsum(length) - length)[at] + table.begin_ns
    groups = {what: _groups(what, place, stages, tp) for what in ("dp", "pp", "tp", "embedding")}
    ranked: dict[int, NDArray[np.int64]] = {}
    used: dict[int, dict[int, Comm]] = {}
    for rank in place:
        rows = np.flatnonzero(table.rank == rank)
        ranked[rank] = rows[np.argsort(t_ns[rows], kind="stable")]
        used[rank] = {}
        yield from _comms(rank, table, rows, groups, used[rank])
    # Some steps of all ranks at a time, as from a running job: who compares ranks need not hold all of one.
    parts = min(len(steps), max(MAX_PARTS // len(place), 1))
    calls = dict.fromkeys(place, 0)
    for chunk in np.array_split(np.arange(len(steps)), parts):
        mine = {rank: rows[(at[rows] >= chunk[0]) & (at[rows] <= chunk[-1])] for rank, rows in ranked.items()}
        for rank, rows in mine.items():
            made = _calls(rank, place, table, rows, t_ns, used[rank])
            made.seq += calls[rank]
            calls[rank] += len(made.seq)
            yield made
            yield from _samples(rank, place[rank], table, rows, t_ns)
        for rank, rows in mine.items():
            if len(rows):
                yield _iters(rank, table.step[rows], t_ns[rows], table.dur_ns[rows])


def _samples(
    rank: int, place: tuple[int, int], table: _Table, rows: NDArray[np.int64], t_ns: NDArray[np.int64]
) -> Iterator[Sample]:
    """What is no communication, by operation."""
    for number, name in enumerate(table.names):
        if name not in OPERATIONS and len(these := rows[table.op[rows] == number]):
            yield Sample(
                metric=name, unit="s", labels={"rank": rank, "stage": place[1], "dp_rank": place[0]},
                t_ns=t_ns[these], value=table.dur_ns[these] / 1e9,
            )  # fmt: skip


def _first(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(ranks, return_index=True)[1]


def _groups(what: str, place: dict[int, tuple[int, int]], stages: int, tp: int) -> dict[int, list[int]]:
    """Members of the group of each rank: same stage (dp), same replica (pp), both ends of the pipeline (embedding)."""
    if what == "tp":
        return {rank: list(range(rank, rank + tp)) for rank in place}
    last = max(stage for _, stage in place.values())
    kept = {r: (d, s) for r, (d, s) in place.items() if what != "embedding" or s in (0, last)}
    by: dict[int, list[int]] = {}
    for rank, (dp, stage) in kept.items():
        by.setdefault(stage if what == "dp" else dp, []).append(rank)
    return {rank: by[stage if what == "dp" else dp] for rank, (dp, stage) in kept.items()}


def _comms(
    rank: int, table: _Table, rows: NDArray[np.int64], groups: dict[str, dict[int, list[int]]], used: dict[int, Comm]
) -> Iterator[Comm]:
    """The groups this rank communicates in; fills `used` by operation."""
    said: dict[str, Comm] = {}
    for number in np.unique(table.op[rows]).tolist():
        if table.names[number] not in OPERATIONS:
            continue
        what = OPERATIONS[table.names[number]][1]
        if what not in said:
            members = groups[what].get(rank, [rank])
            said[what] = Comm(
                comm=group_id(what, members), rank=rank, comm_rank=members.index(rank), size=len(members),
                ranks=members, name=what,
            )  # fmt: skip
            yield said[what]
        used[number] = said[what]


def _calls(
    rank: int, place: dict[int, tuple[int, int]], table: _Table, rows: NDArray[np.int64], t_ns: NDArray[np.int64],
    used: dict[int, Comm],
) -> Calls:  # fmt: skip
    code, peer = np.zeros(len(table.names), np.uint8), np.full(len(table.names), -1, np.int32)
    comm = np.zeros(len(table.names), np.uint64)
    for number, group in used.items():
        name = table.names[number]
        code[number], comm[number] = OP_CODE[OPERATIONS[name][0]], group.comm
        stages = [place[member][1] for member in group.ranks if member in place]
        if name in PEER_STAGE and len(stages) > 1:
            other = (place[rank][1] + PEER_STAGE[name]) % (max(stages) + 1)  # interleaved stages wrap round
            peer[number] = stages.index(other) if other in stages else -1
    rows = rows[np.isin(table.op[rows], list(used))]
    op = table.op[rows]
    return Calls(
        rank=rank, t_ns=t_ns[rows], op=code[op], dtype=np.zeros(len(rows), np.uint8),
        flags=np.full(len(rows), FLAG_EXEC | FLAG_BYTES_UNKNOWN, np.uint16), peer=peer[op], comm=comm[op],
        bytes=np.zeros(len(rows), np.int64), seq=np.arange(len(rows)), dur_ns=table.dur_ns[rows],
    )  # fmt: skip


def _iters(rank: int, step: NDArray[np.int64], t_ns: NDArray[np.int64], dur_ns: NDArray[np.int64]) -> Iters:
    index, at = np.unique(step, return_inverse=True)
    begin, end = np.full(len(index), np.iinfo(np.int64).max), np.zeros(len(index), np.int64)
    np.minimum.at(begin, at, t_ns)
    np.maximum.at(end, at, t_ns + dur_ns)
    return Iters(
        rank=rank, index=index, t_ns=begin, dur_ns=end - begin, phase=np.zeros(len(index), np.uint8),
        calls=np.zeros(len(index), np.int32), seq=np.full(len(index), -1, np.int64),
    )  # fmt: skip


def _load(data: bytes, name: str) -> _Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingError(
            "cannot read parquet", "pyarrow is not installed", "pip install 'ghtools[parquet]'"
        ) from None
    try:
        source = pq.ParquetFile(pa.BufferReader(data))
        if absent := [column for column in COLUMNS if column not in source.schema_arrow.names]:
            raise InputError(f"bad input: {name}", f"it has no column {', '.join(absent)}")
        if source.metadata.num_rows > MAX_ROWS:
            raise InputError(f"bad input: {name}", f"over {MAX_ROWS} rows")
        table = source.read(columns=list(COLUMNS))
        whole = [_integers(table, column, name) for column in ("dp_rank", "stage", "rank", "step")]
        ops = table["optype"].combine_chunks().cast(pa.string()).dictionary_encode()
        if ops.null_count:
            raise InputError(f"bad input: {name}", "a row has no optype")
        times = [_nanoseconds(table, column, name) for column in ("start_ts", "duration")]
        names = [str(text)[:128] for text in ops.dictionary.to_pylist()]
        numbers = np.asarray(ops.indices.to_numpy(zero_copy_only=False), np.int64)
    except (pa.ArrowException, OSError, ValueError, NotImplementedError, OverflowError) as error:
        raise InputError(f"bad input: {name}", f"it is no sound parquet: {str(error).splitlines()[0][:160]}") from None
    if not len(numbers):
        raise InputError(f"bad input: {name}", "it has no rows")
    if any(
        len(np.unique(column)) > limit
        for column, limit in zip(whole, (1 << 16, 1 << 12, 1 << 16, 1 << 20), strict=True)
    ):
        raise InputError(f"bad input: {name}", "it has more ranks, stages or steps than a job can have")
    dp, stage, rank, step = whole
    return _Table(dp, stage, rank, step, numbers, times[0], times[1], names)


def _integers(table: Any, column: str, name: str) -> NDArray[np.int64]:
    found = table[column]
    if found.null_count or str(found.type) not in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
        raise InputError(f"bad input: {name}", f"column {column} is not all whole numbers")
    values = np.asarray(found.to_numpy(), np.int64)
    if len(values) and (values.min() < 0 or values.max() >= 1 << 31):
        raise InputError(f"bad input: {name}", f"column {column} has numbers out of range")
    return values


def _nanoseconds(table: Any, column: str, name: str) -> NDArray[np.int64]:
    found = table[column]
    if found.null_count or str(found.type) not in ("float", "double", "halffloat", "int32", "int64"):
        raise InputError(f"bad input: {name}", f"column {column} is not all numbers")
    with np.errstate(invalid="ignore"):  # a NaN of an odd kind; it is refused below
        values = np.asarray(found.to_numpy(), np.float64)
    if len(values) and not (np.isfinite(values).all() and values.min() >= 0 and values.max() < 1e6):
        raise InputError(f"bad input: {name}", f"column {column} has a value that is no time in seconds")
    return np.rint(values * 1e9).astype(np.int64)
