# SPDX-License-Identifier: Apache-2.0
"""The webhook against real servers that answer well, badly, late or not at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ghtools.stream.errors import GhError
from ghtools.stream.records import Alert
from ghtools.view.webhook import Webhook


class Receiver:
    """A web server that answers POSTs with `codes` in turn (then 200), after `gate` is open."""

    def __init__(self, codes: list[int]) -> None:
        self.codes, self.got, self.headers = codes, [], []
        self.gate = threading.Event()
        self.gate.set()
        self.url = ""


@contextmanager
def receiver(*codes: int) -> Iterator[Receiver]:
    state = Receiver(list(codes))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.gate.wait(20)
            state.got.append(json.loads(body))
            state.headers.append(dict(self.headers))
            self.send_response(state.codes.pop(0) if state.codes else 200)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/hook?token=secret"
    try:
        yield state
    finally:
        state.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def make(url: str, said: list[str], **kw: Any) -> Webhook:
    return Webhook(url, said.append, waits_s=kw.pop("waits_s", (0.01, 0.01)), **kw)


def test_alerts_arrive_in_order_as_json() -> None:
    said: list[str] = []
    with receiver() as server:
        hook = make(server.url.replace("http://", "http://bob:p%40ss@"), said)
        for number in range(20):
            hook.send(Alert(id=f"a{number}", text="SLOW", before_ns=5))
        assert hook.close() == 0
        assert [item["id"] for item in server.got] == [f"a{n}" for n in range(20)]
    assert server.got[0]["kind"] == "alert" and server.got[0]["before_ns"] == 5
    assert server.headers[0]["Content-Type"] == "application/json"
    assert server.headers[0]["Authorization"] == "Basic Ym9iOnBAc3M="
    assert said == [] and hook.sent == 20


def test_errors_of_the_server_are_tried_again() -> None:
    said: list[str] = []
    with receiver(500, 503) as server:
        hook = make(server.url, said)
        hook.send(Alert(id="a"))
        assert hook.close() == 0
        assert [item["id"] for item in server.got] == ["a"] * 3
    assert said == []


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (302, 1), (307, 1), (500, 3), (429, 3)])
def test_what_is_refused_is_counted_said_once_and_secrets_are_not_printed(code: int, tries: int) -> None:
    said: list[str] = []
    with receiver(*[code] * 2 * tries) as server:
        hook = make(server.url, said)
        hook.send(Alert(id="a"))
        hook.send(Alert(id="b"))
        hook.send(Alert(id="c"))
        assert hook.close() == 2
        assert [item["id"] for item in server.got] == ["a"] * tries + ["b"] * tries + ["c"]
    assert len(said) == 1 and str(code) in said[0] and "secret" not in said[0]
    assert (hook.sent, hook.failed) == (1, 2)


def test_a_receiver_that_hangs_never_holds_the_sender_and_drops_are_counted() -> None:
    said: list[str] = []
    with receiver() as server:
        server.gate.clear()
        hook = make(server.url, said, queue_max=8, timeout_s=30)
        for number in range(500):  # a sender that waited would hang here until the server's 20 s
            hook.send(Alert(id=f"a{number}"))
        assert hook.dropped >= 500 - 8 - 1 and hook.sent == 0
        missing = hook.close(grace_s=0.2)
        assert missing == 500
        server.gate.set()


def test_a_timeout_is_a_failure() -> None:
    said: list[str] = []
    with receiver() as server:
        server.gate.clear()
        hook = make(server.url, said, timeout_s=0.1, waits_s=(0.01,))
        hook.send(Alert(id="a"))
        assert hook.close(grace_s=10) == 1
        assert "timed out (2 tries)" in said[0]


def test_a_dead_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said: list[str] = []
    hook = make(f"http://127.0.0.1:{port}/", said)
    hook.send(Alert(id="a"))
    assert hook.close(grace_s=10) == 1
    assert "refused" in said[0]


def test_a_server_that_speaks_no_http() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(2):
                with server.accept()[0] as peer:
                    peer.recv(65536)
                    peer.sendall(b"\x00\xff nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        hook = make(f"http://127.0.0.1:{server.getsockname()[1]}/", said, waits_s=(0.01,))
        hook.send(Alert(id="a"))
        assert hook.close(grace_s=10) == 1
        thread.join()
    assert len(said) == 1


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "host/x", "http://", "http://h:99999/", ""])
def test_only_web_addresses(url: str) -> None:
    with pytest.raises(GhError, match="bad webhook address"):
        Webhook(url, print)
