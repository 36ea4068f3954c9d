# SPDX-License-Identifier: Apache-2.0
"""Records out of a Redis stream: from a place in it on, for ever, across restarts of the server (DESIGN section 8)."""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from ghtools.stream.bus_link import Backoff, BusUrl, bus_errors, connect, entries_of, lasting, why
from ghtools.stream.errors import GhError, MissingError
from ghtools.stream.records import Record

from .bus_merge import Merger

BLOCK_MS = 200
READ_ENTRIES = 64  # read at once; each is at most MAX_ENTRY_BYTES where gh-pub wrote it
START = "0-0"
_ID = re.compile(r"\d{1,18}(-\d{1,18})?")


def place(text: str) -> str:
    """`start`, `now` or an entry's id, as the user gives it, to what Redis is asked for."""
    if text == "start":
        return START
    if text == "now":
        return "$"
    if _ID.fullmatch(text):
        return text
    raise GhError(f"cannot read from {text!r}", "it is neither start, now, nor the id of an entry", "--from start")


class Subscriber:
    """Reads one stream from `last` on; `last` moves with what has been given out."""

    def __init__(self, url: BusUrl, stream: str, merger: Merger, last: str, say: Callable[[str], None]) -> None:
        self._url, self._stream, self._merger, self._say = url, stream, merger, say
        self.last = last
        self._client: Any = None
        self._reached = False
        self._away_since: float | None = None
        self._backoff = Backoff(random.Random(secrets.randbits(64)))
        self._errors = bus_errors() if connect(url) else ()

    def batches(self, sleep: Callable[[float], None]) -> Iterator[list[Record]]:
        """Records as they come; an empty list when there were none for a moment, or Redis is away.

        Never ends by itself. MissingError if Redis refuses at the very first contact for a reason that does not pass.
        """
        while True:
            try:
                if self._client is None:
                    self._open()
                reply = self._client.xread({self._stream: self.last}, count=READ_ENTRIES, block=BLOCK_MS)
            except self._errors as error:
                self._fell(error)
                yield []
                sleep(self._backoff.pause_s())
                continue
            if self._away_since is not None:
                self._say(f"{self._url.label} is back after {time.monotonic() - self._away_since:.1f} s")
            self._away_since, self._reached = None, True
            self._backoff.reset()
            entries = entries_of(reply)
            if not entries:
                yield []
            for id_, fields in entries:
                records = self._merger.take(fields or {}, time.monotonic())
                self.last = id_.decode()
                yield records

    def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _open(self) -> None:
        client = connect(self._url)
        try:
            client.ping()
            newest = self._newest(client)
        except BaseException:
            client.close()
            raise
        if self.last == "$":  # a fixed place, so that nothing is missed between two reads
            self.last = newest or START
        elif newest is not None and _id(newest) < _id(self.last):
            self._say(f"the stream {self._stream} was begun anew; reading it from its start")
            self.last = START
        self._client = client

    def _newest(self, client: Any) -> str | None:
        """The id of the newest entry there ever was; None if there is no such stream."""
        if not client.exists(self._stream):
            return None
        found = client.xinfo_stream(self._stream)["last-generated-id"]
        return found.decode() if isinstance(found, bytes) else str(found)

    def _fell(self, error: Exception) -> None:
        self.close()
        if not self._reached and lasting(error):
            raise MissingError(f"cannot read from {self._url.label}", why(error)) from None
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._say(f"{self._url.label} is away: {why(error)}; trying again")


def _id(text: str) -> tuple[int, int]:
    ms, _, number = text.partition("-")
    return int(ms), int(number or 0)
