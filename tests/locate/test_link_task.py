# SPDX-License-Identifier: Apache-2.0
"""csrc/tasks/link.c through the native library: both ends in threads of this process."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ghtools.job.task import CLOSE, EXCHANGE, LISTEN, Task, TaskResult, run_task

TOKEN = (1234567890123, -42)
WHO_CONNECTS, WHO_WAITS, BOTH = 1, 2, 4
SIZES = (1 << 20, 3 << 20)


@pytest.fixture
def place() -> Iterator[str]:
    """Address and port of this process's listener."""
    result = run_task(Task(LISTEN, (), "127.0.0.1"))
    assert result.status == 0, result.why
    address, port, interface = result.said.split()
    assert (address, interface) == ("127.0.0.1", "lo")
    yield f"{address} {port}"
    assert run_task(Task(CLOSE)).status == 0


def args(connects: int, token: tuple[int, int] = TOKEN, ways: int = BOTH, repeats: int = 2, soft_ms: int = 5000,
         hard_ms: int = 8000, sizes: tuple[int, ...] = SIZES) -> tuple[int, ...]:  # fmt: skip
    return (connects, *token, ways, repeats, 8, soft_ms, hard_ms, len(sizes), *sizes)


def both(place: str, waits: tuple[int, ...], connects: tuple[int, ...]) -> tuple[TaskResult, TaskResult]:
    """Results of the end that waits and of the end that connects."""
    got: list[TaskResult] = []
    thread = threading.Thread(target=lambda: got.append(run_task(Task(EXCHANGE, waits))))
    thread.start()
    mine = run_task(Task(EXCHANGE, connects, place))
    thread.join()
    return got[0], mine


def test_paired_exchange_is_measured_at_both_ends(place: str) -> None:
    waits, connects = both(place, args(0), args(1))
    assert (waits.why, connects.why) == ("", "")
    assert len(waits.values) == len(connects.values) == 3 + 2 * 2
    assert connects.values[0] > 0 > waits.values[0]  # latency
    assert all(value > 0 for value in (*waits.values[1:], *connects.values[1:]))


def test_a_direction_is_measured_where_it_arrives(place: str) -> None:
    waits, connects = both(place, args(0, ways=7, repeats=1), args(1, ways=7, repeats=1))
    assert (waits.why, connects.why) == ("", "")
    arrived = [value > 0 for value in waits.values[3:]], [value > 0 for value in connects.values[3:]]
    assert arrived == ([True, False, True] * 2, [False, True, True] * 2)


def test_the_soft_limit_ends_both_alike(place: str) -> None:
    waits, connects = both(place, args(0, soft_ms=0), args(1))
    assert (waits.status, connects.status) == (0, 0)
    assert set(waits.values[3:]) == set(connects.values[3:]) == {-1}


def test_a_stranger_is_dropped_and_does_not_hinder(place: str) -> None:
    address, port = place.split()
    strangers = [socket.create_connection((address, int(port))) for _ in range(12)]
    for stranger in strangers[::2]:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n------------------------")
    waits, connects = both(place, args(0), args(1))
    assert (waits.why, connects.why) == ("", "")
    for stranger in strangers:
        stranger.settimeout(2)
        with suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
        stranger.close()


def test_another_token_is_a_stranger(place: str) -> None:
    waits, connects = both(place, args(0, hard_ms=300), args(1, token=(1, 2), hard_ms=300))
    assert waits.status == errno.ETIMEDOUT
    assert "connection" in waits.said
    assert connects.status in (errno.ECONNRESET, errno.ETIMEDOUT)


def test_an_end_that_goes_away_is_said(place: str) -> None:
    address, port = place.split()
    got: list[TaskResult] = []
    thread = threading.Thread(target=lambda: got.append(run_task(Task(EXCHANGE, args(0)))))
    thread.start()
    hello = b"".join(n.to_bytes(8, "little", signed=n < 0) for n in (0x6768746C696E6B31, *TOKEN))
    with socket.create_connection((address, int(port))) as peer:
        peer.sendall(hello)
        assert peer.recv(24) == hello
    thread.join()
    assert got[0].status in (errno.ECONNRESET, errno.EPIPE)


def test_a_leave_that_ends_ends_the_wait(place: str) -> None:
    began = time.monotonic()
    result = run_task(Task(EXCHANGE, args(0, hard_ms=60_000)), timeout_s=0.2)
    assert result.status == errno.ECANCELED
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "bad",
    [
        (2, *TOKEN, BOTH, 1, 0, 1, 1, 1, 100),
        (0, *TOKEN, 0, 1, 0, 1, 1, 1, 100),
        (0, *TOKEN, 8, 1, 0, 1, 1, 1, 100),
        (0, *TOKEN, -1, 1, 0, 1, 1, 1, 1),
        (0, *TOKEN, BOTH, 0, 0, 1, 1, 1, 100),
        (0, *TOKEN, BOTH, 254, 0, 1, 1, 1, 100),
        (0, *TOKEN, BOTH, 1 << 40, 0, 1, 1, 1, 100),
        (0, *TOKEN, BOTH, 1, 257, 1, 1, 1, 100),
        (0, *TOKEN, BOTH, 1, 0, 1, 0, 1, 1),
        (0, *TOKEN, BOTH, 1, 0, 1, 1, 0),
        (0, *TOKEN, BOTH, 1, 0, 1, 1, 16, *[1] * 14),
        (0, *TOKEN, BOTH, 1, 0, 1, 1, 1, 0),
    ],
)
def test_what_makes_no_sense_is_refused(place: str, bad: tuple[int, ...]) -> None:
    assert run_task(Task(EXCHANGE, bad)).status == errno.EINVAL


@pytest.mark.parametrize("text", ["", "127.0.0.1", "127.0.0.1 0", "127.0.0.1 65536", "localhost 80", "x" * 200])
def test_an_address_that_is_none_is_refused(place: str, text: str) -> None:
    assert run_task(Task(EXCHANGE, args(1), text)).status == errno.EINVAL


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1 {taken.getsockname()[1]}"
        assert run_task(Task(EXCHANGE, args(1), place)).status == errno.ECONNREFUSED


def test_waiting_without_a_listener_is_refused() -> None:
    assert run_task(Task(EXCHANGE, args(0))).status == errno.EINVAL


def test_which_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named; what Gloo is told; the host's name."""
    assert run_task(Task(LISTEN, (), "lo")).said.startswith("127.0.0.1 ")
    assert run_task(Task(LISTEN, (), "192.0.2.1")).status == errno.ENODEV
    assert run_task(Task(LISTEN, (), "nosuch0")).status == errno.ENODEV
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    os.putenv("GLOO_SOCKET_IFNAME", "lo,eth7")
    assert run_task(Task(LISTEN)).said.endswith(" lo")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    found = run_task(Task(LISTEN))
    assert found.status == 0
    assert len(found.said.split()) == 3
    run_task(Task(CLOSE))


def test_nothing_is_left_behind(place: str) -> None:
    both(place, args(0), args(1))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        both(place, args(0, repeats=1), args(1, repeats=1))
        both(place, args(0, hard_ms=20), args(1, token=(0, 0), hard_ms=20))
        run_task(Task(EXCHANGE, args(1), "127.0.0.1 1"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
