# SPDX-License-Identifier: Apache-2.0
"""gh-import kineto: what PyTorch's profiler says about communication."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from ghtools.source import import_kineto
from ghtools.stream.errors import GhError
from ghtools.stream.records import (
    DTYPES,
    FLAG_ASYNC,
    FLAG_BYTES_UNKNOWN,
    FLAG_EXEC,
    OP_CODE,
    Calls,
    Comm,
    Iters,
    Job,
)

from .feed import DATA, Fed, feed, mutate, public

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OLD = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"


def event(cat: str, name: str, ts: object, dur: object, tid: object = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def comms(
    name: str, nelems: int = 1000, out: int | None = None, group: str = "0", ranks: str = "[0, 1]", **more: Any
) -> Any:
    """Metadata as record_param_comms and, from torch 2.3 on, kernels carry it."""
    size = ranks.count(",") + 1
    told = {"Collective name": name, "In msg nelems": nelems, "Out msg nelems": nelems if out is None else out}
    return (
        told | {"dtype": "Float", "Process Group Name": group, "Process Group Ranks": ranks, "Group size": size} | more
    )


def trace(events: list[dict[str, Any]], rank: int | None = 0, world: int = 2, **outside: Any) -> str:
    head: dict[str, Any] = {"schemaVersion": 1}
    if rank is not None:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    return json.dumps({**head, "traceEvents": events, **outside})


def split(fed: Fed, rank: int = 0) -> tuple[Calls, Calls]:
    """The calls of the host and the executions of a rank, each as one record."""
    both = []
    for run in (0, FLAG_EXEC):
        batches = [c for c in fed.of(Calls) if c.rank == rank and len(c.t_ns) and int(c.flags[0]) & FLAG_EXEC == run]
        names = ("t_ns", "op", "dtype", "flags", "peer", "comm", "bytes", "seq", "dur_ns")
        both.append(Calls(rank=rank, **{n: np.concatenate([getattr(b, n) for b in batches] or [[]]) for n in names}))
    return both[0], both[1]


def test_new_traces_tell_all() -> None:
    """Kernels with metadata: sizes as the rank passed them, groups, peers; times from a base after the events."""
    events = [
        event("user_annotation", "ProfilerStep#4", 0, 500),
        event("user_annotation", "ProfilerStep#5", 510.5, 400),
        event("cpu_op", "record_param_comms", 20.25, 3, **comms("allreduce")),
        event("cpu_op", "record_param_comms", 10, 3, **comms("_reduce_scatter_base", 1000, 500)),
        event(
            "cpu_op", "record_param_comms", 520, 3, **comms("send", 7, group="5", ranks="[0, 3]", **{"Dst Rank": "3"})
        ),
        event("cpu_op", "record_param_comms", 530, 3, **comms("wait")),
        event("kernel", RING, 30.125, 4.5, **comms("allreduce")),
        event(
            "kernel",
            "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)",
            11,
            9,
            **comms("_reduce_scatter_base", 1000, 500),
        ),
        event(
            "kernel",
            "ncclDevKernel_SendRecv(x)",
            521,
            6,
            **comms("send", 7, group="5", ranks="[0, 3]", **{"Dst Rank": "3"}),
        ),
        event("kernel", "ampere_sgemm_128x64_tn", 1, 2),
        event("gpu_user_annotation", "nccl:all_reduce", 30, 5),
        event("gpu_user_annotation", "ProfilerStep#4", 3, 5),
        event("user_annotation", "nccl:all_reduce", 20.5, 1),
    ]
    fed = feed("kineto", trace(events, baseTimeNanoseconds=1_700_000_000_000_000_000), size=37)
    assert fed.reason == "done" and not fed.said
    host, run = split(fed)
    base = 1_700_000_000_000_000_000
    assert (host.t_ns - base).tolist() == [10_000, 20_250, 520_000] and set(host.dur_ns.tolist()) == {-1}
    assert host.seq.tolist() == [0, 1, 2] and set(host.flags.tolist()) == {FLAG_ASYNC}
    assert (run.t_ns - base).tolist() == [11_000, 30_125, 521_000] and run.dur_ns.tolist() == [9000, 4500, 6000]
    assert run.op.tolist() == [OP_CODE[op] for op in ("reduce_scatter", "all_reduce", "send")]
    assert run.bytes.tolist() == [2000, 4000, 28] and run.peer.tolist() == [-1, -1, 1]
    assert host.comm.tolist() == run.comm.tolist() and len(set(run.comm.tolist())) == 2
    assert {DTYPES[code] for code in run.dtype.tolist()} == {"float32"}
    groups = {comm.comm: comm for comm in fed.of(Comm)}
    assert groups[int(run.comm[2])].ranks == [0, 3] and groups[int(run.comm[0])].comm_rank == 0
    [iters] = fed.of(Iters)
    assert iters.index.tolist() == [4, 5] and iters.dur_ns.tolist() == [510_500, 400_000]  # time between belongs to 4
    assert iters.calls.tolist() == [2, 1] and iters.seq.tolist() == [0, 2]


def test_groups_are_equal_on_all_ranks_and_long_lists_are_found_elsewhere() -> None:
    long = "[0, 1, 2, ..., 63]"
    kernel = event("kernel", RING, 5, 1, **comms("allreduce", ranks=long))
    listed = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 64, "ranks": []}]
    info = [{"backend": "nccl", "rank": rank, "world_size": 64, "pg_config": listed} for rank in (0, 9)]
    texts = [json.dumps({"distributedInfo": one, "traceEvents": [kernel]}) for one in info]
    fed = feed("kineto", *texts)
    first, second = fed.of(Comm)
    assert first.comm == second.comm and first.ranks == list(range(64)) and second.comm_rank == 9
    strided = comms("allreduce", ranks="[1, ...]", **{"Group size": 4, "Global rank start": 1, "Global rank stride": 8})
    [comm] = feed("kineto", trace([event("kernel", RING, 5, 1, **strided)], 9)).of(Comm)
    assert comm.ranks == [1, 9, 17, 25] and comm.comm_rank == 1


def test_old_traces_are_matched_by_their_launch() -> None:
    """Kernels of torch 1.x carry a correlation only: the launch with it lies inside an nccl: annotation."""
    dims = {"Input Dims": [[100, 2]], "Input type": ["c10::Half"]}
    events = [
        event("user_annotation", "nccl:all_to_all", 100, 50, 1, **dims),
        event("user_annotation", "nccl:_reduce_scatter_base", 160, 20, 1, **dims),
        event("cuda_runtime", "cudaLaunchKernel", 170, 5, 1, correlation=12),
        event("cuda_runtime", "cudaLaunchKernel", 120, 5, 1, correlation=11),
        event("cuda_runtime", "cudaLaunchKernel", 120, 5, 2, correlation=13),
        event("Kernel", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", 200, 7, correlation=11, stream=20),
        event("kernel", "ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*)", 300, 7, correlation=12, stream=20),
        event("kernel", OLD, 400, 7, correlation=13, stream=20),
    ]
    fed = feed("kineto", trace(events))
    host, run = split(fed)
    assert run.op.tolist() == [OP_CODE[op] for op in ("all_to_all", "reduce_scatter", "all_reduce")]
    assert run.bytes.tolist() == [400, 200, 0] and run.seq.tolist() == [0, 1, -1]
    assert [bool(flags & FLAG_BYTES_UNKNOWN) for flags in run.flags.tolist()] == [False, False, True]
    assert host.bytes.tolist() == [400, 200]
    [comm] = fed.of(Comm)  # one stream, no groups told: it can only be all ranks
    assert comm.ranks == [0, 1] and set(run.comm.tolist()) == {comm.comm}


def test_a_group_that_is_not_told_is_not_made_up() -> None:
    events = [event("kernel", OLD, 100 * n, 7, correlation=n, stream=20 + n) for n in range(2)]
    fed = feed("kineto", trace(events, 0), trace(events, 1))
    assert [comm.ranks for comm in fed.of(Comm)] == [[], []]
    assert len({comm.comm for comm in fed.of(Comm)}) == 2


def test_gloo_is_a_call_and_its_execution() -> None:
    dims = {"Input Dims": [[3, 4]], "Input type": ["float"]}
    fed = feed(
        "kineto",
        trace([event("user_annotation", "gloo:all_gather", 1, 20, **dims), event("cpu_op", "gloo:barrier", 30, 5)]),
    )
    host, run = split(fed)
    assert host.t_ns.tolist() == run.t_ns.tolist() == [1000, 30_000] and run.dur_ns.tolist() == [20_000, 5000]
    assert host.bytes.tolist() == [48, 0] and run.seq.tolist() == host.seq.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "op"),
    [(RING, "all_reduce"), (OLD, "all_reduce"), ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)", "broadcast"),
     ("ncclDevKernel_AllGather_RING_LL(x)", "all_gather"), ("ncclDevKernel_SendRecv(x)", "unknown"),
     ("ncclDevKernel_Generic_4(x)", "unknown"), ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(x)", "all_reduce"),
     ("void ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce"), ("mscclKernel_Sum_float_Simple(x)", "unknown")],
)  # fmt: skip
def test_kernel_names(name: str, op: str) -> None:
    _, run = split(feed("kineto", trace([event("kernel", name, 5, 1)])))
    assert run.op.tolist() == [OP_CODE[op]]


def test_precision_and_integers() -> None:
    """Microseconds since the epoch with three decimals do not fit a double: 0.25 us would be lost."""
    text = trace([event("kernel", RING, 0, 1)]).replace('"ts": 0', '"ts": 1712195495520854.801')
    _, run = split(feed("kineto", text))
    assert run.t_ns.tolist() == [1712195495520854801]


def test_the_rank_comes_from_the_trace_the_name_or_the_option() -> None:
    bare = trace([event("kernel", RING, 5, 1)], rank=None)
    assert [c.rank for c in feed("kineto", bare, bare, names=["a/rank-3.json", "worker5_x.json.gz"]).of(Calls)] == [
        3,
        5,
    ]
    assert [c.rank for c in feed("kineto", bare, rank=8).of(Calls)] == [8]
    assert [c.rank for c in feed("kineto", bare, names=["host_4711.1694128201545.pt.trace.json"]).of(Calls)] == [0]
    fed = feed("kineto", bare, bare, names=["host_4711.1694128201545.pt.trace.json", "rank1.json"])
    assert fed.reason.startswith("cut: cannot tell the rank of host_4711") and [c.rank for c in fed.of(Calls)] == [1]
    with pytest.raises(GhError, match="several files as one rank"):
        feed("kineto", bare, bare, rank=1)


def test_two_files_of_one_rank() -> None:
    """A later window of a rank goes on; the same time twice is refused, and the other files are read."""
    early, late = (trace([event("kernel", RING, ts, 1, **comms("allreduce"))], 0) for ts in (10, 1000))
    other = trace([event("kernel", RING, 10, 1, **comms("allreduce"))], 1)
    fed = feed("kineto", early, late)
    assert fed.reason == "done" and len(split(fed)[1].t_ns) == 2 and len(fed.of(Comm)) == 1
    fed = feed("kineto", early, early, other, names=["a.json", "b.json", "c.json"])
    assert fed.reason == "cut: bad input: b.json" and "rank 0, which a.json was" in fed.said[0]
    assert [c.rank for c in fed.of(Calls)] == [0, 1] and fed.of(Job)[-1].world_size == 2


def test_a_cut_file_gives_what_was_sound() -> None:
    text = trace([event("kernel", RING, 10 * n, 1, **comms("allreduce")) for n in range(10)])
    cut = text[: text.rindex('{"ph"') + 40]
    for data, other in ((cut.encode(), text), (gzip.compress(text.encode())[:-20], text)):
        fed = feed("kineto", data, other.replace('"rank": 0', '"rank": 1'))
        assert fed.reason.startswith("cut: input cut: file0") and len(fed.said) == 1
        assert len(split(fed, 1)[1].t_ns) == 10
    assert len(split(feed("kineto", cut))[1].t_ns) == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "empty"), ("[]", "no traceEvents"), ('{"a": 1}', "no traceEvents"), ("no json", "begin as JSON"),
     ('{"traceEvents": [{"name": nccl}]}', "not JSON"), ('{"traceEvents": [{"name": "nccl", "ts": NaN}]}', "not JSON")],
)  # fmt: skip
def test_bad_files_are_one_line(text: str, why: str) -> None:
    fed = feed("kineto", text)
    assert fed.reason.startswith("cut") and len(fed.said) == 1 and why in fed.said[0]


def test_odd_events_are_counted_once() -> None:
    events = [
        event("kernel", RING, ts, dur) for ts, dur in ((1, 1), ("x", 1), (2, None), (-5, 1), (10**30, 1), (True, 1))
    ]
    fed = feed("kineto", trace(events))
    assert len(split(fed)[1].t_ns) == 1 and fed.said == ["file0: 5 events without a sound ts or dur were left out"]


def test_memory_is_bounded_by_letting_calls_go(monkeypatch: pytest.MonkeyPatch) -> None:
    text = trace([event("kernel", RING, 10 * n, 1, **comms("allreduce")) for n in range(100)])
    monkeypatch.setattr(import_kineto, "MAX_ROWS", 16)
    fed = feed("kineto", text)
    assert len(fed.of(Calls)) > 1 and split(fed)[1].t_ns.tolist() == [10_000 * n for n in range(100)]


def test_the_format_is_seen() -> None:
    assert feed("auto", trace([event("kernel", RING, 5, 1)])).of(Calls)


@pytest.mark.parametrize("seed", range(150))
def test_fuzz(seed: int) -> None:
    events = [
        event("cpu_op", "record_param_comms", 4, 2, **comms("allreduce")),
        event("kernel", RING, 5.5, 1, **comms("send")),
        event("user_annotation", "ProfilerStep#4", 0, 500),
        event("kernel", OLD, 5, 1, correlation=3, stream=4),
        event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=3),
        event("cpu_op", "gloo:all_reduce", 5, 9),
    ]
    fed = feed("kineto", mutate(trace(events, baseTimeNanoseconds=10**18).encode(), seed), size=seed % 3 * 100)
    assert fed.reason == "done" or fed.reason.startswith("cut")


@pytest.mark.public_data
def test_dlrm_eight_ranks() -> None:
    """8 collectives on each of 8 ranks; ends agree within 10 us; rank 7 waits least in the first five (derived)."""
    public("kineto", "dlrm-8rank", "worker0_step_12.1694128201545.pt.trace.json")
    names = sorted(DATA.joinpath("kineto", "dlrm-8rank").glob("*.json"))
    fed = feed("kineto", *[name.read_bytes() for name in names], names=[str(name) for name in names])
    assert fed.reason == "done" and not fed.said
    runs = [split(fed, rank)[1] for rank in range(8)]
    ends = np.array([run.t_ns + run.dur_ns for run in runs])
    assert ends.shape == (8, 8) and int(np.ptp(ends, axis=0).max()) <= 10_000
    took = np.array([run.dur_ns for run in runs])
    assert np.argmin(took, axis=0).tolist()[:4] == [7] * 4
    assert len({(tuple(run.op.tolist()), tuple(run.comm.tolist())) for run in runs}) == 1
    assert all(int(run.bytes.min()) > 0 for run in runs)
    assert [iters.index.tolist() for iters in fed.of(Iters)] == [[10]] * 8
    assert [rank["rank"] for rank in fed.of(Job)[-1].ranks] == list(range(8))


@pytest.mark.public_data
def test_traces_of_other_versions() -> None:
    """Metadata on kernels, float times and the base at the end; then a trace with one rank and no kernel."""
    fed = feed("kineto", public("kineto", "hta_nccl_parser_config", "nccl_data.json.gz"))
    host, run = split(fed)
    assert len(host.t_ns) == len(run.t_ns) == 21 and int(run.t_ns[0]) > 1_711_964_646_000_000_000
    assert set(run.bytes.tolist()) <= set(host.bytes.tolist()) and [comm.ranks for comm in fed.of(Comm)] == [[0, 1]]
    assert fed.of(Iters)[0].index.tolist() == [4, 5, 6]
    fed = feed("kineto", public("kineto", "hta_ns_resolution", "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"))
    assert len(split(fed)[0].t_ns) == 35 and not len(split(fed)[1].t_ns)
    assert fed.of(Job)[0].ranks[0]["host"].startswith("twshared")
