# SPDX-License-Identifier: Apache-2.0
"""What is asked of ranks with and without GPUs, and what is made of their answers. The ranks are made up: they stand
for answers of real GPUs, which cannot exist here, and for hostile ones."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest

from ghtools.job.budget import Bounded
from ghtools.job.task import BANDWIDTH, GEMM, GPU_COPY, GPU_GEMM, Task, TaskResult
from ghtools.locate.gemm_job_gpu import FORMATS, Gpu, find_gpus
from ghtools.locate.gemm_judge import judge
from ghtools.locate.gemm_test import EDGE, Plan, measure, pooled, records_of
from ghtools.locate.nvml_facts import Nvml
from ghtools.locate.nvml_watch import NvmlWatch

GB = 1 << 30
UUID = "00112233-4455-6677-8899-aabbccddee{:02x}"
NO_GPU = TaskResult(errno.ENODEV, [], "this thread of the rank uses no GPU")


def facts(rank: int, room: int = 40 * GB, capability: int = 90, lt: int = 120903, edge: int = 8192) -> TaskResult:
    said = f"0000:{rank:02x}:00.0 {UUID.format(rank)} NVIDIA H200"
    return TaskResult(0, [0, 0, 1, -1, -1, -1, 0, 0, room, capability, lt, edge], said)


class Ranks:
    """Held ranks: what each says of its GPU, and how fast it is (rank 0 first). Remembers what it was asked."""

    def __init__(self, answers: list[TaskResult], speeds: list[float] | None = None) -> None:
        self.answers, self.speeds = answers, speeds or [1.0] * len(answers)
        self.asked: list[dict[int, Task]] = []

    @property
    def ranks(self) -> list[int]:
        return list(range(len(self.answers)))

    @property
    def hosts(self) -> Mapping[int, str]:
        return dict.fromkeys(self.ranks, "elsewhere")

    @property
    def pids(self) -> Mapping[int, int]:
        return dict.fromkeys(self.ranks, 1)

    def run(self, tasks: Mapping[int, Task], timeout_s: float) -> dict[int, TaskResult]:
        self.asked.append(dict(tasks))
        return {rank: self._one(rank, task) for rank, task in tasks.items()}

    def _one(self, rank: int, task: Task) -> TaskResult:
        if task.kind == GPU_COPY and not (task.args and task.args[1]):
            return self.answers[rank]
        size, repeats, _, window_ns, form, _ = task.args
        gpu = task.kind in (GPU_GEMM, GPU_COPY)
        work = int(self.speeds[rank] * 1e12) if gpu else 10**9
        head = [repeats, form, 1, -1, -1, -1, 7, size or 8192]
        rows = [[nth, window_ns + nth, -1 if gpu else window_ns, work, *[-1] * 8] for nth in range(repeats)]
        return TaskResult(0, [*head, *(value for row in rows for value in row)])


def kinds(ranks: Ranks) -> list[tuple[int, list[int]]]:
    return [(next(iter(asked.values())).kind, sorted(asked)) for asked in ranks.asked]


def test_ranks_without_gpus_cost_one_quick_round() -> None:
    ranks = Ranks([NO_GPU, TaskResult(errno.ENOSYS), NO_GPU])
    measured = measure(Bounded(ranks, 100), ranks.ranks, Plan())
    assert kinds(ranks) == [(GPU_COPY, [0, 1, 2]), (GEMM, [0, 1, 2]), (BANDWIDTH, [0, 1, 2])]
    assert all(task == Task(GPU_COPY) for task in ranks.asked[0].values())
    assert {(one.device, one.status) for one in measured} == {("cpu", "ok")}


def test_processes_of_our_own_are_not_asked() -> None:
    ranks = Ranks([NO_GPU] * 3)
    measure(ranks, ranks.ranks, Plan())
    assert kinds(ranks) == [(GEMM, [0, 1, 2]), (BANDWIDTH, [0, 1, 2])]


def test_what_is_asked_of_gpus() -> None:
    ranks = Ranks([facts(0), NO_GPU, facts(2), facts(3)])
    measured = measure(Bounded(ranks, 100), ranks.ranks, Plan(window_ms=400))
    assert kinds(ranks) == [
        (GPU_COPY, [0, 1, 2, 3]), *[(GPU_GEMM, [0, 2, 3])] * 4, (GPU_COPY, [0, 2, 3]),
        (GEMM, [0, 1, 2, 3]), (BANDWIDTH, [1]),
    ]  # fmt: skip
    assert [asked[0].args for asked in ranks.asked[1:6]] == [
        *[(8192, 3, 1, 100_000_000, form, 1) for form in FORMATS.values()],
        (2 * GB, 3, 1, 100_000_000, 0, 1),
    ]
    first = measured[0]
    assert (first.device, first.kind, first.together) == (f"GPU-{UUID.format(0)}", "NVIDIA H200 in a job", 3)
    assert (first.dtype, first.size, first.threads, first.facts) == ("float8_e4m3", 8192, 1, {"pci": "0000:00:00.0"})


@pytest.mark.parametrize(
    ("edge", "edges", "wanted"),
    [(EDGE, (8192, 4096, 8192), 4096), (EDGE, (8192, 0, 8192), 8192), (512, (8192, 4096, 0), 512)],
)  # fmt: skip
def test_all_have_one_size(edge: int, edges: tuple[int, ...], wanted: int) -> None:
    """That which fits all that have room; or the one that was asked for."""
    ranks = Ranks([facts(rank, edge=fits) for rank, fits in enumerate(edges)])
    measure(Bounded(ranks, 100), ranks.ranks, Plan(edge=edge))
    assert {task.args[0] for asked in ranks.asked for task in asked.values() if task.kind == GPU_GEMM} == {wanted}


def test_ranks_on_one_device_share_its_room() -> None:
    ranks = Ranks([facts(0, room=3 * GB), facts(0, room=3 * GB), facts(2, room=3 * GB)])
    measure(Bounded(ranks, 100), ranks.ranks, Plan(tests=("bandwidth",)))
    assert [task.args[0] for task in ranks.asked[1].values()] == [GB] * 3
    assert [task.args[5] for task in ranks.asked[1].values()] == [2, 2, 1]


def test_what_a_gpu_or_a_job_cannot_is_left_out() -> None:
    ranks = Ranks([facts(0, capability=80), facts(1, lt=-1), facts(2)])
    measured = measure(Bounded(ranks, 100), ranks.ranks, Plan(tests=("gemm",)))
    why = {(one.rank, one.dtype): one.why for one in measured if one.status == "skipped"}
    assert why == {(0, "float8_e4m3"): "this GPU has no FP8"} | {
        (1, dtype): "the job has no cuBLASLt loaded" for dtype in FORMATS
    }


def test_a_gpu_that_cannot_be_asked_is_no_silence() -> None:
    ranks = Ranks([TaskResult(errno.EIO, [], "cuMemGetInfo gave CUDA's error 700"), NO_GPU])
    measured = measure(Bounded(ranks, 100), ranks.ranks, Plan())
    assert [(one.rank, one.test, one.why) for one in measured if one.status == "failed"] == [
        (0, "gemm", "cuMemGetInfo gave CUDA's error 700"),
        (0, "bandwidth", "cuMemGetInfo gave CUDA's error 700"),
    ]
    assert kinds(ranks)[1:] == [(GEMM, [0, 1]), (BANDWIDTH, [0, 1])]


@pytest.mark.parametrize(
    "answer",
    [
        TaskResult(0, [1] * 12, "no such thing"),
        TaskResult(0, [1] * 11, f"0 {UUID.format(1)} N"),
        TaskResult(0, [], ""),
        TaskResult(0, [1] * 12, f"0 {UUID.format(1).upper()} N"),
        TaskResult(0, [1] * 12, f"0 {UUID.format(1)} {'N' * 200}"),
    ],
)
def test_an_answer_that_makes_no_sense_is_no_gpu(answer: TaskResult) -> None:
    ranks = Ranks([answer])
    gpus, troubles = find_gpus(ranks, [0])
    assert gpus == {} and troubles == {0: "what it says of its GPU makes no sense"}


def test_a_part_of_a_gpu_has_a_name_of_its_own() -> None:
    said = f"0000:01:00.0 {UUID.format(1)} NVIDIA H200 MIG 1g.18gb"
    gpus, _ = find_gpus(Ranks([TaskResult(0, facts(1).values, said)]), [0])
    assert gpus[0] == Gpu(0, "elsewhere", "0000:01:00.0", f"MIG-{UUID.format(1)}", "NVIDIA H200 MIG 1g.18gb",
                          40 * GB, 90, True, 8192)  # fmt: skip


def test_the_slow_gpu_is_judged_and_rounds_are_pooled() -> None:
    ranks = Ranks([facts(rank) for rank in range(4)], [1, 1, 0.5, 1])
    held = Bounded(ranks, 100)
    measured = pooled(measure(held, ranks.ranks, Plan()), measure(held, ranks.ranks, Plan()))
    assert {len(one.repeats) for one in measured} == {6}
    confirmed = [finding for finding in judge(measured, {}, 0) if finding.verdict == "confirmed"]
    assert [(f.ranks, f.what, round(f.ratio, 3)) for f in confirmed] == [([2], "device", 2)]
    (record, *_) = records_of(next(one for one in measured if one.rank == 2), 0)
    assert (record.device, record.dtype) == (f"GPU-{UUID.format(2)}", "float8_e4m3")


class FakeNvml(Nvml):
    """A driver's answers, one after another; no driver can exist here."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        super().__init__()
        self.answers = answers

    def facts(self, uuid: str) -> dict[str, Any]:
        return self.answers.pop(0) if self.answers else {}


def test_of_what_nvml_says_the_busiest_moment_is_kept_and_all_reasons() -> None:
    nvml = FakeNvml([
        {"power_w": 90.0, "throttle": ["power brake"], "sm_mhz": 300},
        {"power_w": 690.0, "throttle": ["thermal"], "sm_mhz": 1400},
        {"power_w": 80.0, "throttle": [], "sm_mhz": 345},
    ])  # fmt: skip
    watch = NvmlWatch(["GPU-1"], lambda: nvml)
    for _ in range(4):
        watch._look()
    assert watch.facts("GPU-1") == {"power_w": 690.0, "throttle": ["power brake", "thermal"], "sm_mhz": 1400}
    assert watch.facts("GPU-2") == {}


def test_a_watch_looks_while_its_block_runs_and_no_longer() -> None:
    nvml = FakeNvml([{"power_w": 1.0}] * 1000)
    with NvmlWatch(["GPU-1"], lambda: nvml) as watch:
        while not watch.facts("GPU-1"):
            watch._over.wait(0.001)
    left = len(nvml.answers)
    assert not watch._thread.is_alive() and len(nvml.answers) == left < 1000
    with NvmlWatch([]) as watch:
        assert not watch._thread.is_alive()
