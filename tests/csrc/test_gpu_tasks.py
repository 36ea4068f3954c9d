# SPDX-License-Identifier: Apache-2.0
"""GEMM and copies on a rank's GPU, against a libcuda without a device and a libcublasLt that multiplies on the host.

Both end the process at the first call that the real ones could take amiss, and gpu_run looks after each task whether
anything is left: so each exit status of 0 says so much, too.
"""

from __future__ import annotations

import errno
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ghtools.locate.gemm_rows import HEAD, HEAD_SIZE, rows_of
from tests.csrc.build import HERE, SHIM_SOURCES, cc
from tests.csrc.test_stress import SANITIZERS

GEMM, COPY = "6", "7"
FP8, FP16, BF16, FP32 = "1", "2", "3", "4"
WHO = "0000:00:00.0 00102030-4050-6070-8090-a0b0c0d00000 Fake GPU of type 0"
NO_ROOM = "the test would take over half of the GPU's memory that is left"
MS = 1_000_000


def build(folder: Path, flags: list[str], cublaslt: bool = True) -> Path:
    cuda = cc(folder / "libcuda.so.1", [HERE / "fakecuda.c"], "-Wl,-soname,libcuda.so.1", *flags)
    lt = cc(
        folder / "libcublasLt.so.12", [HERE / "fakecublaslt.c", cuda], "-Wl,-soname,libcublasLt.so.12", *flags
    )  # fmt: skip
    libraries = [str(cuda), str(lt)] if cublaslt else [str(cuda)]
    return cc(
        folder / "gpu_run", [HERE / "gpu_run.c", *SHIM_SOURCES], "-rdynamic", *flags, "-Wl,--no-as-needed", *libraries,
        f"-Wl,-rpath,{folder}",
    )  # fmt: skip


@pytest.fixture(scope="module", params=["address", pytest.param("plain", marks=pytest.mark.long)])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the shim in it, so that a sanitizer sees both."""
    return build(tmp_path_factory.mktemp(f"gpu-{request.param}"), SANITIZERS[request.param])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a sanitizer."""
    return build(tmp_path_factory.mktemp("gpu"), ["-O2"])


@dataclass(frozen=True)
class Result:
    """What `once` prints."""

    status: int
    values: list[int]
    said: str


def run(program: Path, env: dict[str, str], how: str, *task: str, **more: str) -> str:
    env = {**env, "FAKE_CUDA_REAL": "1", "FAKE_LT_NS": "20000", **more}
    done = subprocess.run([program, how, *task], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def once(program: Path, env: dict[str, str], *task: str, **more: str) -> Result:
    status, values, said = run(program, env, "once", *task, **more).split("\n")[:3]
    return Result(int(status), [int(value) for value in values.split()], said)


@pytest.mark.parametrize("form", [FP8, FP16, BF16, FP32])
def test_a_product_is_made_and_timed(form: str, program: Path, clean_env: dict[str, str]) -> None:
    result = once(program, clean_env, GEMM, "70", "3", str(5 * MS), form, FAKE_LT_NS=str(MS // 2))
    assert (result.status, result.said) == (0, WHO)
    rows = rows_of(result.values)
    assert len(rows) == 3 and result.values[HEAD_SIZE] == 64 and result.values[1] == int(form)
    for row in rows:
        assert row.work % (2 * 64**3) == 0
        assert row.wall_ns >= 0.999 * row.work / (2 * 64**3) * MS / 2  # so long each takes by the fake's clock
        assert (row.cpu_ns, row.waited_ns, row.khz) == (-1, -1, -1)
    assert [row.t_ns for row in rows] == sorted(row.t_ns for row in rows)


def test_copies_are_made_and_timed(program: Path, clean_env: dict[str, str]) -> None:
    result = once(program, clean_env, COPY, "1000000", "3", str(5 * MS), "0", FAKE_CUDA_COPY_NS=str(MS // 2))
    assert (result.status, result.said) == (0, WHO)
    used = result.values[HEAD_SIZE]
    assert 1_000_000 - 2048 < used <= 1_000_000
    assert len(rows_of(result.values)) == 3 and all(row.work % used == 0 for row in rows_of(result.values))


@pytest.mark.parametrize(
    ("unused", "together", "room", "edge"),
    [
        (8 << 30, 1, 4 << 30, 8192),
        (8 << 30, 8, 512 << 20, 4096),
        (500_000_000, 1, 250_000_000, 4096),
        (1 << 20, 1, 1 << 19, 0),
    ],
)
def test_what_there_is_is_told_and_nothing_is_taken(
    unused: int, together: int, room: int, edge: int, plain: Path, clean_env: dict[str, str]
) -> None:
    task = (COPY, "0", "0", "0", "0", str(together))
    result = once(plain, clean_env, *task, FAKE_CUDA_FREE=str(unused), FAKE_CUDA_ALLOC_FAILS="1")
    assert result.status == 0 and result.said == WHO
    assert result.values[HEAD:] == [room, 90, 120903, edge] and rows_of(result.values) == ()


def test_a_default_is_halved_until_there_is_room(plain: Path, clean_env: dict[str, str]) -> None:
    """Half of what is free holds 256 MiB of arrays, but not 2 GiB."""
    result = once(plain, clean_env, COPY, "0", "1", "0", "0", FAKE_CUDA_FREE=str(600 << 20), FAKE_CUDA_COPY_NS="9000")
    assert (result.status, result.values[HEAD_SIZE]) == (0, 256 << 20)


FAILURES = [
    # task, environment, status, what is said
    ((GEMM, "32", "1", "0", FP16), {"FAKE_CUDA_FREE": "60000000"}, errno.ENOMEM, NO_ROOM),
    ((COPY, "0", "1", "0", "0"), {"FAKE_CUDA_FREE": "60000000"}, errno.ENOMEM, NO_ROOM),
    ((GEMM, "32", "1", "0", FP8), {"FAKE_CUDA_CAPABILITY": "86"}, errno.ENOTSUP, "this GPU has no FP8"),
    ((GEMM, "32", "1", "0", FP8), {"FAKE_CUDA_CAPABILITY": "89"}, 0, WHO),
    ((GEMM, "32", "1", "0", FP16), {"FAKE_CUDA_POOLS": "0"}, errno.ENOTSUP, "this GPU has no pools of memory"),
    ((GEMM, "32", "1", "0", BF16), {"FAKE_LT_NOTHING": "1"}, errno.ENOTSUP,
     "cuBLASLt knows no way to multiply BF16 here"),
    ((GEMM, "32", "2", "0", FP8), {"FAKE_LT_WRONG": "1"}, errno.EBADMSG, "a product was wrong"),
    ((GEMM, "32", "2", "0", FP32), {"FAKE_LT_WRONG": "1"}, errno.EBADMSG, "a product was wrong"),
    ((GEMM, "32", "2", "0", BF16), {"FAKE_LT_CLEARS": "1"}, errno.EBADMSG, "a product was wrong"),
    ((GEMM, "32", "2", "0", FP16), {"FAKE_LT_WRONG": "-5"}, errno.EBADMSG, "the last product was not the first"),
    ((GEMM, "32", "2", "0", FP16), {"FAKE_LT_WRONG": "-6"}, 0, WHO),  # 1 + 1 + 1 to warm up, then 2
    ((COPY, "1048576", "1", "0", "0"), {"FAKE_CUDA_BAD_COPY": "10"}, errno.EBADMSG, "a copy was wrong"),
    ((COPY, "1048576", "1", "0", "0"), {"FAKE_CUDA_BAD_COPY": "1"}, errno.EBADMSG, "a copy was wrong"),
    ((COPY, "1048576", "1", "0", "0"), {"FAKE_CUDA_BAD_COPY": "11"}, 0, WHO),
    ((GEMM, "-1", "1", "0", FP8), {}, errno.EINVAL, "size out of range"),
    ((GEMM, "8", "1", "0", FP8), {}, errno.EINVAL, "size out of range"),
    ((GEMM, "32769", "1", "0", FP8), {}, errno.EINVAL, "size out of range"),
    ((COPY, "99999999999999", "1", "0", "0"), {}, errno.EINVAL, "size out of range"),
    ((COPY, "1000", "1", "0", "0"), {}, errno.EINVAL, "size out of range"),
    ((GEMM, "32", "17", "0", FP8), {}, errno.EINVAL, "repeats or window out of range"),
    ((GEMM, "32", "1", "-1", FP8), {}, errno.EINVAL, "repeats or window out of range"),
    ((GEMM, "32", "1", "0", "5"), {}, errno.EINVAL, "no such format"),
    ((GEMM, "32", "1", "0", "0"), {}, errno.EINVAL, "no such format"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "more", "status", "said"), FAILURES)
def test_trouble_is_an_errno_and_a_sentence(
    task: tuple[str, ...], more: dict[str, str], status: int, said: str, plain: Path, clean_env: dict[str, str]
) -> None:
    result = once(plain, clean_env, *task, **{"FAKE_CUDA_COPY_NS": "9000", **more})
    assert (result.status, result.said) == (status, said)


@pytest.mark.parametrize("nth", range(1, 5))
def test_an_allocation_that_finds_no_room(nth: int, program: Path, clean_env: dict[str, str]) -> None:
    for task in [(GEMM, "32", "1", "0", FP32), (COPY, "65536", "1", "0", "0")][: 1 if nth > 2 else 2]:
        result = once(program, clean_env, *task, FAKE_CUDA_ALLOC_FAILS=str(nth))
        assert (result.status, result.said) == (errno.ENOMEM, "the GPU has no memory left (cuMemAllocFromPoolAsync)")


@pytest.mark.slow
@pytest.mark.parametrize("task", [(GEMM, "16", "2", "0", FP8), (COPY, "65536", "2", "0", "0")])
def test_any_call_may_fail(task: tuple[str, ...], program: Path, clean_env: dict[str, str]) -> None:
    """Of driver and library, one after another: it is noticed, and nothing is left."""
    assert int(run(program, clean_env, "faults", *task, FAKE_CUDA_COPY_NS="9000")) > 100


@pytest.mark.parametrize("task", [(GEMM, "16", "2", str(MS), FP8), (COPY, "65536", "2", str(MS), "0")])
def test_the_leave_may_end_anywhere(task: tuple[str, ...], program: Path, clean_env: dict[str, str]) -> None:
    more = {"FAKE_CUDA_COPY_NS": "50000", "FAKE_LT_NS": "50000"}
    assert int(run(program, clean_env, "leaves", *task, **more)) > 20


@pytest.mark.slow
def test_a_device_that_hangs_does_not_hold_the_rank(program: Path, clean_env: dict[str, str]) -> None:
    for nth in ("1", "2", "5"):
        result = once(program, clean_env, GEMM, "16", "2", "0", FP16, FAKE_LT_HANGS=nth, GPU_RUN_ASKS="2000")
        assert (result.status, result.said) == (errno.ECANCELED, "the time given was over")


def test_a_capture_is_not_disturbed(program: Path, clean_env: dict[str, str]) -> None:
    """Of the stream that the call names, and of one that blocks the default stream; then the capture is over."""
    assert run(program, clean_env, "captured", GEMM, "32", "1", "0", FP16).split() == [str(errno.EBUSY)] * 2 + ["0"]


def test_the_device_is_that_of_the_stream_in_the_call(program: Path, clean_env: dict[str, str]) -> None:
    assert run(program, clean_env, "contexts", GEMM, "32", "1", "0", FP16) == f"0 {WHO}\n"


def test_where_no_gpu_is_in_use(program: Path, clean_env: dict[str, str]) -> None:
    no = f"{errno.ENODEV}\nthis thread of the rank uses no GPU\n"
    assert run(program, clean_env, "no_context", GEMM, "32", "1", "0", FP16) == no
    assert run(program, clean_env, "unused", COPY, "0", "0", "0", "0").replace("\n\n", "\n") == no


@pytest.mark.slow
def test_no_library_is_loaded_for_a_test(tmp_path: Path, clean_env: dict[str, str]) -> None:
    """A cuBLASLt that could be found, and is not in use."""
    program = build(tmp_path, ["-O1"], cublaslt=False)
    env = {**clean_env, "LD_LIBRARY_PATH": str(tmp_path)}
    result = once(program, env, GEMM, "32", "1", "0", FP16)
    assert (result.status, result.said) == (errno.ENOSYS, "the job has no cuBLASLt loaded")
    assert once(program, env, COPY, "65536", "0", "0", "0").values[HEAD + 2] == -1
    assert once(program, env, COPY, "65536", "1", "0", "0", FAKE_CUDA_COPY_NS="9000").status == 0


def test_test_after_test(program: Path, clean_env: dict[str, str]) -> None:
    assert run(program, clean_env, "storm", GEMM, "32", "1", "0", BF16).split() == ["40"]


@pytest.mark.parametrize(("form", "kind"), [(FP16, np.float16), (FP32, np.float32)])
def test_the_checksum_is_that_of_the_product(
    form: str, kind: type[np.floating], plain: Path, clean_env: dict[str, str]
) -> None:
    edge, period, matrices = 64, 4093, []
    for seed in (1, 2):
        numbers, state = [], seed
        for _ in range(period):
            state = (state * 1664525 + 1013904223) % (1 << 32)
            numbers.append((state >> 16) % 7 - 3)
        matrices.append(np.resize(np.array(numbers, np.int64), edge * edge).reshape(edge, edge))
    a, b = matrices  # a row each is a column on the device
    product = np.ascontiguousarray((b @ a.T).astype(kind))  # column j of a transposed times b is row j of this
    checksum = 0
    for word in product.view(np.uint64).ravel().tolist():
        checksum = ((checksum ^ word) * 0x9E3779B97F4A7C15) % (1 << 64)
    result = once(plain, clean_env, GEMM, str(edge), "1", "0", form)
    assert result.values[6] == checksum >> 1
