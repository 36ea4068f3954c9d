# SPDX-License-Identifier: Apache-2.0
"""A real torchrun job on gloo under the shim: each call of the backend is seen once, with the right size, type and
peer, and so are those that torch's parallel parts make."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ghtools.job.control import ControlPage
from ghtools.job.paths import jobs, make_job_dir
from ghtools.job.ring import CommInfo, RingReader
from ghtools.stream.records import DTYPES, FLAG_ASYNC, FLAG_EXEC, OP_CODE, OPS
from tests.conftest import BIN

pytest.importorskip("torch", reason="torch is not installed (make setup)")

Row = tuple[str, int, str, int]
Part = list[Row]
SCRIPT = Path(__file__).with_name("gloo_rank.py")


def parts_of(records: Any) -> list[Part]:
    """The calls of each part of the job, without the barrier that ends it."""
    parts: list[Part] = [[]]
    for r in records:
        row = (OPS[r["op"]], int(r["bytes"]), DTYPES[r["dtype"]], int(r["peer"]))
        if row[0] == "barrier" and r["flags"] & FLAG_ASYNC:
            parts.append([])
        else:
            parts[-1].append(row)
    assert parts.pop() == []
    return parts


def check_executions(records: Any) -> None:
    """Each collective has executions (a list of tensors may be several), known by the number of their call."""
    is_exec = records["flags"] & FLAG_EXEC != 0
    calls, executions = records[~is_exec], records[is_exec]
    assert list(calls["seq"]) == list(range(len(calls)))
    by_seq = {int(c["seq"]): c for c in calls}
    for e in executions:
        call = by_seq[int(e["seq"])]
        for name in ("op", "dtype", "bytes", "peer", "comm"):
            assert e[name] == call[name]
        assert e["t_ns"] >= call["t_ns"]
        assert e["dur_ns"] > 0
    # Send and receive are no works, the monitored barrier is made of them, and the empty all-reduce raised.
    untimed = {OP_CODE["send"], OP_CODE["recv"]}
    want = {
        int(c["seq"])
        for c in calls
        if c["op"] not in untimed
        and c["flags"] & FLAG_ASYNC
        and not (c["op"] == OP_CODE["all_reduce"] and c["bytes"] == 0)
    }
    assert set(map(int, executions["seq"])) == want


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[list[Part], list[CommInfo]]]:
    """rank -> (calls of each part, communicators)."""
    from ghtools.job.native import SHIM

    root = tmp_path_factory.mktemp("gloo") / "rings"
    env = {**os.environ, "LD_PRELOAD": str(SHIM), "GHT_DIR": str(root), "OMP_NUM_THREADS": "1"}
    env["GHT_JOB"] = "g"
    with ControlPage.create(make_job_dir("g", root)) as page:
        page.set_profiling(True, lease_s=600)
    command = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = jobs(root)
    assert len(job.rings) == 2, "torchrun itself and its helpers make no ring"
    found = {}
    for file in job.rings:
        with RingReader(file.path) as ring:
            assert (ring.info.rank, ring.info.local_rank, ring.info.world_size) == (file.rank, file.rank, 2)
            assert ring.state() == "ended"
            records, lost = ring.drain()
            live = ring.live()
            assert (lost, live.unmatched, live.dropped) == (0, 0, 0)
            assert Path(live.gloo_path).name == "libtorch_cpu.so"
            check_executions(records)
            calls = records[records["flags"] & FLAG_EXEC == 0]
            found[file.rank] = (parts_of(calls), ring.comms())
    return found


F4 = "float32"
COMMON: Part = [
    ("all_reduce", 40, F4, -1),
    ("all_reduce", 28, F4, -1),
    ("broadcast", 10, "bfloat16", 1),
    ("reduce", 48, "int64", 1),
    ("all_gather", 40, F4, -1),
    ("all_gather", 40, F4, -1),
    ("reduce_scatter", 40, F4, -1),
    ("reduce_scatter", 40, "float64", -1),
    ("all_to_all", 8, "uint8", -1),
    ("all_to_all", 16, F4, -1),
    ("gather", 40, F4, 1),
    ("scatter", 40, F4, 0),
]


@pytest.mark.system
@pytest.mark.slow
class TestRealJob:
    def test_every_call_once(self, seen: dict[int, tuple[list[Part], list[CommInfo]]]) -> None:
        end: Row = ("barrier", 0, "unknown", -1)  # the monitored one
        assert seen[0][0][0] == [*COMMON, ("send", 40, F4, 1), ("recv", 40, F4, -1), end]
        assert seen[1][0][0] == [*COMMON, ("recv", 40, F4, 0), ("send", 40, F4, 0), end]

    def test_calls_after_one_that_raised(self, seen: dict[int, tuple[list[Part], list[CommInfo]]]) -> None:
        for parts, _ in seen.values():
            assert parts[1] == [("all_reduce", 0, "unknown", -1)] * 3 + [("all_reduce", 28, F4, -1)]

    def test_fsdp_gathers_and_scatters_alike_every_iteration(
        self, seen: dict[int, tuple[list[Part], list[CommInfo]]]
    ) -> None:
        for parts, _ in seen.values():
            calls = parts[2]
            assert {row[0] for row in calls} == {"all_gather", "reduce_scatter"}
            assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]

    def test_tensor_parallel_reduces_activations(self, seen: dict[int, tuple[list[Part], list[CommInfo]]]) -> None:
        for parts, _ in seen.values():
            assert ("all_reduce", 4 * 8 * 4, F4, -1) in parts[3]

    def test_pipeline_sends_each_microbatch(self, seen: dict[int, tuple[list[Part], list[CommInfo]]]) -> None:
        assert seen[0][0][4].count(("send", 64, F4, 1)) == 4
        assert seen[1][0][4].count(("recv", 64, F4, 0)) == 4
        assert seen[1][0][4].count(("send", 64, F4, 0)) == 4

    def test_functional_collectives(self, seen: dict[int, tuple[list[Part], list[CommInfo]]]) -> None:
        for parts, _ in seen.values():
            assert parts[5] == [
                ("all_reduce", 36, F4, -1), ("all_gather", 36, F4, -1), ("reduce_scatter", 20, F4, -1),
            ]  # fmt: skip

    def test_groups_have_names_and_equal_identities(self, seen: dict[int, tuple[list[Part], list[CommInfo]]]) -> None:
        (whole0, dp0), (whole1, dp1) = seen[0][1], seen[1][1]
        assert (whole0.name, whole0.size, whole0.comm_rank, whole1.comm_rank) == ("default_pg", 2, 0, 1)
        assert whole0.id == whole1.id
        assert (dp0.name, dp0.size) == ("mesh_dp", 1)
        assert dp0.id != dp1.id  # one member each: two groups
