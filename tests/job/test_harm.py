# SPDX-License-Identifier: Apache-2.0
"""Do no harm: whatever happens to the process or its ring, the program ends as it would have, and the reader
says what it sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ghtools.job import paths
from ghtools.job.ring import RingReader, ring_state
from tests.csrc.conftest import Fakes

Env = dict[str, str]
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="mounting and changing users needs root")


def run(fakes: Fakes, env: Env, *arguments: str) -> int:
    """Run the driver; its exit code, which must not depend on the shim."""
    plain = {key: value for key, value in env.items() if key != "LD_PRELOAD"}
    command = [str(fakes.driver), *arguments]
    want = subprocess.run(command, env=plain, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    done = subprocess.run(command, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (want.returncode, want.stdout, want.stderr)
    return done.returncode


def the_job(env: Env) -> paths.JobDir:
    (job,) = paths.jobs(Path(env["GHT_DIR"]))
    return job


@contextmanager
def hold(fakes: Fakes, env: Env, n: int = 10) -> Iterator[subprocess.Popen[str]]:
    """The driver, having made n calls and waiting for more."""
    child = subprocess.Popen(
        [str(fakes.driver), "hold", str(n)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout and child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def test_exit_without_destroying_the_communicator(fakes: Fakes, shim_env: Env) -> None:
    assert run(fakes, shim_env, "hold", "5") == 3
    (ring,) = the_job(shim_env).rings
    with RingReader(ring.path) as reader:
        assert reader.state() == "ended"
        assert len(reader.drain()[0]) == 5
        assert not reader.comms()[0].dead


def test_exit_past_all_destructors_is_seen_as_death(fakes: Fakes, shim_env: Env) -> None:
    assert run(fakes, shim_env, "quick", "5") == 4
    (ring,) = the_job(shim_env).rings
    assert ring_state(ring.path) == "died"


def test_kill_9(fakes: Fakes, shim_env: Env) -> None:
    with hold(fakes, shim_env) as child:
        (ring,) = the_job(shim_env).rings
        with RingReader(ring.path) as reader:
            assert reader.state(max_age_s=0) == "running"
            assert the_job(shim_env).alive
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert reader.state(max_age_s=0) == "died"
            assert len(reader.drain()[0]) == 10  # what it had written is there
    assert not the_job(shim_env).alive


def test_a_zombie_has_died(fakes: Fakes, shim_env: Env) -> None:
    with hold(fakes, shim_env) as child:
        (ring,) = the_job(shim_env).rings
        child.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while ring_state(ring.path) == "running" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ring_state(ring.path) == "died"  # nobody has waited for it yet


def test_forked_child_lets_go(fakes: Fakes, shim_env: Env) -> None:
    assert run(fakes, shim_env, "fork", "5") == 5
    (ring,) = the_job(shim_env).rings
    with RingReader(ring.path) as reader:
        assert len(reader.drain()[0]) == 6  # the child's call is not among them
        assert reader.state() == "ended"  # by the parent's exit, which came after the child's


def test_forked_child_with_a_communicator_of_its_own_has_a_ring_of_its_own(fakes: Fakes, shim_env: Env) -> None:
    assert run(fakes, shim_env, "fork-comm", "7") == 5
    rings = the_job(shim_env).rings
    assert len({ring.pid for ring in rings}) == 2
    counts = []
    for ring in rings:
        with RingReader(ring.path) as reader:
            counts.append(len(reader.drain()[0]))
    assert sorted(counts) == [5, 8]


def test_python_that_forks_while_calling(fakes: Fakes, shim_env: Env) -> None:
    code = (
        "import ctypes, os, subprocess, sys, multiprocessing as mp\n"
        f"lib = ctypes.CDLL({str(fakes.by_name)!r})\n"
        "def child(n): sys.exit(lib.drive_simple(4, n, 3))\n"
        "if __name__ == '__main__':\n"
        "    lib.drive_simple(4, 0, 10)\n"
        "    c = mp.get_context('fork')\n"
        "    ps = [c.Process(target=child, args=(i,)) for i in (1, 2)]\n"
        "    [p.start() for p in ps]; [p.join() for p in ps]\n"
        "    subprocess.run(['true'], check=True)\n"
        "    sys.exit(sum(p.exitcode for p in ps))\n"
    )
    env = {key: value for key, value in shim_env.items() if key != "RANK"}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=60, check=False).returncode == 0
    assert the_job(env).ranks == [0, 1, 2]  # said by the communicators, since the environment says nothing


def test_exec_gives_the_ring_up(fakes: Fakes, shim_env: Env) -> None:
    child = subprocess.Popen(
        [str(fakes.driver), "exec", "5", "nap"], env=shim_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout and child.stdout.readline() == "exec'ed\n"
    (ring,) = the_job(shim_env).rings
    assert ring.pid == child.pid  # alive, with the same number and start
    assert ring_state(ring.path) == "ended"
    child.communicate()
    assert child.returncode == 0


def test_exec_into_another_user_of_communicators(fakes: Fakes, shim_env: Env) -> None:
    assert run(fakes, shim_env, "exec", "5", "simple") == 0
    rings = the_job(shim_env).rings
    assert len(rings) == 2 and len({ring.pid for ring in rings}) == 1
    with RingReader(rings[0].path) as first, RingReader(rings[1].path) as second:
        assert (len(first.drain()[0]), len(second.drain()[0])) == (5, 7)


def test_restarted_rank_has_a_second_ring(fakes: Fakes, shim_env: Env) -> None:
    with hold(fakes, shim_env, 3) as child:
        child.kill()
        child.wait()
    assert run(fakes, {**shim_env, "TORCHELASTIC_RESTART_COUNT": "1"}, "hold", "4") == 3
    first, second = the_job(shim_env).rings
    assert (first.rank, second.rank) == (0, 0)
    assert first.made_ns < second.made_ns
    with RingReader(second.path) as reader:
        assert reader.info.restart_count == 1


def test_two_jobs_at_once(fakes: Fakes, shim_env: Env) -> None:
    with hold(fakes, {**shim_env, "GHT_JOB": "a"}, 3), hold(fakes, {**shim_env, "GHT_JOB": "b"}, 4):
        found = paths.jobs(Path(shim_env["GHT_DIR"]))
        assert [job.job for job in found] == ["b", "a"]  # newest first
        counts = {}
        for job in found:
            with RingReader(job.rings[0].path) as reader:
                counts[job.job] = len(reader.drain()[0])
        assert counts == {"a": 3, "b": 4}


def test_ranks_of_one_launcher_agree_on_the_job_and_wrappers_do_not_matter(fakes: Fakes, shim_env: Env) -> None:
    env = {key: value for key, value in shim_env.items() if key not in ("GHT_JOB", "RANK")}
    script = (
        f"RANK=0 {fakes.driver} simple & RANK=1 sh -c '{fakes.driver} simple; exit $?' &"
        f" RANK=2 sh -c 'sh -c \"{fakes.driver} simple; true\"; true' & wait"
    )
    for _ in range(2):
        subprocess.run(["bash", "-c", script], env=env, check=True, timeout=60)
    found = paths.jobs(Path(env["GHT_DIR"]))
    assert [job.ranks for job in found] == [[0, 1, 2], [0, 1, 2]]  # two launches, two jobs


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_NODEID": "2"}, (3, 1, 8, 2)),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_SIZE": "6"}, (5, 2, 6, -1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, -1, 2, -1)),
        ({"RANK": "9", "WORLD_SIZE": "10", "SLURM_PROCID": "0"}, (9, -1, 10, -1)),
        ({"RANK": "x"}, (0, -1, 4, -1)),
        ({}, (0, -1, 4, -1)),
    ],
)
def test_rank_comes_from_the_launcher_else_from_the_communicator(
    given: Env, want: tuple[int, ...], fakes: Fakes, shim_env: Env
) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
    env = {key: value for key, value in shim_env.items() if key not in names}
    assert run(fakes, {**env, **given}, "simple") == 0
    (ring,) = the_job(env).rings
    with RingReader(ring.path) as reader:
        info = reader.info
    assert (info.rank, info.local_rank, info.world_size, info.node_rank) == want


# ---- places ----


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@needs_root
def test_full_tmpfs(fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "full", "1m") as full:
        (full / "fill").write_bytes(b"x" * (1 << 20))
        env = {**shim_env, "GHT_DIR": str(full)}
        assert run(fakes, env, "all") == 0
        assert paths.jobs(full) == []


@needs_root
def test_tmpfs_that_is_nearly_full_gets_no_ring_or_a_small_one(fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "8m") as small:
        env = {**shim_env, "GHT_DIR": str(small)}
        assert run(fakes, env, "all") == 0
        (ring,) = the_job(env).rings
        assert ring.path.stat().st_size <= (8 << 20) // 16


@needs_root
def test_sixteen_ranks_in_the_64_mb_of_a_container(fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "shm", "64m") as shm:
        env = {**shim_env, "GHT_DIR": str(shm)}
        for rank in range(16):
            assert run(fakes, {**env, "RANK": str(rank)}, "simple", "1000") == 0
        rings = the_job(env).rings
        assert len(rings) == 16
        for ring in rings:
            with RingReader(ring.path) as reader:
                records, lost = reader.drain()
                assert len(records) + lost == 1000
        free = os.statvfs(shm)
        assert free.f_bavail * free.f_frsize > 16 << 20  # and the job's own segments find room


@needs_root
def test_read_only_directory(fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "ro", "8m") as folder:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        assert run(fakes, {**shim_env, "GHT_DIR": str(folder)}, "all") == 0
        assert paths.jobs(folder) == []


@pytest.mark.parametrize("place", ["/nonexistent/deep/down", "/dev/null", "/proc", ""])
def test_no_such_directory(place: str, fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    env = {**shim_env, "GHT_DIR": place}
    if not place:
        env["GHT_DIR"] = str(tmp_path / "file")
        Path(env["GHT_DIR"]).write_text("not a directory")
    assert run(fakes, env, "all") == 0
    assert paths.jobs(Path(env["GHT_DIR"])) == []


def test_job_directory_that_is_a_link_is_not_followed(fakes: Fakes, shim_env: Env, tmp_path: Path) -> None:
    root, elsewhere = Path(shim_env["GHT_DIR"]), tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "t").symlink_to(elsewhere)
    assert run(fakes, shim_env, "all") == 0
    assert list(elsewhere.iterdir()) == []


def test_what_a_crash_left_does_not_disturb_the_next_job(fakes: Fakes, shim_env: Env) -> None:
    with hold(fakes, shim_env) as child:
        child.kill()
        child.wait()
    folder = the_job(shim_env).path
    (folder / ".new-1").write_bytes(b"half made")
    assert run(fakes, shim_env, "simple", "20") == 0
    first, second = the_job(shim_env).rings
    assert [ring_state(ring.path) for ring in (first, second)] == ["died", "ended"]
    with RingReader(second.path) as reader:
        assert len(reader.drain()[0]) == 20


@needs_root
def test_two_users(fakes: Fakes, shim_env: Env) -> None:
    """Each has a directory of his own; one cannot get at the other's, not even where both share GHT_DIR."""
    for folder in (fakes.folder, *fakes.folder.parents):
        if folder != Path("/") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o755)
    env = {key: value for key, value in shim_env.items() if key != "GHT_DIR"}
    env["GHT_JOB"] = f"test-{os.getpid()}"
    lib = fakes.folder / "shim.so"
    lib.write_bytes(Path(env["LD_PRELOAD"]).read_bytes())
    lib.chmod(0o755)
    env["LD_PRELOAD"] = str(lib)
    command = [str(fakes.driver), "simple", "20"]
    places = [paths.SHM / f"ghtools-{uid}" / env["GHT_JOB"] for uid in (0, 65534)]
    had = [place.parent.exists() for place in places]
    try:
        for user in ("root", "nobody"):
            assert subprocess.run(command, env=env, user=user, group=0, timeout=60, check=False).returncode == 0
        assert [len(paths.rings_in(place)) for place in places] == [1, 1]
        assert [place.stat().st_uid for place in places] == [0, 65534]
        # the name of another user's directory taken first: pass through
        taken = {**env, "GHT_DIR": str(places[0].parent)}
        done = subprocess.run(command, env=taken, user="nobody", group=65534, timeout=60, check=False)
        assert done.returncode == 0
        assert len(paths.rings_in(places[0])) == 1
    finally:
        for place, before in zip(places, had, strict=True):
            subprocess.run(["rm", "-rf", place if before else place.parent], check=True)
        lib.unlink()
