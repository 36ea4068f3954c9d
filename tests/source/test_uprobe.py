# SPDX-License-Identifier: Apache-2.0
"""Attaching to real processes that were started without the shim; compared with what the shim says of the same."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ghtools.job.native import SHIM
from ghtools.source import uprobe_rights
from ghtools.source.elf import functions
from ghtools.source.live import LiveSource
from ghtools.source.uprobe import UprobeSource, check
from ghtools.source.uprobe_process import code_of, peek
from ghtools.stream.errors import GhError
from ghtools.stream.framing import read_records
from ghtools.stream.records import FLAG_BYTES_UNKNOWN, FLAG_EXEC, OPS, Calls, Comm, Iters, Job, Record
from tests.conftest import BIN, ROOT
from tests.csrc.conftest import Fakes, build_fakes

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(check()), reason="; ".join(check()) or "uprobes can be used"),
]
STEPS = 200
JOB = Path(__file__).with_name("uprobe_job.py")

# A process that loads a library which needs libnccl, waits for a line, makes its calls, waits for another.
DRIVE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print("up", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    """The test library of NCCL's ABI and what uses it."""
    return build_fakes(tmp_path_factory.mktemp("fakes"))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def collect(source: UprobeSource | LiveSource) -> list[Record]:
    """All records until the job has ended."""
    records: list[Record] = []
    deadline = time.monotonic() + 120
    while not source.done:
        assert time.monotonic() < deadline, "the job does not end"
        records += source.poll(0.1) if isinstance(source, UprobeSource) else source.poll()
        time.sleep(0.01)
    return records


def join(records: list[Record], rank: int, since_ns: int = 0) -> Calls:
    """All calls of one rank, as one batch, without executions."""
    batches = [r for r in records if isinstance(r, Calls) and r.rank == rank]
    assert sum(batch.lost for batch in batches) == 0
    names = ("t_ns", "op", "dtype", "flags", "peer", "comm", "bytes", "seq")
    whole = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}
    keep = (whole["flags"] & FLAG_EXEC == 0) & (whole["t_ns"] >= since_ns)
    return Calls(rank=rank, **{name: values[keep] for name, values in whole.items()})


def what(calls: Calls) -> list[tuple[str, int, int, int, int]]:
    """What calls are, without when and on which communicator."""
    typed = np.where(calls.bytes > 0, calls.dtype, 0)  # nothing has no type
    columns = (calls.op, typed, calls.flags, calls.peer, calls.bytes)
    return [(OPS[int(row[0])], *(int(v) for v in row[1:])) for row in zip(*columns, strict=True)]  # type: ignore[misc]


@contextmanager
def drive(library: Path, env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], None]]]:
    """A process that makes calls when told."""
    command = [sys.executable, "-c", DRIVE, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def tell(line: str) -> None:
            stdin.write(line + "\n")
            stdin.flush()
            while stdout.readline().strip() != "done":
                assert process.poll() is None

        assert stdout.readline() == "up\n"
        try:
            yield process, tell
        finally:
            stdin.close()


def first_bytes(pid: int, library: str, symbol: str) -> bytes:
    """The first bytes of a function in a process's memory."""
    code = code_of(pid, (library,))[library]
    return peek(pid, code.address(functions(code.open_path, [symbol])[symbol].offset), 4)


def test_several_processes_are_named_as_pgrep_does(clean_env: dict[str, str]) -> None:
    """`--attach $(pgrep -f train.py)` is one option and many words."""
    words = [BIN / "gh-trace", "--attach", "4194000", "4194001"]
    done = subprocess.run(words, capture_output=True, text=True, env=clean_env, check=False)
    assert done.returncode in (2, 4) and "cannot attach" in done.stderr, done.stderr
    done = subprocess.run([BIN / "gh-trace", "7"], capture_output=True, text=True, env=clean_env, check=False)
    assert done.returncode == 2 and "try --attach 7, or --job ID" in done.stderr, done.stderr


def test_calls_of_nccl_s_abi_are_those_the_shim_sees(fakes: Fakes, clean_env: dict[str, str]) -> None:
    with drive(fakes.by_name, {**clean_env, "RANK": "3", "WORLD_SIZE": "4", "GHT_JOB": "n"}) as (process, tell):
        source = UprobeSource([pid := process.pid])
        tell("library.drive_all(4, 3)")
        process.stdin.close()  # type: ignore[union-attr]
        records = collect(source)
        source.close()
    mine = join(records, 3)
    with drive(fakes.by_name, {**clean_env, "LD_PRELOAD": str(SHIM), "RANK": "3", "GHT_JOB": "n"}) as (process, tell):
        tell("library.drive_all(4, 3)")
    live = LiveSource(Path(clean_env["GHT_DIR"]) / "n", time.monotonic, time.time_ns)
    theirs = join(live.poll(), 3)
    live.close()
    # Of an all-to-all NCCL is told one peer's part, and how many peers there are a probe does not know.
    blind = [op == "all_to_all" for op, *_ in what(theirs)]
    assert len(blind) > 20 and 0 < sum(blind) < 5
    assert [w for w, b in zip(what(mine), blind, strict=True) if not b] == [
        w for w, b in zip(what(theirs), blind, strict=True) if not b
    ]
    assert all(int(f) & FLAG_BYTES_UNKNOWN for f, b in zip(mine.flags, blind, strict=True) if b)
    assert mine.seq.tolist() == list(range(len(blind)))
    # The same communicators, under names of their own. (The one of the call of 16 bytes was made with the unique
    # id of the first, which nobody does; the shim goes by the id, a probe by the address.)
    mine.comm, theirs.comm = mine.comm[mine.bytes != 16], theirs.comm[theirs.bytes != 16]
    assert len(set(mine.comm.tolist())) == 5
    assert [mine.comm.tolist().index(c) for c in mine.comm] == [theirs.comm.tolist().index(c) for c in theirs.comm]
    job = next(r for r in records if isinstance(r, Job))  # it may have ended before it was looked at
    assert job.job == "n" and job.world_size == 4 and job.backend == "nccl"
    assert job.ranks[0]["rank"] == 3 and job.ranks[0]["pid"] == pid


def test_kill_9_of_the_tracer_leaves_nothing_in_the_process(fakes: Fakes, clean_env: dict[str, str]) -> None:
    with drive(fakes.by_name, clean_env) as (process, tell):
        before = first_bytes(process.pid, "libnccl.so", "ncclAllReduce")
        code = (
            "import sys, time; from ghtools.source.uprobe import UprobeSource\n"
            "source = UprobeSource([int(sys.argv[1])]); print('on', flush=True)\n"
            "while True: source.poll(1.0)\n"
        )
        tracer = subprocess.Popen(
            [sys.executable, "-c", code, str(process.pid)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "on\n"
        assert first_bytes(process.pid, "libnccl.so", "ncclAllReduce") != before, "there is a breakpoint"
        tell("library.drive_simple(2, 0, 100)")
        tracer.send_signal(signal.SIGKILL)
        tracer.wait()
        tracer.stdout.close()
        wait_for(lambda: first_bytes(process.pid, "libnccl.so", "ncclAllReduce") == before, "the breakpoint to go")
        tell("assert library.drive_simple(2, 0, 100) == 0")
        assert process.poll() is None


def test_only_the_traced_process_is_touched(fakes: Fakes, clean_env: dict[str, str]) -> None:
    with drive(fakes.by_name, clean_env) as (one, tell_one), drive(fakes.by_name, clean_env) as (other, tell_other):
        before = first_bytes(other.pid, "libnccl.so", "ncclAllReduce")
        source = UprobeSource([one.pid])
        assert source.traced == [one.pid]
        assert first_bytes(other.pid, "libnccl.so", "ncclAllReduce") == before
        tell_other("library.drive_simple(2, 0, 10)")
        tell_one("library.drive_simple(2, 0, 7)")
        calls = [r for r in source.poll(5.0) if isinstance(r, Calls)]
        assert sum(len(batch.t_ns) for batch in calls) == 7
        source.close()
        assert first_bytes(one.pid, "libnccl.so", "ncclAllReduce") == before


def test_what_does_not_fit_in_the_ring_is_counted_where_it_was_lost(fakes: Fakes, clean_env: dict[str, str]) -> None:
    with drive(fakes.by_name, clean_env) as (process, tell):
        source = UprobeSource([process.pid], ring_bytes=1 << 16)
        records: list[Record] = []
        tell("library.drive_simple(2, 0, 1000)")  # nobody reads meanwhile; 128 fit
        records += source.poll(1.0)
        tell("library.drive_simple(2, 0, 10)")
        records += source.poll(1.0)
        tell("library.drive_simple(2, 0, 500)")
        process.stdin.close()  # type: ignore[union-attr]
        records += collect(source)
        source.close()
    batches = [r for r in records if isinstance(r, Calls)]
    got = sum(len(batch.t_ns) for batch in batches)
    assert got + sum(batch.lost for batch in batches) == 1510
    assert source.lost == 1510 - got > 0
    first, second = batches[0], next(batch for batch in batches if batch.lost)
    assert first.lost == 0 and 100 < len(first.t_ns) <= 128
    assert second.lost == 1000 - len(first.t_ns) and second.seq[0] == 1000
    assert batches[-1].lost > 0, "what was lost last is told at the end"


def test_a_library_that_is_loaded_later_is_traced(fakes: Fakes, clean_env: dict[str, str]) -> None:
    with drive(SHIM.with_name("libghtools_native.so"), clean_env) as (process, tell):
        said: list[str] = []
        source = UprobeSource([process.pid], warn=said.append)
        assert source.traced == []
        assert said == ["none of these processes has libtorch_cpu, libnccl, librccl mapped; waiting for one that does"]
        tell(f"library = ctypes.CDLL({str(fakes.by_name)!r})")
        wait_for(lambda: not source.poll(0.0) and source.traced == [process.pid], "the library to be found")
        tell("library.drive_simple(2, 0, 5)")
        process.stdin.close()  # type: ignore[union-attr]
        assert len(join(collect(source), 0).t_ns) == 5
        source.close()


def test_a_forked_child_goes_on_unharmed(fakes: Fakes, clean_env: dict[str, str]) -> None:
    with drive(fakes.by_name, {**clean_env, "RANK": "0"}) as (process, tell):
        source = UprobeSource([process.pid])
        tell("import os; pid = os.fork() or os._exit(library.drive_simple(2, 0, 9)); n = os.waitpid(pid, 0)[1]")
        tell("assert n == 0; library.drive_simple(2, 0, 4)")
        process.stdin.close()  # type: ignore[union-attr]
        assert len(join(collect(source), 0).t_ns) == 4
        source.close()
        assert process.wait() == 0


def test_what_is_missing_is_said() -> None:
    code = (
        "import os; from ghtools.source import uprobe; os.setresuid(65534, 65534, 65534)\n"
        "print(uprobe.check())\n"
        "uprobe.UprobeSource([os.getppid()])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "not permitted; it needs root, or the capabilities CAP_BPF, CAP_PERFMON" in done.stdout
    assert "MissingError: cannot attach: not permitted; try root, or the capabilities" in done.stderr


def test_a_process_that_is_not_there() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(GhError, match=f"cannot attach to process {process.pid}: there is no such process"):
        UprobeSource([process.pid])


def test_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uprobe_rights.platform, "machine", lambda: "aarch64")
    assert check() == ["attaching works on x86-64 Linux, this is aarch64 Linux"]
    with pytest.raises(GhError, match="this is aarch64"):
        UprobeSource([os.getpid()])


@contextmanager
def torch_job(folder: Path, env: dict[str, str], steps: int) -> Iterator[subprocess.Popen[bytes]]:
    """The job of uprobe_job.py, at the point before its first call."""
    folder.mkdir()
    command = [BIN / "torchrun", "--nproc-per-node", "2", "--standalone", JOB, folder, str(steps)]
    said = folder / "said"
    with said.open("w") as log, subprocess.Popen([*map(str, command)], env=env, stderr=log) as process:
        try:
            wait_for(lambda: len(list(folder.glob("ready.*"))) == 2 or process.poll() is not None, "the job's ranks")
            yield process
            (folder / "go").touch()
            assert process.wait(120) == 0, said.read_text()
        finally:
            process.terminate()  # torchrun ends its ranks then


def periods(stream: Path, env: dict[str, str]) -> list[Record]:
    """What gh-period makes of a stream."""
    done = subprocess.run([BIN / "gh-period", stream], capture_output=True, env=env, check=True)
    return list(read_records(io.BytesIO(done.stdout)))


@pytest.mark.slow
def test_a_training_job_looks_as_under_the_shim(tmp_path: Path, clean_env: dict[str, str]) -> None:
    pytest.importorskip("torch")
    stream, said = tmp_path / "bare.ght", tmp_path / "said"
    with torch_job(tmp_path / "bare", clean_env, STEPS) as process, stream.open("wb") as out, said.open("w") as err:
        # Twice at once: here, and as people do it. torchrun's own pid stands for its ranks.
        source = UprobeSource([process.pid])
        trace = subprocess.Popen(
            [BIN / "gh-trace", "--attach", str(process.pid)], stdout=out, stderr=err, env=clean_env
        )
        try:
            wait_for(lambda: "tracing" in said.read_text() or trace.poll() is not None, "gh-trace")
            (tmp_path / "bare" / "go").touch()
            records = collect(source)
            assert trace.wait(60) == 0, said.read_text()
        finally:
            trace.kill()
            source.close()
    with torch_job(tmp_path / "shim", {**clean_env, "LD_PRELOAD": str(SHIM), "GHT_JOB": "s"}, STEPS):
        pass
    live = LiveSource(Path(clean_env["GHT_DIR"]) / "s", time.monotonic, time.time_ns)
    theirs = live.poll()
    live.close()
    for rank in (0, 1):
        bare, shim = (json.loads((tmp_path / kind / f"times.{rank}").read_text()) for kind in ("bare", "shim"))
        mine, yours = join(records, rank, bare[0]), join(theirs, rank, shim[0])
        assert len(mine.t_ns) > 130
        assert what(mine) == what(yours)
        assert [mine.comm.tolist().index(c) for c in mine.comm] == [yours.comm.tolist().index(c) for c in yours.comm]
        # Two buckets in every step of the loop's own clock, but for the first ones: DDP rearranges its buckets then.
        own = np.array(bare[1:])
        assert np.histogram(mine.t_ns, own)[0][3:].tolist() == [2] * (STEPS - 3)
        # Iteration time: from the first bucket of one step to that of the last.
        first = mine.t_ns[np.searchsorted(mine.t_ns, own[:-1])][3:]
        assert (first[-1] - first[0]) / (own[-2] - own[3]) == pytest.approx(1, rel=0.01)
        # And what gh-period makes of it.
        found = [r for r in periods(stream, clean_env) if isinstance(r, Iters) and r.rank == rank]
        t_ns, dur_ns = (np.concatenate([getattr(r, name) for r in found]) for name in ("t_ns", "dur_ns"))
        inside = (t_ns >= own[3]) & (t_ns + dur_ns < own[-1])
        assert inside.sum() > STEPS * 0.8
        assert dur_ns[inside].mean() == pytest.approx((own[-1] - own[3]) / (STEPS - 3), rel=0.01)
    comms = {(r.rank, r.name): r for r in records if isinstance(r, Comm)}
    assert set(comms) == {(rank, name) for rank in (0, 1) for name in ("default_pg", "pair", "late")}
    for name in ("default_pg", "pair", "late"):
        assert comms[0, name].comm == comms[1, name].comm and comms[0, name].size == 2
        assert [0, 1] in (comms[0, name].ranks, comms[1, name].ranks)
    assert len({r.comm for r in comms.values()}) == 3
    last = [r for r in records if isinstance(r, Job)][-1]
    assert [(r["rank"], r["local_rank"], r["state"]) for r in last.ranks] == [(0, 0, "ended"), (1, 1, "ended")]
    assert last.world_size == 2 and last.backend == "gloo"
