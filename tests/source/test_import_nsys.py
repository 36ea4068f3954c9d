# SPDX-License-Identifier: Apache-2.0
"""gh-import nsys, on databases made by hand with the tables and columns of nsys' export schema.

No report of a real multi-GPU job is published under a licence that we know of: what these tests show is that the
documented schema is read, not that every version of nsys writes it so.
"""

from __future__ import annotations

import gzip
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ghtools.source.nsys_db import STEP
from ghtools.stream.records import FLAG_EXEC, OP_CODE, Calls, Comm, Iters, Job, columns

from .feed import Fed, feed, mutate

EPOCH = 1_700_000_000_000_000_000
NAMES = {
    1: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2: "ncclKernel_AllGather_RING_LL_Sum_int8_t",
    3: "ampere_sgemm_128x64_tn", 4: "cudaLaunchKernelExC_v11060", 5: "step_7", 6: "ncclDevKernel_SendRecv",
}  # fmt: skip


RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SCHEMA = {  # as in the reference of the export schema, some columns of no use here left out
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId "
    "INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT "
    "NULL, shortName INTEGER NOT NULL, mangledName INTEGER",
    RUNTIME: "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category "
    "INTEGER, color INTEGER, text TEXT, globalTid INTEGER, domainId INTEGER, textId INTEGER",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
}


def process(pid: int) -> int:
    """nsys' global process id: hardware and virtual machine bits, then the pid, then no thread."""
    return 1 << 56 | pid << 24


def make(path: Path, skew_ns: int = 3, without: tuple[str, ...] = ()) -> Path:
    """Two processes with a device each, 20 steps of two collectives that end within `skew_ns` of each other."""
    rng = random.Random(5)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
        for table, columns in SCHEMA.items():
            if table not in without:
                db.execute(f"CREATE TABLE {table} ({columns})")
        if "TARGET_INFO_SESSION_START_TIME" not in without:
            db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (EPOCH,))
        db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 1, 'node07')")
        for pid, device, stream in ((100, 0, 20), (200, 1, 30)):
            for step in range(20):
                base = 1_000_000 + step * 10_000_000
                for number, (name, offset) in enumerate(((1, 2_000_000), (2, 6_000_000), (3, 7_000_000))):
                    correlation = step * 3 + number  # the same numbers in both processes
                    end = base + offset + 900_000 + rng.randint(0, skew_ns)
                    begin = end - rng.randint(100_000, 800_000)
                    db.execute(
                        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, NULL)",
                        (begin, end, device, stream if name != 3 else 7, correlation, process(pid), name, name),
                    )
                    if RUNTIME not in without:
                        db.execute(
                            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 4)",
                            (begin - 40_000 - pid, begin - 30_000, process(pid) | 17, correlation),
                        )
                if "NVTX_EVENTS" not in without:
                    at, tid = (base, base + 9_500_000), process(pid) | 17
                    numbered = (*at, 59, None, f"iteration {step + 3}", tid, None)
                    inner = (base, base + 500_000, 59, None, None, tid, 5)
                    for row in (numbered, inner, (base, None, 34, None, "a step marker", tid, None)):
                        db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, NULL, NULL, ?, ?, 0, ?)", row)
    return path


def joined(fed: Fed, kind: type, run: bool | None = None) -> dict[int, Any]:
    """The batches of each rank as one record; of calls those of the host, or the executions."""
    parts: dict[int, list[Any]] = {}
    for record in fed.of(kind):
        if run is None or bool(int(record.flags[0]) & FLAG_EXEC) == run:
            parts.setdefault(record.rank, []).append(record)
    return {
        rank: kind(rank=rank, **{name: np.concatenate([getattr(one, name) for one in made]) for name in columns(kind)})
        for rank, made in parts.items()
    }


def run(path: Path) -> Fed:
    return feed("nsys", path.read_bytes(), names=[str(path)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("nsys") / "report.sqlite").read_bytes()


@pytest.fixture
def report(tmp_path: Path, whole: bytes) -> Path:
    path = tmp_path / "report.sqlite"
    path.write_bytes(whole)
    return path


def test_devices_are_ranks(report: Path) -> None:
    fed = run(report)
    assert fed.reason == "done" and fed.said == [f"{report}: ranks 0-1 are its devices in order"]
    [job] = fed.of(Job)
    assert [(r["rank"], r["device"], r["pid"]) for r in job.ranks] == [(0, "0", 100), (1, "1", 200)]
    assert {r["host"] for r in job.ranks} == {"node07"}
    host, runs = joined(fed, Calls, run=False), joined(fed, Calls, run=True)
    for rank, pid in ((0, 100), (1, 200)):
        assert runs[rank].op.tolist() == [OP_CODE["all_reduce"], OP_CODE["all_gather"]] * 20
        assert (runs[rank].t_ns - host[rank].t_ns).tolist() == [40_000 + pid] * 40  # its own launch, not the other's
        assert set(host[rank].dur_ns.tolist()) == {-1} and host[rank].seq.tolist() == list(range(40))
        assert int(runs[rank].t_ns[0]) > EPOCH and 100_000 <= int(runs[rank].dur_ns.min()) <= 800_000
    iters = joined(fed, Iters)
    assert sorted(iters) == [0, 1] and iters[0].index.tolist() == list(range(3, 23))
    assert set(iters[0].dur_ns.tolist()) == {9_500_000} and set(iters[0].calls.tolist()) == {2}


def test_kernels_that_end_together_are_a_group(report: Path, tmp_path: Path) -> None:
    first, second = run(report).of(Comm)
    assert first.comm == second.comm and first.ranks == [0, 1] and second.comm_rank == 1
    apart = run(make(tmp_path / "apart.sqlite", skew_ns=2_000_000)).of(Comm)
    assert [comm.ranks for comm in apart] == [[], []] and apart[0].comm != apart[1].comm


def test_what_is_not_there_is_done_without(tmp_path: Path) -> None:
    fed = run(make(tmp_path / "bare.sqlite", without=(RUNTIME, "NVTX_EVENTS", "TARGET_INFO_SESSION_START_TIME")))
    assert fed.reason == "done" and not fed.of(Iters)
    assert len(joined(fed, Calls, run=True)) == 2 and not joined(fed, Calls, run=False)


def test_packed_piped_and_several_files(report: Path, tmp_path: Path) -> None:
    raw = report.read_bytes()
    packed = feed("nsys", gzip.compress(raw), names=["-"])
    assert sum(len(calls.t_ns) for calls in packed.of(Calls)) == 160
    again = make(tmp_path / "b.sqlite")
    fed = feed("nsys", raw, again.read_bytes(), names=[str(report), str(again)])
    assert [r["rank"] for job in fed.of(Job) for r in job.ranks] == [0, 1, 2, 3]
    assert len({comm.comm for comm in fed.of(Comm)}) == 2  # groups across files are not made up


def edit(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
    return path


def test_one_device_takes_the_rank_of_its_name(tmp_path: Path) -> None:
    only = "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 1"
    paths = [edit(make(tmp_path / name), only) for name in ("rank5.sqlite", "rank3.sqlite", "x_rank3.sqlite")]
    fed = feed("nsys", *[path.read_bytes() for path in paths], names=[str(path) for path in paths])
    assert [job.ranks[0]["rank"] for job in fed.of(Job)] == [5, 3]
    assert "it is rank 3, which" in fed.said[-1] and fed.reason.startswith("cut: bad input")


@pytest.mark.parametrize(
    ("statement", "why"),
    [("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "no table CUPTI_ACT"), ("DROP TABLE StringIds", "StringIds"),
     ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN deviceId", "lacks start, end, deviceId"),
     ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE shortName <> 3", "no NCCL kernel")],
)  # fmt: skip
def test_missing_tables_are_named(report: Path, statement: str, why: str) -> None:
    fed = run(edit(report, statement))
    assert fed.reason.startswith("cut: bad input") and len(fed.said) == 1 and why in fed.said[0]


def test_a_view_is_no_table(report: Path) -> None:
    """A view could run for ever."""
    loop = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end, 1 AS deviceId"
    view = f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {loop}, 1 AS shortName FROM n"
    fed = run(edit(report, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", view))
    assert fed.reason.startswith("cut") and "no table" in fed.said[0]


def test_values_of_other_types_are_left_out(report: Path) -> None:
    fed = run(edit(
        report,
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 5, 0, 1, 1, 1, 1, 1, 1, NULL)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (9223372036854775807, 5, 0, 1, 1, 1, 1, 1, 1, NULL)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (-5, 9223372036854775807, -3, 1, 1, 1, 1, 1, 1, NULL)",
        "INSERT INTO NVTX_EVENTS VALUES (-9, 9223372036854775807, 59, 0, 0, 0, 'step 9', 'x', 0, 0)",
        "INSERT INTO StringIds VALUES (77, x'ff00fe')",
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ('soon', '', '')",
    ))  # fmt: skip
    assert fed.reason == "done" and sum(len(calls.t_ns) for calls in fed.of(Calls)) == 160


@pytest.mark.parametrize("seed", range(40))
def test_fuzz(report: Path, tmp_path: Path, seed: int) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(mutate(report.read_bytes(), seed))
    fed = run(bad)
    assert fed.reason == "done" or fed.reason.startswith("cut")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for data in (b"", b"hello", b"SQLite format 3\x00" + bytes(200)):
        fed = feed("nsys", data)
        assert fed.reason.startswith("cut: bad input: file0") and len(fed.said) == 1


def test_steps_by_name() -> None:
    def number(name: str) -> str | None:
        found = STEP.fullmatch(name)
        return found[1] or "" if found else None

    names = ("iteration 12", "step_7", "ProfilerStep#3", "train_step", "Iter: 5")
    assert [number(name) for name in names] == ["12", "7", "3", "", "5"]
    for name in ("optimizer.step", "Optimizer.step#AdamW.step", "micro step 3", "iterate"):
        assert number(name) is None
