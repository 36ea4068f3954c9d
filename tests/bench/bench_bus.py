# SPDX-License-Identifier: Apache-2.0
"""Speed of gh-pub, a real Redis and gh-sub, and what a restart of Redis loses.

    python tests/bench/bench_bus.py

Everything on this machine, over TCP on the loopback, with an append-only file. Prints one line a figure: name, value,
unit, remark. Without a redis-server it says so and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Calls, End, Head, Iters, Record, columns
from tests.bed.redis_server import RedisServer
from tests.conftest import BIN

STREAM = "ght:bench"


def batch(cls: type[Record], first: int, rows: int, rank: int) -> Record:
    """Rows numbered from `first`."""
    n = np.arange(first, first + rows)
    return cls(rank=rank, **{name: n.astype(dtype) for name, dtype in columns(cls).items()})


def through(env: dict[str, str], records: list[Record], folder: Path) -> tuple[float, float, int]:
    """Seconds from a file through gh-pub, Redis and gh-sub, CPU seconds of the two, and rows that arrived."""
    stream = STREAM + str(time.monotonic_ns())
    file, out = folder / "in.ght", folder / "out.ght"
    file.write_bytes(b"".join(map(encode, [Head(job="j"), *records, End()])))
    before = os.times()
    began = time.perf_counter()
    with out.open("wb") as sink, subprocess.Popen(["gh-sub", "-q", "--until-end", stream], env=env, stdout=sink) as sub:
        subprocess.run(["gh-pub", "-q", "--maxlen", "1000000", stream, file], env=env, check=True)
        sub.wait()
    took, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    with out.open("rb") as source:
        rows = sum(len(r.seq) for r in read_records(source) if isinstance(r, Calls | Iters))
    return took, cpu, rows


def latency(env: dict[str, str]) -> list[float]:
    """Milliseconds from a record's write into gh-pub to its bytes out of gh-sub, one at a time."""
    sub = subprocess.Popen(["gh-sub", "-q", STREAM], env=env, stdout=subprocess.PIPE, bufsize=0)
    pub = subprocess.Popen(["gh-pub", "-q", STREAM], env=env, stdin=subprocess.PIPE, bufsize=0)
    assert sub.stdout and pub.stdin
    found = []
    try:
        pub.stdin.write(encode(Head(job="j")))
        for n in range(60):
            pub.stdin.write(encode(batch(Iters, n, 1, 0)))
            began = time.perf_counter()
            while b"iters" not in os.read(sub.stdout.fileno(), 1 << 16):
                pass
            found.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.1)
        pub.stdin.write(encode(End()))
    finally:
        pub.stdin.close()
        pub.wait()
        sub.terminate()
        sub.stdout.close()
        sub.wait()
    return found[5:]


def restart(env: dict[str, str], server: RedisServer) -> tuple[int, int]:
    """Rows written while Redis is killed twice and started again, and rows that did not come out."""
    stream = STREAM + "-restart"
    sub = subprocess.Popen(["gh-sub", "-q", "--until-end", stream], env=env, stdout=subprocess.PIPE)
    pub = subprocess.Popen(["gh-pub", "-q", stream], env=env, stdin=subprocess.PIPE, bufsize=0)
    assert sub.stdout and pub.stdin
    out: list[bytes] = []
    reader = threading.Thread(target=lambda: out.append(sub.stdout.read() if sub.stdout else b""))
    reader.start()
    pub.stdin.write(encode(Head(job="j")))
    for n in range(400):
        pub.stdin.write(encode(batch(Calls, n * 100, 100, 0)))
        time.sleep(0.01)
        if n in (100, 250):
            server.kill()
        if n in (200, 300):
            server.start()
    pub.stdin.write(encode(End()))
    pub.stdin.close()
    pub.wait()
    reader.join()
    sub.wait()
    import io

    seen = np.concatenate([r.seq for r in read_records(io.BytesIO(b"".join(out))) if isinstance(r, Calls)])
    assert len(np.unique(seen)) == len(seen)
    return 40_000, 40_000 - len(seen)


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            server = RedisServer(folder)
        except pytest.skip.Exception as skipped:
            print(f"bus\t-\t-\t{skipped}")
            return
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "GHT_REDIS_URL": server.url}
        try:
            small: list[Record] = [batch(Iters, n, 1, n % 8) for n in range(60_000)]
            large: list[Record] = [batch(Calls, n * 1000, 1000, n % 8) for n in range(1500)]
            for what, records in (("iters of one row", small), ("calls of 1,000 rows", large)):
                empty = min(through(env, [], folder)[0] for _ in range(2))  # starting and ending two commands
                took, cpu, rows = through(env, records, folder)
                size = sum(len(encode(record)) for record in records)
                seconds = max(took - empty, 1e-9)
                print(
                    f"gh-pub | Redis | gh-sub, {what}\t{len(records) / seconds:,.0f}\trecords/s\t"
                    f"{size / seconds / 1e6:.1f} MB/s, {rows / seconds / 1e6:.2f} million rows/s, "
                    f"{cpu / len(records) * 1e6:.0f} us CPU a record in both"
                )
            found = latency(env)
            print(
                f"record in to record out, median\t{np.median(found):.1f}\tms\t"
                f"p95 {np.percentile(found, 95):.1f} ms of {len(found)}"
            )
            rows, lost = restart(env, server)
            print(f"lost when Redis is killed twice\t{lost}\trows\tof {rows}")
        finally:
            server.close()


if __name__ == "__main__":
    main()
