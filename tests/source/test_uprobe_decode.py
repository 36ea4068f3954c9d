# SPDX-License-Identifier: Apache-2.0
"""Attaching, the parts that need no probe: the ring, the layout of tensors, nested calls, ELF, /proc."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghtools.job.native import LIB_DIR, SHIM
from ghtools.source.elf import functions
from ghtools.source.uprobe_decode import BUSY, Decoder, TensorLayout, take
from ghtools.source.uprobe_process import children, code_of, environment, gloo_group, identity, job_of, peek, rank_of
from ghtools.source.uprobe_program import DUMP_AT, DUMP_WORDS, RECORD
from ghtools.source.uprobe_table import GLOO, NCCL
from ghtools.stream.errors import InputError
from ghtools.stream.records import DTYPES, FLAG_ASYNC, FLAG_BYTES_UNKNOWN, FLAG_GROUPED, OPS, Array, Calls

PROBES = GLOO + NCCL
NUMBER = {probe.symbol: number for number, probe in enumerate(PROBES)}
ALLREDUCE, ALLGATHER_BASE, ALLGATHER = (
    next(n for n, probe in enumerate(GLOO) if text in probe.symbol)
    for text in ("9allreduceE", "15_allgather_base", "9allgatherE")
)


def tensor(sizes: list[int], at: int = 6, kind: int = 6, strides: list[int] | None = None) -> list[int]:
    """Words of a TensorImpl, its sizes beginning at word `at`; the rest looks like pointers and counters."""
    words = [0x7F00_0000_0000 + 64 * i for i in range(DUMP_WORDS)]
    numel = int(np.prod(sizes))
    if strides is None:
        strides = [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]
    words[at] = len(sizes)
    words[at + 1 : at + 6] = (sizes + [0x55] * 5)[:5]
    words[at + 6 : at + 11] = (strides + [0x66] * 5)[:5]
    words[at + 11 : at + 14] = [0, numel, 0xABC0000 | kind]
    return words


def record(number: int, **values: int | list[int]) -> Array:
    """One record of a probe."""
    made = np.zeros(1, RECORD)
    made["probe"] = number
    made["more"][..., 1] = 0xFFFF
    for name, value in values.items():
        made[name] = value
    return made


def decode(*records: Array, decoder: Decoder | None = None, lost: int = 0) -> Calls:
    rows = np.concatenate(records)
    return (decoder or Decoder(PROBES)).decode(rows, np.arange(1, len(rows) + 1), 3, 0, lost)


# -- the ring ---------------------------------------------------------------------------------------


def test_ring_gives_finished_records_in_order_across_the_end() -> None:
    slots = 8
    area = np.zeros(slots, RECORD)
    consumed = produced = 0
    written = 0
    got: list[int] = []
    for burst in (3, 8, 1, 5, 8):
        for _ in range(burst):
            area[written % slots]["t"] = written
            area[written % slots]["header"] = RECORD.itemsize - 8
            written += 1
        produced += burst * RECORD.itemsize
        twice = np.concatenate([area, area]).view(np.uint8)  # the kernel maps the data twice in a row
        records, consumed = take(twice, consumed, produced)
        got += records["t"].tolist()
        assert consumed == produced
    assert got == list(range(written))


def test_ring_stops_at_a_record_that_is_being_written() -> None:
    area = np.zeros(4, RECORD)
    area["t"] = [1, 2, 3, 4]
    area["header"][2] = BUSY | 504
    records, consumed = take(np.concatenate([area, area]).view(np.uint8), 0, 4 * RECORD.itemsize)
    assert records["t"].tolist() == [1, 2] and consumed == 2 * RECORD.itemsize
    assert len(take(np.concatenate([area, area]).view(np.uint8), 0, 0)[0]) == 0


# -- sizes ------------------------------------------------------------------------------------------


def test_layout_is_found_from_tensors_that_prove_it() -> None:
    layout = TensorLayout()
    assert layout.numel_at == 0
    layout.learn(np.array([tensor([4])], np.uint64))  # too small to prove anything
    layout.learn(np.array([tensor([100, 20], strides=[1, 100])], np.uint64))  # not contiguous
    assert layout.numel_at == 0
    layout.learn(np.array([tensor([1000])], np.uint64))
    assert layout.numel_at == DUMP_AT + 8 * (6 + 12)
    layout.learn(np.array([tensor([1000], at=2)], np.uint64))
    assert layout.word == 18, "once known it stays"


def test_two_places_that_fit_are_no_proof_until_one_fits_more_often() -> None:
    words = tensor([1000], at=0)
    words[11:] = [1, 1000, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1000, 6][: DUMP_WORDS - 11]
    words[22:] = [0, 1000, 6]
    layout = TensorLayout()
    layout.learn(np.array([words], np.uint64))
    assert layout.word == -1
    layout.learn(np.array([tensor([n], at=0) for n in (20, 30)], np.uint64))
    assert layout.word == 12


@given(
    st.integers(0, 11),
    st.lists(st.integers(1, 50), min_size=1, max_size=5).filter(lambda s: np.prod(s) >= 8),
    st.sampled_from([0, 5, 6, 7, 15]),
)
def test_layout_of_any_contiguous_tensor(at: int, sizes: list[int], kind: int) -> None:
    layout = TensorLayout()
    layout.learn(np.array([tensor(sizes, at, kind)], np.uint64))
    assert layout.word == at + 12


@given(st.lists(st.integers(0, 2**64 - 1), min_size=DUMP_WORDS, max_size=DUMP_WORDS))
def test_noise_proves_nothing(words: list[int]) -> None:
    layout = TensorLayout()
    layout.learn(np.array([words], np.uint64))
    assert layout.word == -1


def test_bytes_of_tensors_and_lists() -> None:
    decoder = Decoder(PROBES)
    one = record(ALLREDUCE, begin=1000, end=1008, dump=tensor([10, 10], kind=15))
    three = record(ALLREDUCE, begin=1000, end=1024, dump=tensor([100], kind=6))
    three["more"][0, :2] = [[7, 6], [5, 7]]
    many = record(ALLREDUCE, begin=1000, end=1000 + 8 * 12, dump=tensor([100]))
    unread = record(ALLREDUCE, begin=1000, end=1016, dump=tensor([100]))
    strange = record(ALLREDUCE, begin=1000, end=1008, dump=tensor([100], kind=200))
    empty = record(ALLREDUCE, begin=0, end=0)
    calls = decode(one, three, many, unread, strange, empty, decoder=decoder)
    assert calls.bytes.tolist() == [200, 400 + 28 + 40, 0, 0, 0, 0]
    assert (calls.flags & FLAG_BYTES_UNKNOWN > 0).tolist() == [False, False, True, True, True, False]
    assert [DTYPES[code] for code in calls.dtype[:2]] == ["bfloat16", "float32"]


def test_before_the_layout_is_known_sizes_are_unknown_not_guessed() -> None:
    calls = decode(record(ALLREDUCE, begin=1000, end=1008, dump=tensor([2])))
    assert calls.bytes.tolist() == [0] and calls.flags.tolist() == [FLAG_ASYNC | FLAG_BYTES_UNKNOWN]


def test_nccl_counts_and_types() -> None:
    calls = decode(
        record(NUMBER["ncclAllReduce"], args=[0, 0, 10, 9, 0, 77]),
        record(NUMBER["ncclBcast"], args=[0, 10, 2 | 7 << 32, 1, 77, 0]),  # the upper half of an int is not its own
        record(NUMBER["ncclSend"], args=[0, 10, 11, 3, 77, 0]),
        record(NUMBER["ncclAllReduce"], args=[0, 0, 10, 99, 0, 77]),
        record(NUMBER["ncclAlltoAll"], args=[0, 0, 10, 7, 77, 0]),
    )
    assert calls.bytes.tolist() == [20, 40, 10, 0, 0]
    assert (calls.flags & FLAG_BYTES_UNKNOWN > 0).tolist() == [False, False, False, True, True]
    assert calls.peer.tolist() == [-1, 1, 3, -1, -1]


# -- what is a call -----------------------------------------------------------------------------------


def test_a_call_from_inside_a_call_is_part_of_it() -> None:
    decoder = Decoder(PROBES, places=[(5000, 5300)])
    calls = decode(
        record(ALLGATHER_BASE, caller=900),
        record(ALLGATHER, caller=5100),
        record(ALLGATHER, caller=5300),
        decoder=decoder,
    )
    assert calls.comm.tolist() == [1, 3] and calls.seq.tolist() == [0, 1]


def test_a_jump_into_another_function_is_one_call() -> None:
    bcast, broadcast = NUMBER["ncclBcast"], NUMBER["ncclBroadcast"]
    calls = decode(
        record(bcast, thread=1, sp=64, caller=900),
        record(broadcast, thread=1, sp=64, caller=900),  # jumped to
        record(broadcast, thread=1, sp=64, caller=901),  # another call
        record(bcast, thread=1, sp=64, caller=900),
        record(broadcast, thread=2, sp=64, caller=900),  # another thread
    )
    assert calls.comm.tolist() == [1, 3, 4, 5]


def test_groups_are_marked_by_thread_and_are_no_calls() -> None:
    start, end, send = (NUMBER[f"nccl{name}"] for name in ("GroupStart", "GroupEnd", "Send"))
    decoder = Decoder(PROBES)
    calls = decode(
        record(start, thread=1), record(start, thread=1), record(send, thread=1), record(send, thread=2),
        record(end, thread=1), record(send, thread=1), decoder=decoder,
    )  # fmt: skip
    assert (calls.flags & FLAG_GROUPED > 0).tolist() == [True, False, True]
    calls = decode(record(end, thread=1), record(end, thread=1), record(send, thread=1), decoder=decoder)
    assert (calls.flags & FLAG_GROUPED).tolist() == [0]


def test_lost_calls_are_numbered_too() -> None:
    decoder = Decoder(PROBES)
    assert decode(record(ALLREDUCE), record(ALLREDUCE), decoder=decoder).seq.tolist() == [0, 1]
    after = decode(record(ALLREDUCE), decoder=decoder, lost=5)
    assert (after.seq.tolist(), after.lost, after.rank) == ([7], 5, 3)


# -- tables, files, processes -------------------------------------------------------------------------


def exported(library: Path) -> set[str]:
    text = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in text.splitlines()}


def test_probed_functions_are_those_the_shim_hooks() -> None:
    names = exported(SHIM)
    gloo = {name for name in names if "16ProcessGroupGloo" in name}
    # The end of a group, and how long its work takes on gloo's own threads, are left to the shim.
    left = {name for name in gloo if name.endswith(("D0Ev", "D1Ev")) or "7enqueue" in name or "9AsyncWork" in name}
    assert {probe.symbol for probe in GLOO} == gloo - left
    nccl = {name for name in names if name.startswith("nccl") and not name.startswith("ncclComm")}
    assert {probe.symbol for probe in NCCL} - {
        # Twins that take a configuration are probed wherever a library has them.
        f"nccl{name}Config"
        for name in ("AlltoAll", "Gather", "Scatter")
    } <= nccl
    assert nccl <= {probe.symbol for probe in NCCL}
    assert all(probe.op in OPS or probe.op in ("made", "group_start", "group_end") for probe in PROBES)


def test_functions_are_found_where_the_loader_puts_them() -> None:
    path = LIB_DIR / "libghtools_native.so"
    names = {name for name in exported(path) if name.startswith("gh_")}
    found = functions(path, [*names, "gh_nothing", "", "x" * 5000])
    assert len(names) > 3 and set(found) == names
    data, library = path.read_bytes(), ctypes.CDLL(str(path))
    for name in names:
        # The bytes in the file are those in memory where the loader says the function is.
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        offset, size = found[name].offset, found[name].size
        assert size > 0 and ctypes.string_at(address, size) == data[offset : offset + size]


@pytest.mark.parametrize("cut", [0, 3, 40, 63, 1000, 20000])
def test_a_cut_library_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(SHIM.read_bytes()[:cut])
    with pytest.raises(InputError):
        functions(path, ["ncclAllReduce"])


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=20))
def test_a_damaged_library_gives_an_answer_or_an_input_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SHIM.read_bytes())
    for at, value in changes:
        data[at] = value
        data[-1 - at] = value  # the section table is at the end
    path = Path(f"/tmp/ghtools-elf-{os.getpid()}.so")
    path.write_bytes(data)
    try:
        functions(path, ["ncclAllReduce", "ncclSend"])
    except InputError:
        pass
    finally:
        path.unlink()


def test_identity_of_ranks_and_jobs() -> None:
    assert rank_of({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_PROCID": "9"}) == (3, 1, 8)
    assert rank_of({"SLURM_PROCID": "9", "SLURM_NTASKS": "16"}) == (9, -1, 16)
    assert rank_of({"RANK": "-1", "PMI_RANK": "2"}) == (2, -1, -1)
    assert rank_of({"RANK": "1e9"}) == (-1, -1, -1) == rank_of({})
    assert job_of({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}) == "7" and job_of({}) == ""
    assert identity("gloo", "0", 2) == identity("gloo", "0", 2) != identity("gloo", "0", 3)


def test_a_process_is_read_from_proc() -> None:
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    env = {"RANK": "5", "ODD": "a=b\n"}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        assert process.pid in children(os.getpid())
        assert environment(process.pid) == env
        (libc,) = code_of(process.pid, ("libc.so", "libnothing.so")).values()
        assert libc.open_path.exists() and libc.begin < libc.end
        assert peek(process.pid, libc.begin, 16) == libc.open_path.read_bytes()[libc.offset : libc.offset + 16]
        process.stdin.close()
        process.wait()
    assert environment(process.pid) == {} and children(process.pid) == []
    assert peek(process.pid, libc.begin, 16) == b""
    with pytest.raises(OSError):
        code_of(process.pid, ("libc.so",))


@pytest.mark.parametrize("at", [16, 24])
def test_a_process_group_is_read_only_if_all_of_it_makes_sense(at: int) -> None:
    memory = ctypes.create_string_buffer(256)
    base = ctypes.addressof(memory)
    long_name = ctypes.create_string_buffer(b"a name of more than fifteen letters")

    def write(rank: int, size: int, debug: int = 0) -> None:
        struct.pack_into("<iii", memory, at, rank, size, debug)
        struct.pack_into("<QQ8s", memory, at + 16, base + at + 32, 2, b"17")
        struct.pack_into("<QQ", memory, at + 48, ctypes.addressof(long_name), 35)

    write(3, 8)
    group = gloo_group(os.getpid(), base)
    assert group is not None
    assert (group.rank, group.size, group.uid, group.name) == (3, 8, "17", long_name.value.decode())
    for rank, size, debug in ((8, 8, 0), (-1, 8, 0), (0, 0, 0), (3, 8, 9), (1, 1 << 30, 0)):
        write(rank, size, debug)
        assert gloo_group(os.getpid(), base) is None
    write(3, 8)
    struct.pack_into("<Q", memory, at + 24, 1 << 40)  # a length that is none
    assert gloo_group(os.getpid(), base) is None
    assert gloo_group(os.getpid(), 0) is None and gloo_group(os.getpid(), 1 << 63) is None
