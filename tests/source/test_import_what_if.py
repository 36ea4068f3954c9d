# SPDX-License-Identifier: Apache-2.0
"""gh-import what-if: per-operation times as parquet."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ghtools.stream.records import FLAG_EXEC, OP_CODE, Calls, Comm, Iters, Job, Sample, columns

from .feed import Fed, feed, mutate, public

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'ghtools[parquet]')")
pq = pytest.importorskip("pyarrow.parquet")


def rows() -> list[dict[str, Any]]:
    """Two replicas of two stages on ranks 0, 2, 4, 6 (tensor parallel groups of 2 made one), two steps of 1 s."""
    made = []
    for step in (7, 9):
        for rank in (0, 2, 4, 6):
            dp, stage = rank // 2 % 2, rank // 4
            forward, backward = ("recv", "send") if stage else ("send", "recv")
            kinds = [
                ("forward-compute", 0.0, 0.3 if stage else 0.2),
                (f"forward-{forward}", 0.2, 0.1),
                (f"backward-{backward}", 0.4, 0.1),
                ("embedding-grads-all-reduce", 0.6, 0.05),
                ("grads-reduce-scatter", 0.7, 0.1 + 0.1 * dp),
                ("params-all-gather", 0.9, 0.1),
            ]
            made += [
                {
                    "dp_rank": dp,
                    "stage": stage,
                    "rank": rank,
                    "step": step,
                    "optype": op,
                    "start_ts": begin,
                    "duration": took,
                }
                for op, begin, took in kinds
            ]
    return made


def parquet(table: Any, **changes: Any) -> bytes:
    if isinstance(table, list):
        table = pa.Table.from_pylist(table)
    for name, values in changes.items():
        table = (
            table.drop_columns([name])
            if values is None
            else table.set_column(table.column_names.index(name), name, values)
        )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def by_rank(fed: Fed, kind: type) -> dict[int, Any]:
    """The batches of each rank as one record."""
    found: dict[int, list[Any]] = {}
    for record in fed.of(kind):
        found.setdefault(record.rank, []).append(record)
    whole = {}
    for rank, parts in found.items():
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns(kind)}
        whole[rank] = kind(rank=rank, **joined)
    return whole


def test_operations_groups_and_steps() -> None:
    fed = feed("auto", parquet(rows()))
    assert fed.reason == "done" and not fed.said
    [job] = fed.of(Job)
    assert job.world_size == 8 and job.layout == {"tp": 2, "dp": 2, "pp": 2} and len(job.ranks) == 4
    calls = by_rank(fed, Calls)
    first = calls[0]
    ops = ["send", "recv", "all_reduce", "reduce_scatter", "all_gather"]
    assert first.op.tolist() == [OP_CODE[op] for op in ops] * 2 and first.peer.tolist() == [1, 1, -1, -1, -1] * 2
    assert calls[4].peer.tolist() == [0, 0, -1, -1, -1] * 2
    assert first.dur_ns.tolist() == [100_000_000, 100_000_000, 50_000_000, 100_000_000, 100_000_000] * 2
    assert first.t_ns.tolist()[4:6] == [900_000_000, 1_200_000_000]  # the second step follows the first
    assert all(int(flags) & FLAG_EXEC for flags in first.flags)
    comm = {(record.rank, record.name): record for record in fed.of(Comm)}
    assert comm[0, "pp"].ranks == [0, 4] and comm[4, "pp"].comm == comm[0, "pp"].comm
    assert comm[0, "dp"].ranks == [0, 2] and comm[6, "dp"].ranks == [4, 6] and comm[6, "dp"].comm_rank == 1
    assert comm[2, "embedding"].ranks == [2, 6]
    iters = by_rank(fed, Iters)
    assert iters[6].index.tolist() == [7, 9] and iters[6].dur_ns.tolist() == [10**9, 10**9]
    samples = [s for s in fed.of(Sample) if s.labels["rank"] == 4]
    assert {s.metric for s in samples} == {"forward-compute"} and {s.labels["stage"] for s in samples} == {1}
    assert [value for s in samples for value in s.value.tolist()] == [0.3, 0.3]
    assert first.seq.tolist() == list(range(10))


def test_an_operation_of_another_name_is_said_once() -> None:
    fed = feed("what-if", parquet([{**row, "optype": "expert-all-gather"} for row in rows()] + rows()))
    assert fed.reason == "done" and len(fed.said) == 1 and "expert-all-gather" in fed.said[0]
    assert "expert-all-gather" in {sample.metric for sample in fed.of(Sample)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"optype": None}, "no column optype"), ({"rank": None, "duration": None}, "no column rank, duration"),
        ({"rank": [["x"] * 48]}, "column rank is not all whole numbers"),
        ({"rank": [[None] * 48]}, "column rank is not all whole numbers"),
        ({"step": [[-1] * 48]}, "column step has numbers out of range"),
        ({"step": [[1 << 40] * 48]}, "column step has numbers out of range"),
        ({"duration": [[float("nan")] * 48]}, "no time in seconds"),
        ({"duration": [[-1.0] * 48]}, "no time in seconds"),
        ({"start_ts": [[1e300] * 48]}, "no time in seconds"), ({"start_ts": [[None] * 48]}, "not all numbers"),
        ({"optype": [[None] * 48]}, "no optype"), ({"optype": [[[1]] * 48]}, "no sound parquet"),
    ],
)  # fmt: skip
def test_bad_columns_are_named(changes: dict[str, Any], why: str) -> None:
    fed = feed("what-if", parquet(rows(), **changes))
    assert fed.reason.startswith("cut: bad input: file0") and len(fed.said) == 1 and why in fed.said[0]


def test_other_files() -> None:
    empty = parquet(pa.Table.from_pylist(rows()).slice(0, 0))
    bad = "no sound parquet"
    for data, why in ((b"", bad), (b"PAR1" + bytes(50), bad), (parquet(rows())[:-40], bad), (empty, "no rows")):
        fed = feed("what-if", data, parquet(rows()))
        assert len(fed.said) == 1 and why in fed.said[0] and len(by_rank(fed, Calls)) == 4  # the sound file is read


@pytest.mark.parametrize("seed", range(120))
def test_fuzz(seed: int) -> None:
    fed = feed("what-if", mutate(parquet(rows()), seed))
    assert fed.reason == "done" or fed.reason.startswith("cut")


def test_without_pyarrow_it_says_what_to_install(tmp_path: Any) -> None:
    (tmp_path / "x.parquet").write_bytes(parquet(rows()))
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from ghtools.commands.import_ import main\n"
        f"sys.argv = ['gh-import', 'what-if', {str(tmp_path / 'x.parquet')!r}]\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 4 and "pip install 'ghtools[parquet]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.public_data
def test_the_slow_worker_waits_least() -> None:
    """trace-AR: rank 0 is slow (authors), and has the shortest reduce-scatter of its group; steps as published."""
    fed = feed("auto", public("what-if", "trace-AR.parquet"))
    assert fed.reason == "done" and not fed.said
    calls, iters = by_rank(fed, Calls), by_rank(fed, Iters)
    assert sorted(calls) == list(range(0, 64, 4)) and fed.of(Job)[0].layout == {"tp": 4, "dp": 4, "pp": 4}
    scatter = {rank: c.dur_ns[c.op == OP_CODE["reduce_scatter"]] for rank, c in calls.items()}
    group = next(comm.ranks for comm in fed.of(Comm) if comm.rank == 0 and comm.name == "dp")
    assert group == [0, 4, 8, 12]
    assert np.all(np.argmin([scatter[rank] for rank in group], axis=0) == 0) and len(scatter[0]) == 44
    told = json.loads(public("what-if", "result-AR.json"))["step_t_base"]
    spans = [
        max(int(i.t_ns[n] + i.dur_ns[n]) for i in iters.values()) - min(int(i.t_ns[n]) for i in iters.values())
        for n in range(44)
    ]
    assert iters[0].index.tolist() == sorted(map(int, told))
    assert np.allclose(np.array(spans) / 1e9, [told[str(step)] for step in iters[0].index.tolist()], rtol=1e-3)


@pytest.mark.public_data
def test_a_heavier_stage_can_be_seen() -> None:
    """trace-ST: the last stage computes longest on both replicas alike (authors: by design)."""
    fed = feed("what-if", public("what-if", "trace-ST.parquet"))
    values: dict[int, list[float]] = {}
    for s in fed.of(Sample):
        if s.metric == "forward-compute":
            values.setdefault(s.labels["rank"], []).extend(s.value.tolist())
    compute = {rank: float(np.median(value)) for rank, value in values.items()}
    last = {s.labels["rank"] for s in fed.of(Sample) if s.labels["stage"] == 3}
    assert len(compute) == 8 and min(compute[rank] for rank in last) > max(
        v for r, v in compute.items() if r not in last
    )
