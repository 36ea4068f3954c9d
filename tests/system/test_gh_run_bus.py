# SPDX-License-Identifier: Apache-2.0
"""gh-run --bus: two processes that make calls, each under a gh-run of its own as on two hosts, and a real Redis."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ghtools.stream.errors import InputError
from ghtools.stream.framing import read_records
from ghtools.stream.records import Calls, End, Record
from tests.bed.redis_server import RedisServer
from tests.csrc.conftest import Fakes, fakes

__all__ = ["fakes"]
pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
Env = dict[str, str]


def records(path: Path) -> Iterator[Record]:
    """What is whole of a stream that is still written."""
    if not path.exists():
        return
    with path.open("rb") as file:
        try:
            yield from read_records(file)
        except InputError:
            return


def seqs(path: Path, rank: int) -> list[int]:
    return [int(seq) for r in records(path) if isinstance(r, Calls) and r.rank == rank for seq in r.seq]


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def test_host_0_sees_all_ranks_also_after_a_restart_of_redis(fakes: Fakes, clean_env: Env, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    outs = [tmp_path / f"out{node}.ght" for node in range(2)]
    hosts: list[subprocess.Popen[bytes]] = []
    try:
        for node in range(2):
            env = {
                **clean_env, "GHT_REDIS_URL": server.url, "GHT_DIR": str(tmp_path / f"rings{node}"),
                "NODE_RANK": str(node), "RANK": str(node), "WORLD_SIZE": "2",
            }  # fmt: skip
            words = ["gh-run", "--bus", "-", "--job", "t", "--out", str(outs[node]), "--pipe", "gh-trace | gh-period"]
            hosts.append(
                subprocess.Popen(
                    [*words, "--", str(fakes.driver), "hold", "10"], env=env, bufsize=0,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )  # fmt: skip

        def calls(count: int) -> None:
            for host in hosts:
                assert host.stdin
                host.stdin.write(b"x" * count)

        wait_for(
            lambda: all(len(seqs(outs[0], rank)) >= 10 for rank in range(2)), "first calls of both ranks at host 0"
        )
        server.kill()
        calls(20)
        wait_for(lambda: len(seqs(outs[1], 1)) == 30, "host 1 goes on by itself while Redis is away")
        server.start()
        wait_for(lambda: all(len(seqs(outs[0], rank)) == 30 for rank in range(2)), "what was missed")
        calls(5)
        for host in hosts:
            assert host.stdin
            host.stdin.close()
            host.stdin = None  # communicate would flush it
        said = [host.communicate(timeout=90)[1].decode() for host in hosts]
        assert [host.returncode for host in hosts] == [3, 3], said
        for rank in range(2):
            assert seqs(outs[0], rank) == list(range(35))
        assert seqs(outs[1], 1) == list(range(35))
        assert seqs(outs[1], 0) == []
        ends = [[r for r in records(out) if isinstance(r, End)] for out in outs]
        assert [[(end.lost, end.reason) for end in found] for found in ends] == [[(0, "done")]] * 2
    finally:
        for host in hosts:
            if host.poll() is None:
                host.kill()
                host.communicate()
        server.close()


def test_what_cannot_work_is_said_before_the_job_starts(clean_env: Env, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    for words, said in (
        (["--bus", "-"], "no Redis is given"),
        (["--bus", "http://h", "--job", "j"], "cannot use the URL"),
        (["--bus", "redis://:s3cret@h"], "no id"),
        (["--bus", "redis://:s3cret@h", "--job", "j"], "NODE_RANK=0"),
    ):
        env = {key: value for key, value in clean_env.items() if not key.startswith("SLURM_")}
        done = subprocess.run(
            ["gh-run", *words, "--", "touch", str(mark)], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert "s3cret" not in done.stderr
    assert not mark.exists()
