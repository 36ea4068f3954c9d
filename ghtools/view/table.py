# SPDX-License-Identifier: Apache-2.0
"""Batches and jobs as rows: what gh-show prints under a record's line when it is expanded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ghtools.stream import records as r

from . import text

MAX_RANK_ROWS = 64  # a job of more ranks is shown by host
CHUNK_ROWS = 4096  # rows turned into Python objects at a time

FLAG_NAMES = {
    r.FLAG_DUR_INVALID: "dur-invalid",
    r.FLAG_CAPTURE: "capture",
    r.FLAG_GROUPED: "grouped",
    r.FLAG_ASYNC: "async",
    r.FLAG_BYTES_UNKNOWN: "size-unknown",
    r.FLAG_EXEC: "exec",
}


def name_of(names: tuple[str, ...], code: int, prefix: str) -> str:
    """Text of a wire code; a code of a newer version becomes prefix + number."""
    return names[code] if 0 <= code < len(names) else f"{prefix}{code}"


def flag_names(flags: int) -> str:
    """Bits of calls.flags as words; bits without a name stay a number."""
    words = [word for bit, word in FLAG_NAMES.items() if flags & bit]
    if rest := flags & ~sum(FLAG_NAMES):
        words.append(f"flags{rest}")
    return " ".join(words)


def _chunks(batch: r.Calls | r.Iters | r.Sample, names: list[str]) -> Iterator[Iterator[tuple[Any, ...]]]:
    columns = [getattr(batch, name) for name in names]
    for start in range(0, len(columns[0]), CHUNK_ROWS):
        yield zip(*(column[start : start + CHUNK_ROWS].tolist() for column in columns), strict=True)


def calls_rows(batch: r.Calls) -> Iterator[str]:
    """One line a call, of fixed width so that a live stream stays aligned."""
    yield (
        f"{'time':>15} {'rank':>5} {'seq':>9} {'op':<15}{'size':>8}  {'dtype':<9}{'comm':<7}"
        f"{'peer':>5} {'took':>8}  flags"
    )
    for rows in _chunks(batch, ["t_ns", "seq", "op", "bytes", "dtype", "comm", "peer", "dur_ns", "flags"]):
        for t_ns, seq, op, count, dtype, comm, peer, dur_ns, flags in rows:
            took = text.duration(dur_ns) if dur_ns >= 0 else "-"
            to = str(peer) if peer >= 0 else "-"
            yield (
                f"{text.clock(t_ns, fine=True):>15} {batch.rank:>5} {seq:>9} {name_of(r.OPS, op, 'op'):<15}"
                f"{text.size(count):>8}  {name_of(r.DTYPES, dtype, 'dtype'):<9}{text.short_comm(comm):<7}"
                f"{to:>5} {took:>8}  {flag_names(flags)}"
            ).rstrip()


def iters_rows(batch: r.Iters) -> Iterator[str]:
    """One line an iteration."""
    yield f"{'time':>15} {'rank':>5} {'iteration':>9} {'took':>8}  {'phase':<8} {'calls':>6} {'first seq':>9}"
    for rows in _chunks(batch, ["t_ns", "index", "dur_ns", "phase", "calls", "seq"]):
        for t_ns, index, dur_ns, phase, count, seq in rows:
            yield (
                f"{text.clock(t_ns, fine=True):>15} {batch.rank:>5} {index:>9} {text.duration(dur_ns):>8}  "
                f"{name_of(r.PHASES, phase, 'phase'):<8} {count or '-':>6} {seq if seq >= 0 else '-':>9}"
            )


def sample_rows(batch: r.Sample) -> Iterator[str]:
    """One line a sample."""
    yield f"{'time':>15} {'value':>14}  {batch.metric} {batch.unit}".rstrip()
    for rows in _chunks(batch, ["t_ns", "value"]):
        for t_ns, value in rows:
            yield f"{text.clock(t_ns, fine=True):>15} {value:>14.6g}"


def rows(record: r.Record) -> Iterator[str]:
    """The rows of a batch under a header; nothing for a plain record."""
    if isinstance(record, r.Calls):
        yield from calls_rows(record)
    elif isinstance(record, r.Iters):
        yield from iters_rows(record)
    elif isinstance(record, r.Sample):
        yield from sample_rows(record)


def job_rows(job: r.Job) -> Iterator[str]:
    """One line a rank, or one a host when the ranks are many, or one a state where no more is known of them."""
    if not job.ranks:
        return
    if not any(rank.get(name) not in (None, "") for rank in job.ranks for name in ("host", "pid", "device")):
        states: dict[str, list[int]] = {}
        for rank in job.ranks:
            number = rank.get("rank")
            states.setdefault(str(rank.get("state", "")), []).append(number if isinstance(number, int) else -1)
        for state, ranks in states.items():
            yield f"ranks {text.rank_list(ranks)}{': ' if state else ''}{state}"
        return
    if len(job.ranks) > MAX_RANK_ROWS:
        hosts: dict[str, list[int]] = {}
        for rank in job.ranks:
            number = rank.get("rank")
            hosts.setdefault(str(rank.get("host", "?")), []).append(number if isinstance(number, int) else -1)
        rows = [[host, str(len(ranks)), text.rank_list(ranks)] for host, ranks in hosts.items()]
        yield from text.aligned([["host", "ranks", "which"], *rows], " r")
        return
    names = ["rank", "local_rank", "host", "pid", "device", "incarnation", "state"]
    names = [name for name in names if any(name in rank for rank in job.ranks)]
    rows = [[str(rank.get(name, "-")) for name in names] for rank in job.ranks]
    yield from text.aligned([names, *rows], "".join("r" if n in ("rank", "local_rank", "pid") else " " for n in names))


def ops_summary(batch: r.Calls) -> str:
    """Calls and bytes by operation, the largest first."""
    counts: Counter[int] = Counter()
    volume: dict[int, int] = {}
    for op in np.unique(batch.op).tolist():
        chosen = batch.op == op
        counts[op] = int(np.count_nonzero(chosen))
        volume[op] = int(batch.bytes[chosen].astype(np.float64).sum())
    parts = [
        f"{name_of(r.OPS, op, 'op')} {count}" + (f" ({text.size(volume[op])})" if volume[op] > 0 else "")
        for op, count in counts.most_common(4)
    ]
    return ", ".join(parts) + (f" and {text.plural(len(counts) - 4, 'more kind')}" if len(counts) > 4 else "")
