# SPDX-License-Identifier: Apache-2.0
"""gh-import nccl-log: calls of NCCL's own log, and whose they are."""

import pytest

from ghtools.stream.records import DTYPES, OPS, Calls, Comm, Job

from .feed import Fed, feed, mutate


def who(host: str, pid: int, dev: int, stamp: str = "") -> str:
    return f"{stamp}{host}:{pid}:{pid + 1} [{dev}] NCCL INFO "


def init(rank: int, size: int, comm: int, comm_id: int | None, host: str = "", pid: int = 0) -> str:
    """As NCCL prints it with NCCL_DEBUG_SUBSYS=INIT, typed by hand."""
    named = f" commId {comm_id:#x}" if comm_id else ""
    begin = who(host or f"node{rank // 2}", pid or 100 + rank, rank % 2)
    return (
        f"{begin}ncclCommInitRank comm {comm:#x} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId 9b000"
        f"{named} - Init COMPLETE\n"
    )


def call(
    rank: int, op: str, comm: int, size: int, n: int, *,
    dtype: int = 7, root: int = 0, stamp: str = "", host: str = "", pid: int = 0,
) -> str:  # fmt: skip
    """A call of 1,000 elements, as NCCL logs it with NCCL_DEBUG_SUBSYS=COLL."""
    return (
        who(host or f"node{rank // 2}", pid or 100 + rank, rank % 2, stamp)
        + f"{op}: opCount {n:x} sendbuff 0x7f01 recvbuff (nil) count 1000 datatype {dtype} op 0 root {root} "
        f"comm {comm:#x} [nranks={size}] stream 0x55f1\n"
    )


def job(comm_id: int | None = 0xABC) -> str:
    """4 ranks; a world and pairs; 20 all-reduces in the world and 20 all-gathers in the pairs."""
    log = ""
    for rank in range(4):
        log += init(rank, 4, 0x1000 + rank, comm_id)
    for rank in range(4):
        log += init(
            rank % 2, 2, 0x2000 + rank, comm_id and comm_id + 1 + rank // 2, f"node{rank // 2}", 100 + rank
        ).replace(f"[{rank % 2}]", f"[{rank % 2}]")
    for n in range(20):
        for rank in range(4):
            log += call(rank, "AllReduce", 0x1000 + rank, 4, n)
            log += call(rank, "AllGather", 0x2000 + rank, 2, n, dtype=9)
    return log


def calls(fed: Fed, rank: int) -> list[tuple[str, str, int, int]]:
    return [
        (OPS[op], DTYPES[dtype], size, comm)
        for record in fed.of(Calls)
        if record.rank == rank
        for op, dtype, size, comm in zip(record.op, record.dtype, record.bytes, record.comm.tolist(), strict=True)
    ]


def test_a_job_with_two_communicators() -> None:
    for name in ("nccl-log", "auto"):
        fed = feed(name, job())
        for rank in range(4):
            pair = 0xABC + 1 + rank // 2
            assert calls(fed, rank) == [
                ("all_reduce", "float32", 4000, 0xABC), ("all_gather", "bfloat16", 2000, pair),
            ] * 20  # fmt: skip
        assert {record.seq[-1] for record in fed.of(Calls)} == {39}
        members = {record.comm: record.ranks for record in fed.of(Comm) if record.ranks}
        assert members == {0xABC: [0, 1, 2, 3], 0xABD: [0, 1], 0xABE: [2, 3]}
        [told] = fed.of(Job)
        assert [(place["rank"], place["host"], place["pid"]) for place in told.ranks] == [
            (0, "node0", 100), (1, "node0", 101), (2, "node1", 102), (3, "node1", 103),
        ]  # fmt: skip
        assert told.world_size == 4


def test_without_comm_ids_only_the_world_is_shared() -> None:
    fed = feed("nccl-log", job(None))
    worlds = {calls(fed, rank)[0][3] for rank in range(4)}
    pairs = {calls(fed, rank)[1][3] for rank in range(4)}
    assert len(worlds) == 1 and len(pairs) == 4
    assert any("no commId" in text for text in fed.said)


def test_without_init_lines_processes_are_numbered() -> None:
    log = "".join(line + "\n" for line in job().splitlines() if "opCount" in line)
    fed = feed("nccl-log", log)
    assert {record.rank for record in fed.of(Calls)} == {0, 1, 2, 3}
    assert any("numbered as they appear" in text for text in fed.said)


def test_time_stamps() -> None:
    log = init(0, 1, 0x10, 0x99) + "".join(
        call(0, "AllReduce", 0x10, 1, n, stamp=f"[2026-01-02 03:04:0{n}.250] ") for n in range(3)
    )
    fed = feed("nccl-log", log)
    assert fed.of(Calls)[0].t_ns.tolist() == [1767323040_250_000_000 + n * 10**9 for n in range(3)]
    assert not any("time stamp" in text for text in fed.said)


def test_no_time_stamps_is_said_once() -> None:
    fed = feed("nccl-log", job())
    assert len([text for text in fed.said if "time stamp" in text]) == 1


def test_peers_and_roots() -> None:
    log = init(0, 4, 0x10, 0x99)
    for op in ("Send", "Recv", "Broadcast", "Bcast", "Reduce", "AllReduce", "AlltoAll", "Gather", "Scatter", "Weird"):
        log += call(0, op, 0x10, 4, 1, root=3)
    [record] = feed("nccl-log", log).of(Calls)
    names = [OPS[op] for op in record.op]
    assert names == [
        "send",
        "recv",
        "broadcast",
        "broadcast",
        "reduce",
        "all_reduce",
        "all_to_all",
        "gather",
        "scatter",
        "unknown",
    ]
    assert record.peer.tolist() == [3, 3, 3, 3, 3, -1, -1, 3, 3, -1]


def test_glued_lines() -> None:
    log = init(0, 2, 0x10, 0x99) + init(1, 2, 0x11, 0x99)
    body = "".join(call(rank, "AllReduce", 0x10 + rank, 2, n).rstrip("\n") for n in range(5) for rank in range(2))
    fed = feed("nccl-log", log + body + "\n")
    assert [len(calls(fed, rank)) for rank in range(2)] == [5, 5]


def test_a_call_that_is_cut_is_counted() -> None:
    log = init(0, 1, 0x10, 0x99) + call(0, "AllReduce", 0x10, 1, 0) + call(0, "AllReduce", 0x10, 1, 1)[:70] + "\n"
    fed = feed("nccl-log", log)
    assert len(calls(fed, 0)) == 1
    assert any("1 lines of calls are not whole" in text for text in fed.said)


def test_a_restart_is_another_incarnation() -> None:
    log = "".join(
        init(0, 1, 0x10, 0x99 + k, "n", 100 + k) + call(0, "AllReduce", 0x10, 1, 0, host="n", pid=100 + k)
        for k in range(2)
    )
    assert [record.incarnation for record in feed("nccl-log", log).of(Calls)] == [0, 1]


def test_two_files_that_claim_the_same_rank() -> None:
    one = init(0, 2, 0x10, 0x99, "a", 1) + call(0, "AllReduce", 0x10, 2, 0, host="a", pid=1)
    two = init(0, 2, 0x10, 0x99, "b", 2) + call(0, "AllReduce", 0x10, 2, 0, host="b", pid=2)
    fed = feed("nccl-log", one, two, names=["a.log", "b.log"])
    assert fed.reason == "cut: cannot read b.log"
    assert len(calls(fed, 0)) == 1
    same = feed("nccl-log", one, one, names=["a.log", "b.log"])
    assert same.reason == "cut: cannot read b.log after a.log"


def test_nothing_found_names_the_setting() -> None:
    fed = feed("nccl-log", "hello\n")
    assert fed.reason == "cut: no calls in file0" and "NCCL_DEBUG" in fed.said[0]


def test_memory_is_bounded() -> None:
    """More calls than are held back: they leave before the end."""
    log = init(0, 1, 0x10, 0x99) + "".join(call(0, "AllReduce", 0x10, 1, n) for n in range(140_000))
    records = feed("nccl-log", log).of(Calls)
    assert sum(len(record.t_ns) for record in records) == 140_000
    assert max(len(record.t_ns) for record in records) <= 4096


@pytest.mark.parametrize("seed", range(80))
def test_fuzz(seed: int) -> None:
    fed = feed("nccl-log", mutate(job().encode(), seed), size=seed % 3 * 99)
    assert fed.reason == "done" or fed.reason.startswith("cut")
