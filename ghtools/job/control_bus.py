# SPDX-License-Identifier: Apache-2.0
"""Ask all hosts of a job over Redis: requests on `ght:ctl:JOB`, answers on `ght:ctl:JOB:ack` (DESIGN section 8).

The age of a request is told by the clock of the Redis server alone, which numbers the entries, so the clocks of hosts
do not matter. A host that was away reads what it missed; of several requests for the same thing only the last counts,
and only within its lease.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ghtools.stream.bus_link import Backoff, BusUrl, bus_errors, connect, entries_of, lasting, why
from ghtools.stream.errors import GhError, MissingError

from .control import ControlPage
from .control_messages import (
    DONE,
    FAILED,
    MAX_LEASE_S,
    REFUSED,
    UNKNOWN,
    Reply,
    Request,
    pack_reply,
    pack_request,
    parse_reply,
    parse_request,
)

MAX_REQUESTS, MAX_REPLIES = 1000, 10_000  # entries kept in the two streams, about
BLOCK_MS = 200
REMEMBERED = 1024  # requests whose answers are kept, to be given again

Entries = list[tuple[bytes, dict[bytes, bytes]]]


def control_key(job: str) -> str:
    """The stream of requests to a job."""
    return f"ght:ctl:{job}"


def ack_key(job: str) -> str:
    """The stream of answers."""
    return f"ght:ctl:{job}:ack"


def page_applier(page: ControlPage) -> Callable[[Request], Reply]:
    """Apply requests to a host's control page; each holds for its lease."""

    def apply(asked: Request) -> Reply:
        on = bool(asked.args.get("on", True))
        setter = page.set_profiling if asked.what == "profile" else page.set_tracking
        if asked.what not in ("profile", "track"):
            return Reply(REFUSED, "this host cannot do that")
        return Reply(DONE, facts={"epoch": setter(on, asked.lease_s), "lease_s": round(asked.lease_s, 3)})

    return apply


class ControlServer:
    """A thread that hands requests for this host to `apply` and answers them, until `close`.

    It outlives every failure of Redis and of `apply`, and blocks nobody. MissingError or GhError at once if the package
    redis is missing or the URL is wrong.
    """

    def __init__(
        self,
        url: BusUrl,
        job: str,
        apply: Callable[[Request], Reply],
        say: Callable[[str], None],
        host: str = "",
    ) -> None:
        self._url, self._job, self._apply, self._say = url, job, apply, say
        self._host = host or socket.gethostname()
        self._done: OrderedDict[str, Reply] = OrderedDict()
        self._epochs: dict[str, int] = {}
        self._last: bytes | None = None
        self._stop = threading.Event()
        self.skipped = 0
        connect(url)
        self._thread = threading.Thread(target=self._run, name="control bus", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; what was asked for stands to the end of its lease."""
        self._stop.set()
        self._thread.join(2.0)

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        backoff, errors, away = Backoff(random.Random(secrets.randbits(64))), bus_errors(), False
        while not self._stop.is_set():
            client = connect(self._url)
            try:
                self._catch_up(client)
                if away:
                    self._say("control: Redis is back")
                backoff.reset()
                away = False
                while not self._stop.is_set():
                    for id_, fields in _read(client, control_key(self._job), self._last or b"0-0"):
                        self._handle(client, id_, fields)
                        self._last = id_
            except errors as error:
                if not away:
                    self._say(f"control: {self._url.label} is away: {why(error)}; trying again")
                away = True
                self._stop.wait(backoff.pause_s())
            finally:
                client.close()

    def _catch_up(self, client: Any) -> None:
        """Take what was asked while nobody listened here, as far as it still holds."""
        key = control_key(self._job)
        newest = client.xrevrange(key, count=1)
        if self._last is not None and newest and _ms(newest[0][0]) >= _ms(self._last):
            return  # the loop reads on from there
        seconds, micros = client.time()
        start = int(seconds * 1000 + micros // 1000 - MAX_LEASE_S * 1000)
        missed: Entries = client.xrange(key, min=max(0, start), count=MAX_REQUESTS * 2)
        final: dict[str, bytes] = {}
        for id_, fields in missed:
            if (asked := self._parse(fields)) is not None:
                final[asked.what] = id_
        for id_, fields in missed:
            if id_ in final.values():
                self._handle(client, id_, fields)
        self._last = missed[-1][0] if missed else (newest[0][0] if newest else b"0-0")

    def _parse(self, fields: dict[bytes, bytes]) -> Request | None:
        """A request that is for this host; None if it is not, or is none."""
        try:
            asked = parse_request(fields.get(b"d", b""))
            if asked.job != self._job:
                raise ValueError("it is for another job")
        except ValueError as error:
            self.skipped += 1
            self._say(f"control: a request was left out: {error}")
            return None
        return asked if not asked.hosts or self._host in asked.hosts else None

    def _handle(self, client: Any, id_: bytes, fields: dict[bytes, bytes]) -> None:
        asked = self._parse(fields)
        if asked is None:
            return
        reply = self._done.get(asked.id)
        if reply is None:
            seconds, micros = client.time()
            left_s = asked.lease_s - max(0.0, seconds + micros / 1e6 - _ms(id_) / 1000)
            if left_s <= 0:
                return  # too old: whoever asked has given up
            reply = self._answer(asked, left_s)
            self._done[asked.id] = reply
            if len(self._done) > REMEMBERED:
                self._done.popitem(last=False)
        client.xadd(ack_key(self._job), {b"d": pack_reply(reply)}, maxlen=MAX_REPLIES, approximate=True)

    def _answer(self, asked: Request, left_s: float) -> Reply:
        if asked.epoch < self._epochs.get(asked.what, asked.epoch):
            reply = Reply(REFUSED, "a later request was made")
        else:
            self._epochs[asked.what] = asked.epoch
            try:
                reply = self._apply(replace(asked, lease_s=left_s))
            except (GhError, OSError) as error:
                reply = Reply(FAILED, str(error))
            except Exception as error:  # a bug there must not end the watching of the job
                traceback.print_exc()
                reply = Reply(FAILED, f"a bug in ghtools: {type(error).__name__}")
        return replace(reply, id=asked.id, host=self._host, pid=os.getpid())


def ask(url: BusUrl, job: str, asked: Request, timeout_s: float, expect_hosts: Sequence[str] = ()) -> list[Reply]:
    """Ask and wait for answers: one for each of `expect_hosts` in that order, then those of other hosts.

    A host that does not answer in time has the state "could not tell". Without `expect_hosts` it waits for the whole
    time. Raises MissingError if Redis refuses for a reason that does not pass, or if nobody is expected and it is away.
    """
    errors, backoff = bus_errors(), Backoff(random.Random(secrets.randbits(64)), most_s=1.0)
    deadline = time.monotonic() + timeout_s
    got: dict[str, Reply] = {}
    waiting = set(expect_hosts)
    reason, reached = f"no answer in {timeout_s:g} s", False
    last: bytes | None = None
    while (waiting or not expect_hosts) and time.monotonic() < deadline:
        client = connect(url, min(3.0, max(0.5, timeout_s)))
        try:
            if last is None:
                newest = client.xrevrange(ack_key(job), count=1)
                last = newest[0][0] if newest else b"0-0"
            data = {b"d": pack_request(asked)}
            client.xadd(control_key(job), data, maxlen=MAX_REQUESTS, approximate=True)
            reached = True
            while (waiting or not expect_hosts) and time.monotonic() < deadline:
                block_ms = max(1, min(BLOCK_MS, int((deadline - time.monotonic()) * 1000)))
                for id_, fields in _read(client, ack_key(job), last, block_ms):
                    last = id_
                    _note(fields, asked.id, got)
                waiting -= got.keys()
        except errors as error:
            if lasting(error):
                raise MissingError(f"cannot ask the job through {url.label}", why(error)) from None
            reason = f"Redis is away: {why(error)}"
            time.sleep(min(backoff.pause_s(), max(0.0, deadline - time.monotonic())))
        finally:
            client.close()
    if not reached and not expect_hosts:
        raise MissingError(f"cannot ask the job through {url.label}", reason)
    missing = (Reply(UNKNOWN, reason, id=asked.id, host=host) for host in expect_hosts)
    return [got.pop(reply.host, reply) for reply in missing] + sorted(got.values(), key=lambda reply: reply.host)


def _note(fields: dict[bytes, bytes], id_: str, got: dict[str, Reply]) -> None:
    """Keep an answer to this request, the first of each host; anything else on that stream is not ours to judge."""
    try:
        reply = parse_reply(fields.get(b"d", b""))
    except ValueError:
        return
    if reply.id == id_:
        got.setdefault(reply.host, reply)


def _read(client: Any, key: str, last: bytes, block_ms: int = BLOCK_MS) -> Iterable[tuple[bytes, dict[bytes, bytes]]]:
    """Entries after `last`, waiting a little for the first."""
    return entries_of(client.xread({key: last}, count=64, block=block_ms))


def _ms(id_: bytes) -> int:
    """The server's time, in ms, of an entry's id."""
    return int(id_.partition(b"-")[0])
