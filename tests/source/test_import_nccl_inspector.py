# SPDX-License-Identifier: Apache-2.0
"""gh-import nccl-inspector: operations with durations."""

import json
from typing import Any

import pytest

from ghtools.stream.records import FLAG_CAPTURE, OPS, Calls, Comm, Job

from .feed import feed, mutate


def event(rank: int, n: int, us: float = 400, *, comm: str = "0xabc", size: int = 2, p2p: str = "", **perf: Any) -> str:
    """A line as the Inspector writes it, typed by hand from its README."""
    prefix = "p2p" if p2p else "coll"
    item = {
        "header": {"id": comm, "rank": rank, "n_ranks": size, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0", "dump_timestamp_us": 1_748_030_377_748_000 + 1000 * n,
            "hostname": f"node{rank}", "pid": 100 + rank,
        },
        f"{prefix}_perf": {
            prefix: p2p or "AllReduce", f"{prefix}_sn": n, f"{prefix}_msg_size_bytes": 4096,
            f"{prefix}_exec_time_us": us, **perf,
        },
    }  # fmt: skip
    return json.dumps(item) + "\n"


def test_collectives_of_two_ranks() -> None:
    files = ["".join(event(rank, n, 400 + rank) for n in range(10)) for rank in range(2)]
    for name in ("nccl-inspector", "auto"):
        fed = feed(name, *files)
        calls = {record.rank: record for record in fed.of(Calls)}
        for rank in range(2):
            assert calls[rank].dur_ns.tolist() == [(400 + rank) * 1000] * 10
            assert calls[rank].comm.tolist() == [0xABC] * 10
            assert calls[rank].bytes.tolist() == [4096] * 10
            assert calls[rank].t_ns[0] == 1_748_030_377_748_000_000 - (400 + rank) * 1000
        assert [record.ranks for record in fed.of(Comm) if record.ranks] == [[0, 1]]
        assert [place["host"] for place in fed.of(Job)[-1].ranks] == ["node0", "node1"]
        assert len([text for text in fed.said if "times are those of writing" in text]) == 1


def test_verbose_lines_tell_the_begin() -> None:
    fed = feed("nccl-inspector", event(0, 1, size=1, event_trace_ts={"coll_start_ts": 1_752_867_229_235_059}))
    assert fed.of(Calls)[0].t_ns.tolist() == [1_752_867_229_235_059_000]
    assert fed.said == []


def test_transfers_and_captured_calls() -> None:
    fed = feed("nccl-inspector", event(0, 1, p2p="Send", p2p_peer=1) + event(0, 2, graphCaptured=True))
    [calls] = fed.of(Calls)
    assert [OPS[op] for op in calls.op] == ["send", "all_reduce"]
    assert calls.peer.tolist() == [1, -1]
    assert calls.flags.tolist() == [0, FLAG_CAPTURE]


def test_rank_is_that_in_the_largest_communicator() -> None:
    log = event(0, 1, comm="0x1", size=2) + event(3, 1, comm="0x2", size=4).replace("node3", "node0").replace(
        "103", "100"
    )
    assert {record.rank for record in feed("nccl-inspector", log).of(Calls)} == {3}


def test_flat_lines_and_unknown_fields() -> None:
    item = {"id": "0x1", "rank": 0, "n_ranks": 1, "x": [], "coll_perf": {"coll": "AllGather", "coll_exec_time_us": 1.5}}
    [calls] = feed("nccl-inspector", json.dumps(item)).of(Calls)
    assert calls.dur_ns.tolist() == [1500] and OPS[calls.op[0]] == "all_gather"


def test_a_bad_line_is_named_and_the_sound_ones_are_delivered() -> None:
    fed = feed("nccl-inspector", event(0, 1) + event(0, 2) + '{"header": {"ra', names=["x.log"])
    assert sum(len(record.t_ns) for record in fed.of(Calls)) == 2
    assert fed.reason == "cut: bad input at x.log, line 3"


def test_two_files_that_claim_the_same_rank() -> None:
    fed = feed("nccl-inspector", event(0, 1), event(0, 1).replace("node0", "node9"), names=["a", "b"])
    assert fed.reason == "cut: cannot read b"
    assert len(fed.of(Calls)) == 1


@pytest.mark.parametrize(
    "text", ["[1]", "1", '{"coll_perf": {}}', '{"coll_perf": {"coll": 1}, "rank": "x"}', "[" * 5000]
)
def test_strange_lines_are_no_traceback(text: str) -> None:
    assert feed("nccl-inspector", text).reason.startswith("cut")


@pytest.mark.parametrize("seed", range(60))
def test_fuzz(seed: int) -> None:
    log = "".join(event(rank, n) + event(rank, n, p2p="Recv", p2p_peer=0) for n in range(5) for rank in range(2))
    fed = feed("nccl-inspector", mutate(log.encode(), seed), size=seed % 3 * 99)
    assert fed.reason == "done" or fed.reason.startswith("cut")
