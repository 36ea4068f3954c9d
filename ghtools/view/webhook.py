# SPDX-License-Identifier: Apache-2.0
"""Alerts to a web address: POST of JSON from a thread of its own, so that a slow receiver stops nothing."""

from __future__ import annotations

import base64
import http.client
import json
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ghtools import __version__
from ghtools.stream.errors import GhError
from ghtools.stream.records import Alert

from .notify import alert_map

QUEUE_MAX = 256
TIMEOUT_S = 5.0
WAITS_S = (0.5, 2.0, 8.0)  # before the second, third and fourth try
GRACE_S = 5.0  # at the end, for what is still queued
TRY_AGAIN = (408, 425, 429)  # and every 5xx


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: following one could send alerts to a host or scheme nobody named."""

    def redirect_request(self, *args: Any, **kw: Any) -> None:
        return None


class Webhook:
    """Delivers alerts to `url` (http or https; https is verified).

    `send` never waits: beyond `QUEUE_MAX` undelivered alerts the new one is dropped and counted. Each alert
    is tried up to four times (time-out 5 s, waits of 0.5, 2 and 8 s) on a network error, 5xx, 408, 425 or
    429, else given up and counted as failed. `warn` hears of the first failure of a row, from the thread.
    """

    def __init__(
        self,
        url: str,
        warn: Callable[[str], None],
        *,
        timeout_s: float = TIMEOUT_S,
        waits_s: tuple[float, ...] = WAITS_S,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise GhError("bad webhook address", str(error)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GhError("bad webhook address", "it must be http://HOST/... or https://HOST/...")
        where = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
        host = where + (f":{port}" if port is not None else "")
        self.name = f"{parts.scheme}://{host}"  # all that is ever printed: paths and users carry secrets
        self._url = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
        self._headers = {"Content-Type": "application/json", "User-Agent": f"ghtools/{__version__}"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        self.sent = self.failed = self.dropped = 0
        self._warn, self._timeout_s, self._waits_s = warn, timeout_s, waits_s
        self._queue: queue.Queue[Alert | None] = queue.Queue(queue_max)
        self._closing = threading.Event()
        self._failing = False
        https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        self._opener = urllib.request.build_opener(_NoRedirect, https)
        self._thread = threading.Thread(target=self._work, name="ghtools-webhook", daemon=True)
        self._thread.start()

    def send(self, alert: Alert) -> None:
        """Queue one alert; at once, whatever the receiver does."""
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.dropped += 1

    def close(self, grace_s: float = GRACE_S) -> int:
        """Deliver what is queued for at most `grace_s`; how many alerts did not arrive in all."""
        deadline = time.monotonic() + grace_s
        self._closing.set()  # no more waits between tries
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.put_nowait(None)
                break
            except queue.Full:
                time.sleep(0.02)
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        self.undelivered = 0
        if self._thread.is_alive():
            # One alert is in the thread's hands, and the None in the queue is not an alert.
            self.undelivered = 1 + sum(item is not None for item in list(self._queue.queue))
        return self.failed + self.dropped + self.undelivered

    def _work(self) -> None:
        while (alert := self._queue.get()) is not None:
            why = self._deliver(json.dumps(alert_map(alert)).encode())
            if not why:
                self.sent += 1
                self._failing = False
                continue
            self.failed += 1
            if not self._failing:
                self._warn(f"webhook {self.name}: an alert was not delivered: {why}")
            self._failing = True

    def _deliver(self, body: bytes) -> str:
        """Empty when delivered, else why not."""
        why = ""
        for wait_s in (0.0, *self._waits_s):
            if wait_s and self._closing.wait(wait_s):
                wait_s = 0.0  # the end is near: the last tries come at once
            why, again = self._try(body)
            if not again:
                return why
        return f"{why} ({1 + len(self._waits_s)} tries)"

    def _try(self, body: bytes) -> tuple[str, bool]:
        """(why it failed or empty, whether to try again)."""
        request = urllib.request.Request(self._url, data=body, headers=self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                answer.read(1024)
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            if 300 <= error.code < 400:
                return f"it answered {error.code}, a redirect, which is not followed", False
            return f"it answered {error.code}", error.code >= 500 or error.code in TRY_AGAIN
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                return f"its certificate is not valid: {reason.verify_message}", False
            return str(reason).lower(), True
        except (OSError, http.client.HTTPException) as error:
            return str(error).lower() or type(error).__name__, True
