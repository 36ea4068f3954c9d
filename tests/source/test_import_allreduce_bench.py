# SPDX-License-Identifier: Apache-2.0
"""gh-import allreduce-bench: durations go to the rank that announced itself."""

from collections import Counter

import numpy as np
import pytest

from ghtools.stream.records import OP_CODE, Calls, Comm, Job

from .feed import feed, mutate, public

LOG = """1 data size: 4.0 GB
node-a:11:22 [0] NCCL INFO comm 0x14 rank 0 nranks 2 cudaDev 0 busId 1 - Init COMPLETE
node-b:12:22 [3] NCCL INFO comm 0x15 rank 1 nranks 2 cudaDev 3 busId 2 - Init COMPLETE
0:
 duration: 1.5000 sec
 algo throughput: 1.0 bps, 1.0 Gbps
ignore me 3
1:
0:
 duration: 1.2500 sec
 duration: 1.0000 sec
ignore me 3
"""


def test_durations_of_interleaved_ranks() -> None:
    for name in ("allreduce-bench", "auto"):
        fed = feed(name, LOG)
        calls = {record.rank: record for record in fed.of(Calls)}
        assert calls[0].dur_ns.tolist() == [1_500_000_000, 1_000_000_000]
        assert calls[1].dur_ns.tolist() == [1_250_000_000]
        assert calls[0].seq.tolist() == [0, 1] and calls[0].bytes.tolist() == [4_000_000_000] * 2
        [job] = fed.of(Job)
        assert [(place["host"], place["local_rank"]) for place in job.ranks] == [("node-a", 0), ("node-b", 3)]


def test_nothing_found_is_one_line() -> None:
    fed = feed("allreduce-bench", "hello\n")
    assert fed.reason == "cut: no durations in file0" and len(fed.said) == 1


@pytest.mark.parametrize("seed", range(40))
def test_fuzz(seed: int) -> None:
    fed = feed("allreduce-bench", mutate((LOG * 3).encode(), seed), size=seed % 3 * 33)
    assert fed.reason == "done" or fed.reason.startswith("cut")


@pytest.mark.public_data
def test_bigscience_64_ranks() -> None:
    """No rank is slow in the five all-reduces (derived); the first of them is warm-up."""
    fed = feed("auto", public("bigscience", "n16_32gb_all_reduce_bench.txt"))
    table = np.zeros((64, 5))
    count: Counter[int] = Counter()
    for record in fed.of(Calls):
        assert set(record.op.tolist()) == {OP_CODE["all_reduce"]}
        table[record.rank, record.seq] = record.dur_ns / 1e9
        count[record.rank] += len(record.seq)
    assert set(count) == set(range(64)) and set(count.values()) == {5}
    assert np.all(np.ptp(np.sort(table[:, 1:], axis=0)[2:-2], axis=0) < 0.25)
    assert len({place["host"] for place in fed.of(Job)[0].ranks}) == 16
    assert fed.of(Comm)[0].size == 64
