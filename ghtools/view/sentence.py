# SPDX-License-Identifier: Apache-2.0
"""Each kind of record as one sentence for a person."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from ghtools.stream import records as r

from . import table, text


def time_of(record: r.Record) -> int | None:
    """The time a record speaks of, ns, or None."""
    if isinstance(record, r.Calls | r.Iters):
        return int(record.t_ns[-1]) if len(record.t_ns) else None
    if isinstance(record, r.Sample):  # a table of results names no time at all
        return int(record.t_ns[-1]) or None if len(record.t_ns) else None
    if isinstance(record, r.Change):
        return record.said_t_ns or record.onset_t_ns or None
    value = record.extra.get("t_ns") if isinstance(record, r.Unknown) else getattr(record, "t_ns", 0)
    return value if isinstance(value, int) and value != 0 else None


def kind_of(record: r.Record) -> str:
    """The record's kind, of unknown kinds too."""
    return str(record.extra.get("kind", "?")) if isinstance(record, r.Unknown) else record.kind


def rank_of(record: r.Record) -> str:
    """The rank a record speaks of, as text; 'all' for the job, empty if it has none."""
    if isinstance(record, r.Unknown):
        value = record.extra.get("rank")
        return str(value) if isinstance(value, int) else ""
    rank = getattr(record, "rank", None)
    if rank is None:
        return ""
    return "all" if rank == -1 else str(rank)


def sentence(record: r.Record) -> str:
    """What the record says, on one line."""
    if isinstance(record, r.Unknown):
        return _pairs({key: value for key, value in record.extra.items() if key not in ("kind", "rank", "t_ns")})
    words = {
        r.Head: _head, r.End: _end, r.Job: _job, r.Comm: _comm, r.Calls: _calls, r.Iters: _iters,
        r.Period: _period, r.Change: _change, r.Alert: _alert, r.Suspect: _suspect, r.Finding: _suspect,
        r.Gemm: _gemm, r.Link: _link, r.Sample: _sample,
    }  # fmt: skip
    say: Any = words.get(type(record))
    line = say(record) if say else _pairs(vars(record))
    return one_line(line + (f"; also {_pairs(record.extra)}" if record.extra else ""))


def one_line(line: str) -> str:
    """Control characters (a hostile name with an escape sequence, a line feed) made visible."""
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def _pairs(values: dict[str, Any]) -> str:
    """Unknown content, cut to what fits a line."""

    def short(value: object) -> str:
        if isinstance(value, bytes):
            return f"<{len(value)} bytes>"
        shown = json.dumps(value, default=str, ensure_ascii=False) if not isinstance(value, str) else value
        return shown if len(shown) <= 60 else shown[:57] + "..."

    return one_line(" ".join(f"{key}={short(value)}" for key, value in list(values.items())[:24]))


def _head(head: r.Head) -> str:
    made = f"{head.tool or 'unknown tool'} {head.version}".rstrip()
    parts = [f"stream {'.'.join(map(str, head.v))} by {made}"]
    if head.via:
        parts.append("via " + " ".join(head.via))
    if head.host:
        parts.append(f"on {head.host}")
    if head.job:
        parts.append(f"job {head.job}")
    if head.truth:
        changes = head.truth.get("changes")
        planted = text.plural(len(changes), "change") if isinstance(changes, list) else "truth"
        parts.append(f"synthetic with {planted} planted")
    return ", ".join(parts)


def _end(end: r.End) -> str:
    # An end that the reader made up for a cut stream counts nothing.
    parts = [text.plural(end.count, "record")] if end.count or end.reason in ("", "done") else []
    if end.lost:
        parts.append(f"{end.lost} events lost")
    parts.append(end.reason or "done")
    return ", ".join(parts)


def _job(job: r.Job) -> str:
    ranks = len(job.ranks)
    hosts = len({str(rank.get("host", "")) for rank in job.ranks})
    states = Counter(str(rank.get("state", "")) for rank in job.ranks)
    parts = [f"job {job.job or '(no id)'}: {text.plural(ranks, 'rank')}"]
    if job.world_size and job.world_size != ranks:
        parts[0] += f" of {job.world_size}"
    if hosts > 1:
        parts[0] += f" on {hosts} hosts"
    if job.backend:
        parts.append(job.backend)
    if job.layout:
        parts.append(" ".join(f"{name}={count}" for name, count in job.layout.items()))
    parts += [f"{count} {state}" for state, count in states.items() if state]
    return ", ".join(parts)


def _comm(comm: r.Comm) -> str:
    name = f" {comm.name}" if comm.name else ""
    where = f", number {comm.comm_rank} in it" if comm.comm_rank >= 0 else ""
    members = f": ranks {text.rank_list(comm.ranks)}" if comm.ranks else ""
    backend = f" {comm.backend}" if comm.backend else ""
    return f"communicator {text.short_comm(comm.comm)}{name},{backend} {comm.size} members{members}{where}"


def _calls(calls: r.Calls) -> str:
    count = len(calls.t_ns)
    lost = f"; {calls.lost} lost before" if calls.lost else ""
    again = f" (incarnation {calls.incarnation})" if calls.incarnation else ""
    if not count:
        return f"no calls{again}{lost}"
    if count == 1:
        op = table.name_of(r.OPS, int(calls.op[0]), "op")
        took = f" took {text.duration(int(calls.dur_ns[0]))}" if calls.dur_ns[0] >= 0 else ""
        flags = table.flag_names(int(calls.flags[0]))
        return (
            f"{op} {text.size(int(calls.bytes[0]))} {table.name_of(r.DTYPES, int(calls.dtype[0]), 'dtype')}"
            f" on {text.short_comm(int(calls.comm[0]))}, seq {int(calls.seq[0])}{took}"
            f"{' ' + flags if flags else ''}{again}{lost}"
        )
    span = text.duration(int(calls.t_ns[-1]) - int(calls.t_ns[0]))
    comms = text.plural(len(np.unique(calls.comm)), "communicator")
    what = "executions" if (calls.flags & r.FLAG_EXEC).all() else "calls"
    measured = calls.dur_ns[calls.dur_ns >= 0]
    each = ""
    if len(measured):
        low, high, whole = (text.duration(int(ns)) for ns in (measured.min(), measured.max(), measured.sum()))
        each = f"; took {low} to {high}, {whole} in all"
    return f"{count} {what} in {span}: {table.ops_summary(calls)}{each}; {comms}{again}{lost}"


def _iters(iters: r.Iters) -> str:
    count = len(iters.index)
    again = f" (incarnation {iters.incarnation})" if iters.incarnation else ""
    if not count:
        return f"no iterations{again}"
    names = [table.name_of(r.PHASES, int(code), "phase") for code in iters.phase[:1]]
    if count == 1:
        phase = "" if names[0] == "steady" else f", {names[0]}"
        made = f", {text.plural(int(iters.calls[0]), 'call')}" if iters.calls[0] > 0 else ""
        return f"iteration {int(iters.index[0])}: {text.duration(int(iters.dur_ns[0]))}{made}{phase}{again}"
    low, middle, high = (text.duration(float(q)) for q in np.quantile(iters.dur_ns, (0.0, 0.5, 1.0)))
    codes, counts = np.unique(iters.phase, return_counts=True)
    odd = [
        f"{number} {table.name_of(r.PHASES, code, 'phase')}"
        for code, number in zip(codes.tolist(), counts.tolist(), strict=True)
        if code
    ]
    first, last = int(iters.index[0]), int(iters.index[-1])
    return f"iterations {first}-{last}: median {middle}, {low} to {high}" + "".join(f", {o}" for o in odd) + again


def _period(period: r.Period) -> str:
    who = "all ranks agree" if period.rank == -1 else f"rank {period.rank}"
    if period.state == "found":
        took = f"{text.duration(period.dur_ns)}, " if period.dur_ns else ""
        anchor = f", begins with {period.anchor}" if period.anchor else ""
        method = f" ({period.method}, {period.confidence:.0%} of calls repeat)" if period.method else ""
        return f"iteration found: {took}{text.plural(period.calls, 'call')}, {who}{anchor}{method}"
    if period.state == "rearm":
        return f"the pattern of calls changed: looking for the iteration again, {who}"
    others = f"; {len(period.candidates)} candidates" if period.candidates else ""
    return f"what an iteration is cannot be told yet, {who}{others}"


def _change(change: r.Change) -> str:
    who = "job" if change.level == "job" else f"rank {change.rank}"
    step = f"{text.duration(change.before_ns)} -> {text.duration(change.after_ns)} ({text.per_cent(change.ratio)})"
    if change.type == "relief":
        what = f"{who} back since iteration {change.onset_index}: {step}"
    elif change.type == "drift":
        what = f"{who} slowly slower, about since iteration {change.onset_index}: {step}"
    else:
        what = f"{who} slow since iteration {change.onset_index}: {step}"
    parts = [what, f"{change.stage} at {change.said_index}", change.verdict]
    if change.type == "relief" and change.lost_ns:
        parts.append(f"the episode cost {text.duration(change.lost_ns)} over {change.n_iters} iterations")
    if change.level == "job" and change.ranks:
        parts.append(f"ranks {text.rank_list(change.ranks)}")
    if change.why:
        parts.append(change.why)
    return ", ".join(parts)


def _alert(alert: r.Alert) -> str:
    return f"{alert.severity}: {alert.text or alert.state}"


def _suspect(record: r.Suspect | r.Finding) -> str:
    if record.what == "none":
        who = "nobody"
    elif record.what == "link" and len(record.ranks) == 2:
        who = f"link {record.ranks[0]} -> {record.ranks[1]}"
    else:
        ranks = "ranks " if record.what == "host" else ""  # a host's number is none of a rank
        who = record.what + (f" {ranks}{text.rank_list(record.ranks)}" if record.ranks else "")
    parts = [f"{who}: {record.verdict}, {record.cause}"]
    if record.hosts:
        parts.append("on " + " ".join(record.hosts[:4]) + (" ..." if len(record.hosts) > 4 else ""))
    if record.ratio:
        parts.append(f"{record.ratio:.3g} times as slow as its peers")
    if isinstance(record, r.Finding) and record.by:
        parts.append(f"by {record.by}")
    return ", ".join(parts) + (f": {record.text}" if record.text else "")


def _gemm(gemm: r.Gemm) -> str:
    if gemm.test == "gemm":
        what, unit = f"gemm {gemm.dtype} {gemm.size}", "TFLOP/s"
    else:
        what, unit = f"{gemm.test} {text.size(gemm.size)}", "GB/s"
    where = " ".join(part for part in (gemm.host, gemm.device) if part)
    result = f"{gemm.rate:.4g} {unit} in {text.duration(gemm.dur_ns)}" if gemm.status == "ok" else gemm.status
    return f"{what}{' on ' + where if where else ''}: {result}"


def _link(link: r.Link) -> str:
    ends = " - ".join(link.ends[:4]) or text.rank_list(link.ranks) or "?"
    what = f"{link.test} {text.size(link.bytes)} {ends}"
    if link.status != "ok":
        return f"{what}: {link.status}"
    kind = f", {link.type}" if link.type != "unknown" else ""
    took = f" in {text.duration(link.dur_ns)}" if link.dur_ns > 0 else ""
    return f"{what}: busbw {link.busbw_gbps:.4g} GB/s{took}{kind}"


def _sample(sample: r.Sample) -> str:
    labels = " ".join(f"{name}={value}" for name, value in sample.labels.items())
    name = f"{sample.metric}{'{' + labels + '}' if labels else ''}"
    good = sample.value[np.isfinite(sample.value)]
    unit = f" {sample.unit}" if sample.unit else ""
    if not len(sample.value):
        return f"{name}: no samples"
    if not len(good):
        return f"{name}: no data in {text.plural(len(sample.value), 'sample')}"
    if len(sample.value) == 1:
        return f"{name} = {good[0]:.6g}{unit}"
    low, middle, high = np.quantile(good, (0.0, 0.5, 1.0)).tolist()
    missing = f", {len(sample.value) - len(good)} without data" if len(good) < len(sample.value) else ""
    if low == high:
        return f"{name}: {len(sample.value)} samples, all {low:.6g}{unit}{missing}"
    return f"{name}: {len(sample.value)} samples, median {middle:.6g}, {low:.6g} to {high:.6g}{unit}{missing}"
