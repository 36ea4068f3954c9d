# SPDX-License-Identifier: Apache-2.0
"""gh-import flight-recorder: calls of the dumps, and who keeps the job."""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

import pytest

from ghtools.source.comm_names import rank_in_name
from ghtools.stream.records import FLAG_ASYNC, OP_CODE, Calls, Comm, Job, Suspect

from .feed import DATA, Fed, feed, mutate, public


def entry(
    seq: int, name: str = "nccl:all_reduce", state: str = "scheduled", group: str = "0", **more: Any
) -> dict[str, Any]:
    """One entry as torch 2.9 writes it."""
    return {
        "record_id": seq + 100, "pg_id": int(group), "process_group": (group, "default_pg"), "collective_seq_id": seq,
        "p2p_seq_id": 0, "op_id": seq, "profiling_name": name, "time_created_ns": 10**18 + seq, "input_sizes": [[8, 4]],
        "input_dtypes": ["BFloat16"], "output_sizes": [[4, 4]], "output_dtypes": ["BFloat16"], "state": state,
        "retired": state == "completed", "is_p2p": False, "timeout_ms": 600000,
    } | more  # fmt: skip


def dump(*entries: dict[str, Any], status: dict[str, Any] | None = None, world: int = 3) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    return {"version": "2.9", "pg_config": config, "pg_status": status or {}, "entries": list(entries)}


def status(called: int, done: int) -> dict[str, Any]:
    return {"0": {"last_enqueued_collective": called, "last_started_collective": -1, "last_completed_collective": done}}


def feed_dumps(*dumps_: dict[str, Any], as_json: bool = False, names: list[str] | None = None) -> Fed:
    raw = [json.dumps(one).encode() if as_json else pickle.dumps(one, 2) for one in dumps_]
    return feed("flight-recorder", *raw, names=names or [f"trace_rank_{n}" for n in range(len(raw))])


@pytest.mark.parametrize("as_json", [False, True])
def test_finished_calls_with_durations(as_json: bool) -> None:
    entries = [
        entry(1, state="completed", duration_ms=1.5),
        entry(2, "nccl:_reduce_scatter_base", "completed", duration_ms=0.25),
        entry(3, "nccl:send 0->2", "completed", is_p2p=True),
    ]
    fed = feed_dumps(dump(*entries), as_json=as_json)
    [calls] = fed.of(Calls)
    assert fed.reason == "done" and not fed.of(Suspect)
    assert calls.op.tolist() == [OP_CODE[op] for op in ("all_reduce", "reduce_scatter", "send")]
    assert calls.bytes.tolist() == [64, 32, 64] and calls.dur_ns.tolist() == [1_500_000, 250_000, -1]
    assert calls.peer.tolist() == [-1, -1, 2] and calls.seq.tolist() == [101, 102, 103]
    assert calls.t_ns.tolist() == [10**18 + n for n in (1, 2, 3)] and set(calls.flags.tolist()) == {FLAG_ASYNC}
    [comm] = fed.of(Comm)
    assert (comm.ranks, comm.name, comm.comm_rank) == ([0, 1, 2], "default_pg", 0) and comm.comm == int(calls.comm[0])


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_has_not_called_is_named(as_json: bool) -> None:
    """Its dump may hold no entry at all: pg_status says how far it came."""
    late = dump(status=status(4, 4))
    fed = feed_dumps(dump(entry(5), status=status(5, 4)), late, dump(entry(5), status=status(5, 4)), as_json=as_json)
    [suspect] = fed.of(Suspect)
    assert (suspect.ranks, suspect.cause, suspect.verdict, suspect.ratio) == ([1], "stalled", "attributed", 0.0)
    assert suspect.evidence["last_called"] == {"0": 5, "1": 4, "2": 5} and suspect.evidence["waiting"] == [0, 2]
    assert all(set(calls.dur_ns.tolist()) <= {-1} for calls in fed.of(Calls))


def test_without_status_entries_tell() -> None:
    """The first version of dumps has entries only, as a list, and other names for numbers."""
    old = [
        {"seq_id": n, "pg_id": 0, "profiling_name": "nccl:all_reduce", "state": "completed", "time_created_ns": n}
        for n in (1, 2)
    ]
    new = [*old, {**old[0], "seq_id": 3, "state": "started"}]
    fed = feed("flight-recorder", pickle.dumps(new), pickle.dumps(old), names=["t_0", "t_1"])
    assert fed.reason == "done" and len(fed.of(Calls)) == 2
    assert [s.verdict for s in fed.of(Suspect)] == ["inconclusive"]  # nobody says who is in the group


def test_gloo_entries_stay_scheduled_but_are_retired() -> None:
    """As torch 2.13 dumps them; numbers of pg_status are text in JSON, the default group has no name."""
    made = dump(
        entry(7, "gloo:all_reduce", retired=True),
        status={"0": {"last_enqueued_collective": "7", "last_completed_collective": "7"}},
    )
    made["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    fed = feed_dumps(made, made, as_json=True)
    assert not fed.of(Suspect) and [comm.ranks for comm in fed.of(Comm)] == [[0, 1]] * 2
    assert fed.of(Job)[0].world_size == 2 and fed.of(Job)[0].backend == "gloo"


def test_numbers_of_sends_are_not_compared() -> None:
    """pg_status counts sends and receives, too, and those differ from rank to rank."""
    recv = entry(3, "nccl:recv 0<-1", is_p2p=True, op_id=9, p2p_seq_id=6)
    fed = feed_dumps(dump(recv, status=status(6, 5)), dump(status=status(40, 40)), dump(status=status(2, 2)))
    [suspect] = fed.of(Suspect)
    assert suspect.ranks == [1] and suspect.evidence["op"] == "recv"


def test_missing_and_bad_dumps() -> None:
    """A refused dump counts as missing; what the others say is delivered."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    good = pickle.dumps(dump(entry(5), status=status(5, 4)), 2)
    fed = feed("flight-recorder", good, pickle.dumps({"entries": [Evil()]}), good, names=["r_0", "r_1", "r_2"])
    assert fed.reason == "cut: refused: r_1" and len(fed.of(Calls)) == 2
    assert fed.said[0] == "no dump of 1 of 3 ranks: 1" and "posix.system" in fed.said[1]
    [suspect] = fed.of(Suspect)
    assert (suspect.ranks, suspect.verdict) == ([1], "inconclusive") and suspect.evidence["missing"] == [1]
    fed = feed("flight-recorder", good, good, good[:-9], b"", names=["a_rank_0", "b_rank_0", "rank_1", "rank_2"])
    assert len(fed.said) == 4 and "rank 0, which a_rank_0 was" in "".join(fed.said)
    assert fed.reason.startswith("cut: input cut: rank_2")


@pytest.mark.parametrize(
    ("name", "rank"),
    [("/tmp/nccl_trace_rank_12", 12), ("_dump_7", 7), ("node12_rank3.pkl", 3), ("rank3-node12.json", 3),
     ("host-a.rank_12.pkl", 12), ("node7_5.json", 5), ("plain", None)],
)  # fmt: skip
def test_ranks_in_names(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_hosts_in_names() -> None:
    late = dump(status=status(4, 4))
    names = ["node07_rank_0", "node08_rank_1", "node09_rank_2"]
    fed = feed_dumps(dump(entry(5), status=status(5, 4)), late, dump(entry(5), status=status(5, 4)), names=names)
    assert fed.of(Suspect)[0].hosts == ["node08"]
    assert [rank["host"] for rank in fed.of(Job)[0].ranks] == ["node07", "node08", "node09"]


@pytest.mark.parametrize("seed", range(200))
def test_fuzz(seed: int) -> None:
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    made = dump(entry(4, state="completed", duration_ms=3.5), entry(5, frames=frames), status=status(5, 4))
    raw = pickle.dumps(made, 2) if seed % 2 else json.dumps(made).encode()
    fed = feed("flight-recorder", mutate(raw, seed), raw, names=["r_0", "r_1"])
    assert fed.reason == "done" or fed.reason.startswith("cut")
    assert any(calls.rank == 1 for calls in fed.of(Calls))


def test_odd_shapes_inside_a_dump() -> None:
    """Every field of another type than expected."""
    odd: list[Any] = [
        "DEEP",
        1 << 2000,
        None,
        True,
        -1,
        1 << 70,
        1.5,
        float("nan"),
        "x",
        [],
        [[]],
        {},
        [None],
        (1, "a"),
    ]
    for key in entry(1):
        for value in odd:
            made = dump(entry(4, **{key: value}), entry(5))
            raw = pickle.dumps(made, 2).replace(b"X\x04\0\0\0DEEP", b"]" * 5000 + b"a" * 4999)  # lists 5,000 deep
            fed = feed("flight-recorder", raw, names=["r_0"])
            assert fed.reason == "done", (key, value)
    for key in ("entries", "pg_config", "pg_status", "rank"):
        for value in odd:
            assert feed("flight-recorder", pickle.dumps(dump(entry(5)) | {key: value}, 2), names=["r_0"]).reason
    for value in odd:
        made = dump(entry(5), status={"0": value}) | {
            "pg_config": {"0": {"name": value, "desc": value, "ranks": value}, "x": value}
        }
        assert feed("flight-recorder", pickle.dumps(made, 2), names=["r_0"]).reason == "done"


@pytest.mark.public_data
@pytest.mark.parametrize(("folder", "faulty"), [("gpu_error_1st", [12, 14]), ("lock_gil_1st", [9, 14])])
def test_published_dumps(folder: str, faulty: list[int]) -> None:
    """16 ranks, two faulty (authors). A GPU error: peers finished what these did not. A held GIL: never called."""
    public("flight-recorder", folder, "_dump_0")
    names = [str(DATA / "flight-recorder" / folder / f"_dump_{rank}") for rank in range(16)]
    fed = feed("auto", *[public("flight-recorder", folder, f"_dump_{rank}") for rank in range(16)], names=names)
    assert fed.reason == "done" and not fed.said
    suspects = fed.of(Suspect)
    assert sorted(rank for suspect in suspects for rank in suspect.ranks) == faulty
    assert {(suspect.cause, suspect.verdict) for suspect in suspects} == {("stalled", "attributed")}
    sign = "not finished" if folder == "gpu_error_1st" else "not called"
    assert {suspect.evidence["sign"] for suspect in suspects} == {sign}
    assert all(set(calls.dur_ns.tolist()) <= {-1} for calls in fed.of(Calls))
    assert fed.of(Job)[0].world_size == 16
