# SPDX-License-Identifier: Apache-2.0
"""From held ranks with GPUs to the name of the slow one: shim, pause, tasks on the device, Session, judge.

The libraries under the shim are the tests' own: a libcublasLt that multiplies on the host, and takes longer on one
rank.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ghtools.job.budget import Bounded
from ghtools.job.native import SHIM
from ghtools.job.pause import HeldRanks, pause
from ghtools.locate.gemm_session import Session
from ghtools.locate.gemm_test import Plan
from ghtools.stream.records import Finding, Gemm
from tests.csrc.build import HERE, cc
from tests.csrc.test_cuda_job import boundary, ended

PLAN = Plan(edge=48, window_ms=160, gpu_bytes=1 << 20)  # a GPU's windows are 40 ms
FORMATS = {"float8_e4m3", "float16", "bfloat16", "float32"}
UUID = "GPU-00102030-4050-6070-8090-a0b0c0d000{:02x}"


@contextmanager
def held(folder: Path, env: dict[str, str], each: dict[int, dict[str, str]]) -> Iterator[HeldRanks]:
    """Four ranks that stand at a boundary, with what `each` has more in its environment; they must end well."""
    cuda = cc(folder / "libcuda.so.1", [HERE / "fakecuda.c"], "-Wl,-soname,libcuda.so.1", "-O2")
    lt = cc(
        folder / "libcublasLt.so.12", [HERE / "fakecublaslt.c", cuda], "-Wl,-soname,libcublasLt.so.12", "-O2"
    )  # fmt: skip
    nccl = cc(folder / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2")
    program = cc(
        folder / "cuda_rank", [HERE / "cuda_rank.c"], "-Wl,--no-as-needed", str(cuda), str(lt), str(nccl),
        f"-Wl,-rpath,{folder}",
    )  # fmt: skip
    env = {**env, "GHT_JOB": "j", "WORLD_SIZE": "4", "FAKE_CUDA_REAL": "1", "LD_PRELOAD": str(SHIM)}
    ranks = [
        subprocess.Popen(
            [program, "80", "6", "1.0", "2"],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank), **each.get(rank, {})},
        )
        for rank in range(4)
    ]
    try:
        job, stops = boundary(env)
        with pause(job, stops) as made:
            yield made
        assert ended(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("slow", [None, 2])
def test_the_slow_gpu_is_named(slow: int | None, tmp_path: Path, clean_env: dict[str, str]) -> None:
    each = {rank: {"FAKE_LT_NS": "9000000" if rank == slow else "3000000"} for rank in range(4)}
    env = {**clean_env, "FAKE_CUDA_COPY_NS": "2000000"}
    session = Session(PLAN)
    with held(tmp_path, env, each) as ranks:
        measured = session.test(Bounded(ranks, 20.0))
    gpus = [one for one in measured if one.device != "cpu"]
    assert {one.device for one in gpus} == {UUID.format(rank) for rank in range(4)}
    assert {(one.dtype, one.size) for one in gpus if one.test == "gemm"} == {(dtype, 48) for dtype in FORMATS}
    assert [one.why for one in measured if one.status != "ok"] == []
    assert all(one.facts["pci"] == f"0000:{one.rank}0:00.0" and len(one.repeats) in (3, 6) for one in gpus)
    assert {(one.test, one.dtype) for one in measured if one.device == "cpu"} == {("gemm", "float32")}
    records = session.judged(measured)
    named = [r for r in records if isinstance(r, Finding) and r.verdict == "confirmed" and r.what == "device"]
    named = [finding for finding in named if "and the GPU gives no reason" in finding.text]
    # A machine that is busy with other things may keep a rank from filling its stream: not three times as long.
    assert [finding.ranks for finding in named if finding.ratio > 2] == ([] if slow is None else [[slow]])
    if not any(isinstance(r, Finding) and r.verdict == "confirmed" for r in records):
        # Nobody was slow in the GEMM, not even a CPU, so the memory was looked at as well.
        assert len([one for one in gpus if one.test == "bandwidth" and one.size == 1 << 20]) == 4
    assert {r.device for r in records if isinstance(r, Gemm)} == {"cpu", *(UUID.format(rank) for rank in range(4))}


@pytest.mark.slow
def test_gpus_without_fp8_and_one_without_room(tmp_path: Path, clean_env: dict[str, str]) -> None:
    each = {rank: {"FAKE_CUDA_CAPABILITY": "80"} for rank in range(4)}
    each[3]["FAKE_CUDA_FREE"] = "1000000"
    with held(tmp_path, {**clean_env, "FAKE_CUDA_COPY_NS": "2000000"}, each) as ranks:
        measured = Session(PLAN).test(Bounded(ranks, 20.0))
    why = {(one.rank, one.test, one.dtype): (one.status, one.why) for one in measured if one.status != "ok"}
    no_room = ("failed", "the test would take over half of the GPU's memory that is left")
    assert why == {
        **{(rank, "gemm", "float8_e4m3"): ("skipped", "this GPU has no FP8") for rank in range(4)},
        **{(3, "gemm", dtype): no_room for dtype in ("float16", "bfloat16", "float32")},
        (3, "bandwidth", "int32"): no_room,
    }


@pytest.mark.slow
def test_a_job_stands_no_longer_than_it_may(tmp_path: Path, clean_env: dict[str, str]) -> None:
    with held(tmp_path, clean_env, {}) as ranks:
        measured = Session(PLAN).test(Bounded(ranks, 0.3))
    left_out = [one for one in measured if one.status != "ok" and one.device != "cpu"]
    assert {one.why for one in left_out} == {"the job would have stood too long"}
    assert len([one for one in left_out if one.test == "gemm"]) == 4 * 4
