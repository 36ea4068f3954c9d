# SPDX-License-Identifier: Apache-2.0
"""What may be asked of a job's hosts over the bus, and what they answer: small JSON maps, checked strictly (DESIGN 8).

A request is one of the verbs below with arguments of a fixed type, and a lease. Nothing in it is ever a command, a path
or code. A verb that is not in `VERBS`, an argument it does not have, or a value out of bounds is refused as a whole.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ghtools.stream.errors import GhError

MAX_BYTES = 256 << 10
MAX_LEASE_S = 3600.0
MAX_HOSTS = 4096

# What can be asked: verb -> argument -> type. All arguments may be left out.
VERBS: dict[str, dict[str, type]] = {
    "profile": {"on": bool, "iters": int},  # measure durations (iters: for so many iterations, within the lease)
    "track": {"on": bool},  # record calls at all
    # A test at a boundary (locate/host_pause.py checks what is in the maps):
    "where": {},  # where the ranks of this host stand
    "hold": {"stops": dict, "come_s": float, "deadline_s": float},  # hold each rank before the call with its number
    "task": {"tasks": dict, "timeout_s": float},  # run a test in each held rank
    "renew": {},  # go on holding
    "release": {},
}
# What a host answers.
DONE, REFUSED, FAILED, UNKNOWN = "done", "refused", "failed", "could not tell"
STATES = (DONE, REFUSED, FAILED, UNKNOWN)

_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_TEXT = 256  # characters of a job, a host or a reason


@dataclass(frozen=True)
class Request:
    """One request to the hosts of a job."""

    what: str
    job: str
    id: str  # the same request may arrive twice: it is done once
    lease_s: float  # it is ignored, and its effect ends, this long after it was made
    epoch: int = 0  # of the asker: a host refuses one that is lower than the last it took for this verb
    hosts: tuple[str, ...] = ()  # whom it is for; empty: all
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What one host says to a request. A function that applies requests fills state, why and facts only."""

    state: str
    why: str = ""
    facts: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)  # whoever asked checks what is in it
    id: str = ""
    host: str = ""
    pid: int = 0


def request(
    what: str, job: str, lease_s: float = 10.0, *, epoch: int = 0, hosts: Sequence[str] = (), **args: Any
) -> Request:
    """A new request with an id of its own; GhError if it is not one that a host would accept."""
    made = Request(what, job, secrets.token_hex(8), lease_s, epoch, tuple(hosts), args)
    try:
        return parse_request(pack_request(made))
    except ValueError as error:
        raise GhError(f"cannot ask for {what!r}", str(error)) from None


def pack_request(given: Request) -> bytes:
    """Its bytes."""
    return json.dumps({**vars(given), "args": dict(given.args)}).encode()


def pack_reply(given: Reply) -> bytes:
    """Its bytes."""
    return json.dumps(
        {**vars(given), "facts": dict(given.facts), "data": dict(given.data), "why": given.why[:_TEXT]}
    ).encode()


def parse_request(data: bytes, verbs: Mapping[str, Mapping[str, type]] = VERBS) -> Request:
    """A request from its bytes; ValueError says what is wrong with it."""
    item = _map(data, {"what": str, "job": str, "id": str, "lease_s": float, "epoch": int, "hosts": list, "args": dict})
    spec = verbs.get(item["what"])
    if spec is None:
        raise ValueError("it asks for something that is not known here")
    if not _ID.fullmatch(item["id"]):
        raise ValueError("its id is no name")
    if not 0 < item["lease_s"] <= MAX_LEASE_S:
        raise ValueError(f"its lease is not over 0 and at most {MAX_LEASE_S:.0f} s")
    hosts = item["hosts"]
    if len(hosts) > MAX_HOSTS or not all(isinstance(host, str) and len(host) <= _TEXT for host in hosts):
        raise ValueError("its hosts are no list of names")
    for name, value in item["args"].items():
        if name not in spec:
            raise ValueError("it has an argument that is not known here")
        if not _is(value, spec[name]):
            raise ValueError(f"its argument {name} is of the wrong type or too large")
    return Request(**{**item, "hosts": tuple(hosts)})


def parse_reply(data: bytes) -> Reply:
    """A reply from its bytes; ValueError says what is wrong with it."""
    item = _map(data, {"state": str, "why": str, "facts": dict, "data": dict, "id": str, "host": str, "pid": int})
    if item["state"] not in STATES or not _ID.fullmatch(item["id"]):
        raise ValueError("it is no answer")
    facts = item["facts"]
    if len(facts) > 64 or not all(
        any(_is(value, kind) for kind in (bool, int, float, str)) for value in facts.values()
    ):
        raise ValueError("its facts are not a few plain values")
    return Reply(**item)


def _map(data: bytes, spec: Mapping[str, type]) -> dict[str, Any]:
    """A JSON map that has exactly these keys with these types."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is over {MAX_BYTES >> 10} KiB")
    try:
        item = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(item, dict) or item.keys() != spec.keys():
        raise ValueError("it has not the fields it should have")
    for name, kind in spec.items():
        if not (isinstance(item[name], kind) if kind in (list, dict) else _is(item[name], kind)):
            raise ValueError(f"its field {name} is of the wrong type or too large")
    return item


def _is(value: object, kind: type) -> bool:
    """Whether a plain value is of a type and within bounds; a float may be written as an integer."""
    if kind in (bool, dict):
        return isinstance(value, kind)
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, int) and -(1 << 63) <= value < 1 << 63
    if kind is float:
        return isinstance(value, int | float) and abs(value) < 1e18  # not NaN, not infinite
    return isinstance(value, str) and len(value) <= _TEXT
