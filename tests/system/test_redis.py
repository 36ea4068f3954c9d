# SPDX-License-Identifier: Apache-2.0
"""gh-pub and gh-sub through a real Redis that is killed, restarted, stopped and fed with rubbish."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Calls, Change, End, Head, Iters, Job, Record
from tests.bed.redis_server import PASSWORD, QUOTED, RedisServer, TlsFront, make_certificate

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
Env = dict[str, str]
STREAM = "ght:test"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def env(clean_env: Env, server: RedisServer) -> Env:
    return {**clean_env, "GHT_REDIS_URL": server.url}


@pytest.fixture
def spawn(env: Env) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command with pipes; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(words, env=env, bufsize=0, **{**pipes, **options})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


def iters(index: int, rank: int = 0) -> Iters:
    one = np.array([index])
    return Iters(rank=rank, index=one, t_ns=one * 1000, dur_ns=one, phase=one * 0, calls=one * 0, seq=one)


def calls(first: int, count: int, rank: int = 0) -> Calls:
    n = np.arange(first, first + count)
    zero = n * 0
    return Calls(
        rank=rank, t_ns=n, op=zero, dtype=zero, flags=zero, peer=zero, comm=zero, bytes=zero, seq=n, dur_ns=zero
    )


def write(process: subprocess.Popen[bytes], *records: Record) -> None:
    assert process.stdin is not None
    process.stdin.write(b"".join(map(encode, records)))


def finish(process: subprocess.Popen[bytes], timeout_s: float = 60) -> tuple[list[Record], str, int]:
    """Close its input; the records it wrote, what it said, its exit code."""
    out, err = process.communicate(timeout=timeout_s)
    return records_of(out), err.decode(), process.returncode


def records_of(data: bytes) -> list[Record]:
    import io

    return list(read_records(io.BytesIO(data)))


def indexes(records: list[Record], rank: int = 0) -> list[int]:
    return [int(i) for r in records if isinstance(r, Iters) and r.rank == rank for i in r.index]


def end_of(records: list[Record]) -> End:
    assert isinstance(records[0], Head)
    assert sum(isinstance(r, Head | End) for r in records) == 2
    assert isinstance(records[-1], End)
    assert records[-1].count == len(records) - 2
    return records[-1]


def wait_for(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def read_until(process: subprocess.Popen[bytes], index: int, got: list[bytes]) -> None:
    """Read the output of a gh-sub until the iteration `index` is there."""
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    while index not in indexes(list(whole_records(b"".join(got)))):
        assert time.monotonic() < deadline, f"iteration {index} never came"
        got.append(os.read(process.stdout.fileno(), 1 << 16))


def whole_records(data: bytes) -> Iterator[Record]:
    """The records that are complete so far."""
    import io

    from ghtools.stream.errors import InputError

    try:
        yield from read_records(io.BytesIO(data))
    except InputError:
        return


def test_what_goes_in_comes_out(env: Env, server: RedisServer) -> None:
    made = subprocess.run(["gh-synth", "--iters", "300"], env=env, capture_output=True, check=True).stdout
    done = subprocess.run(["gh-pub", STREAM], input=made, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    got = subprocess.run(["gh-sub", "--until-end", STREAM], env=env, capture_output=True, check=False)
    assert got.returncode == 0, got.stderr
    records = records_of(got.stdout)
    assert end_of(records).lost == 0
    assert [encode(r) for r in records[1:-1]] == [encode(r) for r in records_of(made)[1:-1]]
    assert isinstance(records[0], Head)
    assert (records[0].tool, records[0].job) == ("gh-sub", "synth")


def test_a_record_arrives_while_the_pipe_is_open(spawn: Any) -> None:
    sub, pub = spawn("gh-sub", STREAM), spawn("gh-pub", STREAM)
    got: list[bytes] = []
    write(pub, Head(job="j"), iters(0))
    read_until(sub, 0, got)
    write(pub, iters(1))
    read_until(sub, 1, got)
    sub.send_signal(signal.SIGINT)
    out, said, code = finish(sub)
    assert code == 0, said
    assert isinstance(out[-1], End)
    assert out[-1].reason == "stopped"


@pytest.mark.parametrize("persist", [True, False], ids=["append-only file", "nothing on disk"])
def test_nothing_is_lost_when_redis_is_killed(tmp_path: Path, clean_env: Env, persist: bool) -> None:
    (tmp_path / "data").mkdir()
    server = RedisServer(tmp_path / "data", persist=persist)
    env = {**clean_env, "GHT_REDIS_URL": server.url}
    sub = subprocess.Popen(["gh-sub", "--until-end", STREAM], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pub = subprocess.Popen(["gh-pub", STREAM], env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    try:
        write(pub, Head(job="j"))
        wait_for(lambda: server.client().xlen(STREAM), "the first entry")
        for index in range(600):
            write(pub, iters(index))
            time.sleep(0.003)
            if index in (150, 400):
                server.kill()
            if index in (300, 450):
                assert pub.stderr is not None
                assert b"is away" in pub.stderr.readline()
                server.start()
                while b"is back" not in pub.stderr.readline():
                    pass
        write(pub, End())
        _, err = pub.communicate(timeout=60)
        assert pub.returncode == 0, err
        records, said, code = finish(sub)
        assert code == 0, said
        assert indexes(records) == list(range(600))
        assert end_of(records).lost == 0
    finally:
        for process in (sub, pub):
            if process.poll() is None:
                process.kill()
            process.communicate()
        server.close()


def test_calls_are_dropped_and_counted_while_redis_is_away(spawn: Any, server: RedisServer) -> None:
    pub = spawn("gh-pub", "--buffer-mib", "1", STREAM)
    write(pub, Head(job="j"), calls(0, 10), calls(0, 10, rank=1))
    wait_for(lambda: server.client().xlen(STREAM), "the first entry")
    server.kill()
    for at in range(10, 200_010, 2000):  # 9.4 MB for a buffer of 1 MiB
        write(pub, calls(at, 2000), iters(at))
    write(pub, Change(why="kept"), End(lost=7))
    assert pub.stdin is not None
    pub.stdin.close()
    server.start()
    said = pub.stderr.read().decode()
    assert pub.wait(60) == 0, said
    assert "events were dropped" in said
    records, said, code = finish(spawn("gh-sub", "--until-end", STREAM))
    assert code == 0, said
    some = [r for r in records if isinstance(r, Calls) and r.rank == 0]
    got, lost = sum(len(r.seq) for r in some), sum(r.lost for r in some)
    assert 10 < got < 200_010
    assert got + lost == 200_010
    assert end_of(records).lost == lost + 7
    expected = 0
    for batch in some:  # each hole is said where it is
        assert int(batch.seq[0]) == expected + batch.lost
        expected = int(batch.seq[-1]) + 1
    assert indexes(records) == list(range(10, 200_010, 2000))
    assert any(isinstance(r, Change) for r in records)


def test_a_stopped_redis_holds_nobody_up(spawn: Any, server: RedisServer) -> None:
    pub = spawn("gh-pub", "--tee", "--buffer-mib", "1", "--linger-s", "0", STREAM)
    write(pub, Head(job="j"), iters(0))
    wait_for(lambda: server.client().xlen(STREAM), "the first entry")
    server.signal(signal.SIGSTOP)
    try:
        sent = [calls(at, 2000) for at in range(0, 100_000, 2000)]
        out = pub.communicate(b"".join(map(encode, [*sent, End()])), timeout=60)[0]
    finally:
        server.signal(signal.SIGCONT)
    records = records_of(out)
    assert [encode(r) for r in records[2:-1]] == [encode(r) for r in sent]
    assert pub.returncode == 4


def test_password(env: Env, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    server = RedisServer(folder, password=PASSWORD)
    made = b"".join(map(encode, [Head(job="j"), iters(0), End()]))
    try:
        done = subprocess.run(["gh-pub", server.url, STREAM], input=made, env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        got = subprocess.run(
            ["gh-sub", "--until-end", STREAM],
            env={**env, "GHT_REDIS_URL": server.url},
            capture_output=True,
            check=False,
        )
        assert (got.returncode, indexes(records_of(got.stdout))) == (0, [0])
        server.client().execute_command("ACL", "SETUSER", "gh", "on", ">pw", "~ght:*", "+@all")
        url = f"redis://gh:pw@127.0.0.1:{server.port}"
        assert subprocess.run(["gh-pub", url, STREAM], input=made, env=env, check=False).returncode == 0
        done = subprocess.run(["gh-pub", url, "other"], input=made, env=env, capture_output=True, check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
        assert b"may not do that" in done.stderr
        bad = server.url.replace(QUOTED, "wr0ng")
        for words in (
            ["gh-pub", bad, STREAM],
            ["gh-sub", bad, STREAM],
            ["gh-sub", f"redis://127.0.0.1:{server.port}", "s"],
        ):
            done = subprocess.run(words, input=made, env=env, capture_output=True, check=False, timeout=30)
            assert done.returncode == 4
            assert b"password" in done.stderr
            assert b"wr0ng" not in done.stderr + done.stdout
    finally:
        server.close()


def test_tls(env: Env, server: RedisServer, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    front = TlsFront(server.port, certificate, key)
    url = f"rediss://127.0.0.1:{front.port}/0?ssl_ca_certs={certificate}"
    made = b"".join(map(encode, [Head(job="j"), iters(0), iters(1), End()]))
    try:
        done = subprocess.run(["gh-pub", url, STREAM], input=made, env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        got = subprocess.run(["gh-sub", "--until-end", url, STREAM], env=env, capture_output=True, check=False)
        assert (got.returncode, indexes(records_of(got.stdout))) == (0, [0, 1])
        untrusted = f"rediss://127.0.0.1:{front.port}/0"
        done = subprocess.run(["gh-pub", untrusted, STREAM], input=made, env=env, capture_output=True, check=False)
        assert done.returncode == 4
        assert b"certificate is not trusted" in done.stderr
    finally:
        front.close()


def test_what_was_trimmed_is_counted(spawn: Any, server: RedisServer) -> None:
    sub = spawn("gh-sub", "--until-end", STREAM)
    pub = spawn("gh-pub", "--maxlen", "20", STREAM)
    got: list[bytes] = []
    write(pub, Head(job="j"), calls(0, 10), iters(0))
    read_until(sub, 0, got)
    sub.send_signal(signal.SIGSTOP)
    for at in range(10, 400_010, 2000):
        write(pub, calls(at, 2000))
    write(pub, calls(400_010, 1), iters(1), End())
    pub.stdin.close()
    assert pub.wait(60) == 0
    assert server.client().xlen(STREAM) < 200
    sub.send_signal(signal.SIGCONT)
    out, err = sub.communicate(timeout=60)
    assert sub.returncode == 0, err
    assert b"were gone before they were read" in err
    records = records_of(b"".join(got) + out)
    some = [r for r in records if isinstance(r, Calls)]
    lost = sum(r.lost for r in some)
    assert lost > 0
    assert sum(len(r.seq) for r in some) + lost == 400_011
    assert end_of(records).lost == lost


def test_two_publishers_make_one_stream(spawn: Any, server: RedisServer) -> None:
    sub, pubs = spawn("gh-sub", "--silent-s", "2", "--until-end", STREAM), [spawn("gh-pub", STREAM) for _ in range(2)]
    for n, pub in enumerate(pubs):
        write(pub, Head(job="j"), Job(job="j", ranks=[{"rank": n, "host": f"h{n}"}]))
    for index in range(50):
        for n, pub in enumerate(pubs):
            write(pub, iters(index, rank=n))
    write(pubs[0], End())
    assert finish(pubs[0])[2] == 0
    wait_for(lambda: b"".join(f[b"d"] for _, f in server.client().xrange(STREAM)).count(b"iters") == 100, "all entries")
    pubs[1].kill()
    records, said, code = finish(sub)
    assert indexes(records, 0) == indexes(records, 1) == list(range(50))
    assert code == 3
    assert "has been silent for 2 s" in said
    assert end_of(records).reason.startswith("cut: source")


def test_a_reader_goes_on_where_it_stopped(spawn: Any, tmp_path: Path, server: RedisServer) -> None:
    state = tmp_path / "place"
    pub, sub = spawn("gh-pub", STREAM), spawn("gh-sub", "--state", str(state), STREAM)
    got: list[bytes] = []
    write(pub, Head(job="j"), *(iters(n) for n in range(100)))
    read_until(sub, 99, got)
    wait_for(state.exists, "the state is written")
    first = state.read_bytes()
    write(pub, *(iters(n) for n in range(100, 110)))
    wait_for(lambda: state.read_bytes() != first, "the state moves on")
    sub.kill()
    assert state.stat().st_mode & 0o777 == 0o600
    write(pub, *(iters(n) for n in range(110, 120)), End())
    assert finish(pub)[2] == 0
    records, said, code = finish(spawn("gh-sub", "--state", str(state), "--until-end", STREAM))
    assert (code, indexes(records)) == (0, list(range(110, 120))), said
    _, said, code = finish(spawn("gh-sub", "--state", str(state), "other"))
    assert code == 2
    assert "of another stream" in said


def test_rubbish_in_the_stream_is_left_out(spawn: Any, server: RedisServer) -> None:
    client = server.client()
    good = {"v": "1", "s": "h:1:x", "j": "j", "n": "0", "e": "0", "x": "0", "d": encode(iters(5))}
    for rubbish in (
        {"a": "b"}, {**good, "v": "2"}, {**good, "n": "-1"}, {**good, "n": "9" * 40}, {**good, "s": "x\x1b[31m y"},
        {**good, "d": b"\xc1rubbish"}, {**good, "d": encode(iters(5))[:-3]}, {**good, "d": b"x" * (5 << 20)},
        {**good, "d": b"\xdd\xff\xff\xff\xff"},
    ):  # fmt: skip
        client.xadd(STREAM, rubbish)
    pub = spawn("gh-pub", STREAM)
    write(pub, Head(job="j"), iters(0), End())
    assert finish(pub)[2] == 0
    records, said, code = finish(spawn("gh-sub", "--until-end", STREAM))
    assert (code, indexes(records)) == (0, [0]), said
    assert "9 entries were left out" in said
    assert "Traceback" not in said
    assert "\x1b" not in said


def test_a_key_that_is_no_stream(env: Env, server: RedisServer) -> None:
    server.client().set(STREAM, "text")
    made = b"".join(map(encode, [Head(job="j"), iters(0), End()]))
    for command in ("gh-pub", "gh-sub"):
        done = subprocess.run([command, STREAM], input=made, env=env, capture_output=True, check=False, timeout=30)
        assert done.returncode == 4
        assert b"no stream" in done.stderr
        assert b"Traceback" not in done.stderr


def test_no_redis_at_all(env: Env, server: RedisServer) -> None:
    server.close()
    made = b"".join(map(encode, [Head(job="j"), iters(0), End()]))
    done = subprocess.run(
        ["gh-pub", "--linger-s", "0.5", STREAM], input=made, env=env, capture_output=True, check=False, timeout=30
    )
    assert done.returncode == 4
    assert b"2 events were not delivered" in done.stderr or b"3 events were not delivered" in done.stderr
