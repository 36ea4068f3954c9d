# SPDX-License-Identifier: Apache-2.0
"""Requests to the hosts of a job over a real Redis: done once, within their lease, by hosts that come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ghtools.job.control import ControlPage
from ghtools.job.control_bus import ControlServer, ack_key, ask, control_key, page_applier
from ghtools.job.control_messages import Reply, Request, pack_request, request
from ghtools.stream.bus_link import BusUrl, bus_url
from ghtools.stream.errors import MissingError
from tests.bed.redis_server import PASSWORD, RedisServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
JOB = "job-1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def url(server: RedisServer) -> BusUrl:
    return bus_url(server.url)


class Host:
    """A host that notes what it was asked."""

    def __init__(self, url: BusUrl, name: str) -> None:
        self.asked: list[Request] = []
        self.said: list[str] = []
        self.server = ControlServer(url, JOB, self._apply, self.said.append, host=name)

    def _apply(self, asked: Request) -> Reply:
        self.asked.append(asked)
        if asked.args.get("iters") == 13:
            raise ZeroDivisionError
        return Reply("done", facts={"n": len(self.asked)})


def test_a_page_is_set_from_afar(url: BusUrl, tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path)
    with page, ControlServer(url, JOB, page_applier(page), print, host="a"):
        assert not page.read().profiling
        (reply,) = ask(url, JOB, request("profile", JOB, 60, on=True), 20, ["a"])
        assert (reply.state, reply.host, reply.facts["epoch"]) == ("done", "a", page.read().epoch)
        assert page.read().profiling
        assert 0 < page.read().profiling_left_s <= 60
        ask(url, JOB, request("track", JOB, 60, on=False), 20, ["a"])
        assert not page.read().tracking
        ask(url, JOB, request("profile", JOB, 60, on=False), 20, ["a"])
        assert not page.read().profiling


def test_all_hosts_answer_and_a_missing_one_is_said(url: BusUrl) -> None:
    hosts = [Host(url, name) for name in ("a", "b")]
    try:
        replies = ask(url, JOB, request("profile", JOB), 3, ["b", "c", "a"])
        assert [(r.host, r.state) for r in replies] == [("b", "done"), ("c", "could not tell"), ("a", "done")]
        assert "no answer" in replies[1].why
        replies = ask(url, JOB, request("profile", JOB, hosts=["a"]), 1)
        assert [(r.host, r.state) for r in replies] == [("a", "done")]
        assert [len(host.asked) for host in hosts] == [2, 1]
    finally:
        for host in hosts:
            host.server.close()


def test_the_same_request_is_done_once(url: BusUrl) -> None:
    host = Host(url, "a")
    try:
        asked = request("profile", JOB, 60, epoch=5)
        first, again = (ask(url, JOB, asked, 20, ["a"])[0] for _ in range(2))
        assert first == again
        assert len(host.asked) == 1
        assert ask(url, JOB, request("profile", JOB, epoch=4), 20, ["a"])[0].state == "refused"
        assert ask(url, JOB, request("profile", JOB, epoch=5), 20, ["a"])[0].state == "done"
    finally:
        host.server.close()


def test_a_fault_of_the_host_is_an_answer(url: BusUrl, capfd: pytest.CaptureFixture[str]) -> None:
    host = Host(url, "a")
    try:
        (reply,) = ask(url, JOB, request("profile", JOB, iters=13), 20, ["a"])
        assert (reply.state, reply.why) == ("failed", "a bug in ghtools: ZeroDivisionError")
        assert "ZeroDivisionError" in capfd.readouterr().err
        assert ask(url, JOB, request("profile", JOB), 20, ["a"])[0].state == "done"
    finally:
        host.server.close()


def test_who_comes_late_takes_only_what_still_holds(url: BusUrl, server: RedisServer) -> None:
    client = server.client()
    seconds, micros = client.time()
    now_ms = seconds * 1000 + micros // 1000
    old = request("track", JOB, 5, on=False)
    on, off = request("profile", JOB, 3000), request("profile", JOB, 100, on=False)
    for asked, age_s in ((old, 60), (on, 50), (off, 40)):
        client.xadd(control_key(JOB), {"d": pack_request(asked)}, id=f"{now_ms - age_s * 1000}-0")
    host = Host(url, "a")
    try:
        ask(url, JOB, request("track", JOB), 20, ["a"])
        assert [(a.what, a.args.get("on")) for a in host.asked] == [("profile", False), ("track", None)]
        assert 50 < host.asked[0].lease_s <= 60
    finally:
        host.server.close()


def test_what_is_no_request_is_left_out(url: BusUrl, server: RedisServer) -> None:
    host, client = Host(url, "a"), server.client()
    try:
        good = json.loads(pack_request(request("profile", JOB)))
        for wrong in (
            {"what": "run"}, {"args": {"command": "rm"}}, {"args": {"on": "yes"}}, {"lease_s": 1e9}, {"lease_s": -1},
            {"lease_s": float("nan")}, {"id": "x\n"}, {"job": "other"}, {"more": 1}, {"hosts": [1]}, {"epoch": True},
            {"args": {"iters": 1 << 80}},
        ):  # fmt: skip
            client.xadd(control_key(JOB), {"d": json.dumps({**good, **wrong})})
        for raw in (b"", b"[" * 5000, b"\xff", b"x" * (17 << 10)):
            client.xadd(control_key(JOB), {"d": raw})
        client.xadd(control_key(JOB), {"something": "else"})
        client.xadd(ack_key(JOB), {"d": b"rubbish"})
        assert ask(url, JOB, request("profile", JOB), 20, ["a"])[0].state == "done"
        assert len(host.asked) == 1
        assert host.server.skipped == 17
    finally:
        host.server.close()


def test_redis_may_be_killed(url: BusUrl, server: RedisServer) -> None:
    host = Host(url, "a")
    try:
        assert ask(url, JOB, request("profile", JOB), 20, ["a"])[0].state == "done"
        server.kill()
        (reply,) = ask(url, JOB, request("profile", JOB), 1, ["a"])
        assert reply.state == "could not tell"
        assert "away" in reply.why
        with pytest.raises(MissingError, match="away"):
            ask(url, JOB, request("profile", JOB), 0.5)
        server.start()
        assert ask(url, JOB, request("profile", JOB), 30, ["a"])[0].state == "done"
        assert len(host.asked) == 2
        server.client().flushall()
        assert ask(url, JOB, replace(request("track", JOB), epoch=1), 30, ["a"])[0].state == "done"
    finally:
        host.server.close()


def test_a_wrong_password_is_said_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    locked = RedisServer(folder, password=PASSWORD)
    try:
        with pytest.raises(MissingError, match="password") as caught:
            ask(bus_url(f"redis://:wr0ng@127.0.0.1:{locked.port}"), JOB, request("profile", JOB), 600, ["a"])
        assert "wr0ng" not in str(caught.value)
    finally:
        locked.close()
