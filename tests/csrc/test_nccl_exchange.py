# SPDX-License-Identifier: Apache-2.0
"""GH_TASK_NCCL_EXCHANGE between two processes, on a libcuda and a libnccl without devices that move data all the same.

The fakes end the process at the first call that a driver or the library could take amiss: memory freed that is in use,
ranges that are not allocated, a stream that is not done, a send of another size than the receive.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from ghtools.job.task import VALUES
from tests.csrc.build import CSRC, HERE, SHIM_SOURCES, cc
from tests.csrc.test_stress import SANITIZERS

SIZES = (1 << 20, 1 << 21)
RATE = 200  # MB/s
BOTH_AT_ONCE = 4
Env = dict[str, str]


@dataclass
class End:
    """What one of the two said."""

    returncode: int
    status: list[int] = field(default_factory=list)
    values: list[list[int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    left: tuple[int, ...] = ()  # events, streams, bytes
    launched: tuple[int, ...] = (0, 0, 0)  # sends, receives, groups
    stderr: str = ""


@pytest.fixture(
    scope="module", params=["thread", *(pytest.param(one, marks=pytest.mark.long) for one in ("plain", "address"))]
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the shim in it, so that a sanitizer sees all of it."""
    folder, flags = tmp_path_factory.mktemp(f"pair-{request.param}"), SANITIZERS[request.param]
    cuda = cc(folder / "libcuda.so.1", [HERE / "fakecuda.c"], "-Wl,-soname,libcuda.so.1", *flags)
    nccl = cc(folder / "libnccl.so.2", [HERE / "fakenccl.c"], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2", *flags)
    return cc(
        folder / "nccl_pair", [HERE / "nccl_pair.c", *SHIM_SOURCES], "-DWHOLE_SHIM", "-rdynamic", *flags,
        "-Wl,--no-as-needed", str(cuda), str(nccl), f"-Wl,-rpath,{folder}",
    )  # fmt: skip


@dataclass
class Pair:
    """Two ranks; `run` starts both and waits for them."""

    program: Path
    folder: Path
    env: Env

    def run(
        self, *, sizes: tuple[int, ...] = SIZES, ways: int = BOTH_AT_ONCE, repeats: int = 2, soft_ms: int = 20_000,
        hard_ms: int = 30_000, leave_ms: tuple[int, int] = (60_000, 60_000), connects: Env | None = None,
        waits: Env | None = None, comes: bool = True,
    ) -> tuple[End, End]:  # fmt: skip
        """The end that waits and the end that connects, each with more of an environment."""
        numbers = [str(n) for n in (ways, repeats, soft_ms, hard_ms)]
        env = {
            **self.env, "GHT_JOB": "pair", "FAKE_CUDA_REAL": "1", "FAKE_NCCL_DIR": str(self.folder),
            "FAKE_NCCL_RATE": str(RATE), "TSAN_OPTIONS": "die_after_fork=0",
        }  # fmt: skip
        ranks = [
            subprocess.Popen(
                [self.program, str(rank), *numbers, str(leave_ms[rank == 0]), *map(str, sizes)],
                env={**env, "RANK": str(rank), **((waits if rank else connects) or {})},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in (0, 1)
        ]  # fmt: skip
        places = []
        for rank in ranks:
            assert rank.stdout is not None
            places.append(rank.stdout.readline())
        if not comes:
            ranks[0].kill()
        for rank, place in zip(ranks, reversed(places), strict=True):
            assert rank.stdin is not None
            with suppress(BrokenPipeError):
                rank.stdin.write(" ".join(place.split()[:2]) + "\n")
                rank.stdin.flush()
        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(_end, ranks))
        for number, end in enumerate(ended):
            counts = self.folder / f"count-{number}"
            if counts.exists():
                end.launched = tuple(np.fromfile(counts, np.uint64, 3).tolist())
        return ended[1], ended[0]


def _end(process: subprocess.Popen[str]) -> End:
    out, err = process.communicate(timeout=120)
    lines = out.splitlines()
    end = End(process.returncode, stderr=err)
    for numbers, said in zip(lines[:-1:2], lines[1:-1:2], strict=True):
        status, count, *values = map(int, numbers.split())
        assert len(values) == count <= VALUES
        end.status.append(status)
        end.values.append(values)
        end.said.append(said)
    if lines:
        end.left = tuple(map(int, lines[-1].split()))
    return end


@pytest.fixture
def pair(program: Path, tmp_path: Path, clean_env: Env) -> Pair:
    folder = tmp_path / "channels"
    folder.mkdir()
    return Pair(program, folder, clean_env)


def well(*ends: End) -> None:
    """Nobody was ended by a fake or a sanitizer, and all that was taken was given back."""
    for end in ends:
        assert (end.returncode, end.stderr) == (0, ""), end
        assert end.left == (0, 0, 0)


def nothing(*ends: End) -> None:
    """And nothing was put on a stream."""
    well(*ends)
    for end in ends:
        assert end.launched == (0, 0, 0)


def test_both_ways_at_once(pair: Pair) -> None:
    waits, connects = pair.run()
    well(waits, connects)
    for end in (waits, connects):
        assert (end.status, end.said) == ([0], [""])
        took = np.array(end.values[0][3:]).reshape(2, 2)
        best = np.array(SIZES) / RATE * 1e3  # ns
        assert (took > 0.95 * best).all() and (took < 20 * best).all()
        assert end.values[0][2] > 0 > end.values[0][1]
        sends, receives, groups = end.launched
        assert (sends, receives) == (1 + 5 + 4 * 5, 1 + 5 + 4 * 5)  # warm-up, pings, four times one and four
        assert groups == 1 + 10 + 4 * 5
    assert connects.values[0][0] > 0 > waits.values[0][0]  # latency


def test_each_way_is_measured_where_it_arrives(pair: Pair) -> None:
    waits, connects = pair.run(ways=7, repeats=1)
    well(waits, connects)
    assert [value > 0 for value in waits.values[0][3:]] == [True, False, True] * 2
    assert [value > 0 for value in connects.values[0][3:]] == [False, True, True] * 2


def test_calls_that_return_while_they_are_in_progress(pair: Pair) -> None:
    waits, connects = pair.run(repeats=1, sizes=SIZES[:1], connects={"FAKE_NCCL_POLLS": "3"})
    well(waits, connects)
    assert waits.status == connects.status == [0]


def test_again_in_the_same_process(pair: Pair) -> None:
    how = {"PAIR_HOW": "twice"}
    waits, connects = pair.run(repeats=1, sizes=SIZES[:1], connects=how, waits=how)
    well(waits, connects)
    assert waits.status == connects.status == [0, 0]


def test_a_thread_that_stands_in_an_open_group(pair: Pair) -> None:
    waits, connects = pair.run(repeats=1, sizes=SIZES[:1], waits={"PAIR_HOW": "group"})
    well(waits, connects)
    assert waits.status == connects.status == [0]
    assert waits.launched == connects.launched  # the group's own call is an all-reduce


def test_a_thread_that_calls_the_library_waits_meanwhile(pair: Pair) -> None:
    """The fake ends the process if two threads are in it at once."""
    waits, connects = pair.run(repeats=4, waits={"PAIR_HOW": "thread"})
    well(waits, connects)
    assert waits.status == connects.status == [0]


def test_the_soft_limit_ends_both_alike(pair: Pair) -> None:
    waits, connects = pair.run(soft_ms=0)
    well(waits, connects)
    assert waits.status == connects.status == [0]
    assert set(waits.values[0][3:]) == set(connects.values[0][3:]) == {-1}


def test_sizes_for_which_there_is_no_room_are_left_out_and_said(pair: Pair) -> None:
    most = (1 << 30) // 16
    waits, connects = pair.run(sizes=(1 << 20, most + 1), repeats=1, connects={"FAKE_CUDA_FREE": str(1 << 30)})
    well(waits, connects)
    for end in (waits, connects):
        assert end.status == [0]
        assert end.values[0][3] > 0 > end.values[0][4]
        assert "sizes over 1048576 bytes were left out" in end.said[0]


def test_under_a_gibibyte_free_nothing_is_tried(pair: Pair) -> None:
    waits, connects = pair.run(connects={"FAKE_CUDA_FREE": str((1 << 30) - 1)})
    nothing(waits, connects)
    assert (waits.status, connects.status) == ([errno.EREMOTEIO], [errno.ENOMEM])


@pytest.mark.parametrize(
    "which",
    [
        {"FAKE_CUDA_ALLOC_FAILS": "1"},
        {"FAKE_CUDA_ALLOC_FAILS": "2"},
        {"FAKE_CUDA_STREAM_FAILS": "1"},
        {"FAKE_CUDA_EVENT_FAILS": "1"},
        {"FAKE_CUDA_EVENT_FAILS": "2"},
    ],
)
def test_an_allocation_that_fails(pair: Pair, which: Env) -> None:
    waits, connects = pair.run(waits=which)
    nothing(waits, connects)
    assert (waits.status, connects.status) == ([errno.ENOMEM], [errno.EREMOTEIO])


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("calls", errno.EBUSY, "threads that are in the library"),
        ("inside", errno.EBUSY, "threads that are in the library"),
        ("captured", errno.EBUSY, "captured"),
        ("destroyed", errno.ENODEV, "looking for the communicator"),
        ("finalized", errno.ENODEV, "looking for the communicator"),
        ("stranger", errno.ENODEV, "looking for the communicator"),
        ("device", errno.ENODEV, "communicator's device"),
    ],
)
def test_what_must_not_be_used_is_not_used(pair: Pair, how: str, status: int, said: str) -> None:
    waits, connects = pair.run(waits={"PAIR_HOW": how}, hard_ms=1000)
    nothing(waits, connects)
    assert waits.status == [status] and said in waits.said[0]
    assert connects.status[0] in (errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT)


@pytest.mark.parametrize(("how", "status"), [("plain", 0), ("captured", errno.EBUSY), ("stranger", errno.ENODEV)])
def test_whether_it_could(pair: Pair, how: str, status: int) -> None:
    """Without sizes there is an answer at once, and nobody is met."""
    waits, connects = pair.run(sizes=(), waits={"PAIR_HOW": how}, comes=False)
    assert connects.returncode == -signal.SIGKILL
    nothing(waits)
    assert waits.status == [status] and waits.values == [[]]


def test_a_peer_that_does_not_come(pair: Pair) -> None:
    waits, _ = pair.run(comes=False, hard_ms=300)
    nothing(waits)
    assert waits.status == [errno.ETIMEDOUT] and "connection" in waits.said[0]


def test_a_leave_that_ended_before_anything_was_begun(pair: Pair) -> None:
    waits, connects = pair.run(leave_ms=(60_000, 0))
    nothing(waits, connects)
    assert connects.status == [errno.ECANCELED]


def test_a_leave_that_ends_in_the_middle(pair: Pair) -> None:
    """What has begun is waited for, then both stop; nothing is left on a stream."""
    waits, connects = pair.run(repeats=60, leave_ms=(60_000, 600))
    well(waits, connects)
    assert connects.status == [errno.ECANCELED]
    assert waits.status[0] in (0, errno.ECONNRESET)  # it was told, or saw the connection end
    assert waits.launched == connects.launched
    assert 0 < sum(value > 0 for value in waits.values[0][3:]) < 120


def test_an_asynchronous_error_ends_it(pair: Pair) -> None:
    waits, connects = pair.run(connects={"FAKE_NCCL_ERROR_AT": "12"})
    well(waits, connects)
    assert connects.status == [errno.EIO] and "errors" in connects.said[0]
    assert waits.status == [0] and set(waits.values[0][3:]) == {-1}  # it was told
    assert waits.launched == connects.launched == (6, 6, 11)  # nothing after the pings


def test_wrong_data_is_said(pair: Pair) -> None:
    waits, connects = pair.run(connects={"FAKE_NCCL_CORRUPT_AT": "16"})
    well(waits, connects)
    assert connects.status == [errno.EBADMSG]
    assert waits.status == [errno.ECONNRESET]
    assert waits.launched == connects.launched == (11, 11, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "ended"), [({"FAKE_NCCL_DIES_AT": "13"}, -signal.SIGKILL), ({"FAKE_NCCL_FAILS_AT": "13"}, 0)]
)
def test_an_end_that_fails_when_both_have_said_yes(pair: Pair, what: Env, ended: int) -> None:
    """The one case in which something stays on a stream: it is said, left to the device, and nothing is begun again."""
    waits, connects = pair.run(
        connects={**what, "PAIR_HOW": "twice"}, waits={"PAIR_HOW": "twice"}, hard_ms=3000, soft_ms=1000
    )
    assert (waits.returncode, waits.stderr, connects.returncode) == (0, "", ended)
    assert waits.status == [errno.ETIMEDOUT, errno.ENOTRECOVERABLE]
    assert "4 MB of device memory are left to it" in waits.said[0]
    assert waits.left == (2, 1, 2 * SIZES[1])
    if not ended:
        assert connects.status == [errno.EIO, errno.ENOTRECOVERABLE]
    assert waits.launched[2] == 1 + 10 + 2 + 3


@pytest.mark.slow
def test_what_was_only_late_is_given_back_when_the_next_one_comes(pair: Pair) -> None:
    """A warm-up that takes 3 s with 2 s allowed: the second attempt finds the first one's work done, and is as late."""
    how = {"PAIR_HOW": "later", "FAKE_NCCL_RATE": "0.35"}
    waits, connects = pair.run(hard_ms=500, connects=how, waits=how)
    for end in (waits, connects):
        assert (end.returncode, end.stderr, end.status) == (0, "", [errno.ETIMEDOUT] * 2)
        assert end.launched == (2, 2, 2) and end.left == (2, 1, 2 * SIZES[1])


@pytest.mark.slow
def test_a_transfer_that_would_take_too_long_is_not_begun(pair: Pair) -> None:
    """At 20 MB/s the first size takes 5 x 0.05 s, the second 5 x 0.1 s, and the third 5 x 0.4 s, over the limit."""
    waits, connects = pair.run(
        hard_ms=2000,
        sizes=(1 << 20, 2 << 20, 8 << 20),
        repeats=1,
        connects=(how := {"FAKE_NCCL_RATE": "20"}),
        waits=how,
    )
    well(waits, connects)
    for end in (waits, connects):
        assert end.status == [0] and [value > 0 for value in end.values[0][3:]] == [True, True, False]


@pytest.mark.slow
def test_it_ends_in_time_when_the_library_does_not_come_back(pair: Pair) -> None:
    began = time.monotonic()
    late = {"FAKE_NCCL_LATE_MS": "20000"}
    waits, connects = pair.run(hard_ms=500, connects=late, waits=late)
    assert time.monotonic() - began < 60
    for end in (waits, connects):
        assert end.status == [errno.ETIMEDOUT] and "does not come back" in end.said[0]


HEADER = os.environ.get("GHT_NCCL_H", "")
SIGNATURES = (
    "ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, "
    "cudaStream_t stream);",
    "ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream);",
    "ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);",
    "ncclCommCuDevice(const ncclComm_t comm, int* device);",
    "ncclCommCount(const ncclComm_t comm, int* count);",
    "ncclCommUserRank(const ncclComm_t comm, int* rank);",
    "ncclGroupStart();",
    "ncclGroupEnd();",
)


@pytest.mark.skipif(not HEADER, reason="GHT_NCCL_H names no nccl.h")
def test_numbers_and_signatures_are_those_of_the_header() -> None:
    text = " ".join(Path(HEADER).read_text().split())
    ours = (CSRC / "nccl_calls.h").read_text() + (CSRC / "shim" / "nccl_p2p.c").read_text()
    for name, theirs in (("GH_NCCL_SUCCESS", "ncclSuccess"), ("GH_NCCL_IN_PROGRESS", "ncclInProgress"),
                         ("UINT8", "ncclUint8")):  # fmt: skip
        number = re.search(rf"#define {name} (\d+)", ours)
        assert number and re.search(rf"{theirs}\s*=\s*{number[1]}\b", text)
    for signature in SIGNATURES:
        assert f"ncclResult_t {signature}" in text
