# SPDX-License-Identifier: Apache-2.0
"""A connection to Redis: its URL, which is a secret, its errors in plain words, and when to try again (DESIGN 8).

No text made here holds the URL, its user or its password, whatever the URL looks like and whatever the server or the
library says: messages are made from the kind of an error, never from its text, since a server echoes the arguments of
a command that it does not know.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from .errors import GhError, MissingError

SCHEMES = ("redis", "rediss", "unix")
QUERY = {"db", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
CONNECT_S, ANSWER_S = 3.0, 5.0  # the time a connection, and an answer, may take
_EXAMPLE = "redis://HOST:PORT, rediss://USER:PASSWORD@HOST:PORT or unix:///PATH, as an argument or in GHT_REDIS_URL"
_HOST = re.compile(r"[\w.:-]{1,255}")
_CODE = re.compile(r"(?:^|caused error: )([A-Z]{3,20})\b")  # a pipeline puts the command before the answer
# What no waiting mends: a wrong password, a wrong certificate, a key that is something else.
_LASTING = ("NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE")


@dataclass(frozen=True)
class BusUrl:
    """Where Redis is. `label` names it for people: host and port, or nothing of the URL where that is in doubt."""

    text: str = field(repr=False)
    label: str


class Random(Protocol):
    """random.Random, as far as it is used here."""

    def uniform(self, a: float, b: float, /) -> float: ...


def bus_url(text: str) -> BusUrl:
    """Check a URL; GhError says what is wrong with it without showing it."""

    def wrong(why: str) -> GhError:
        return GhError("cannot use the URL of Redis", why, _EXAMPLE)

    if not text:
        raise GhError("no Redis is given", "neither as an argument nor in GHT_REDIS_URL", _EXAMPLE)
    scheme, mark, _ = text.partition("://")
    if not mark or scheme not in SCHEMES:
        raise wrong(f"it begins with none of {', '.join(s + '://' for s in SCHEMES)}")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port or 6379
    except ValueError:
        raise wrong("its host or port cannot be read (`%2F` stands for / in a password)") from None
    if parts.fragment:
        raise wrong("there is a # in it (`%23` stands for # in a password)")
    if unknown := {key for key, _ in parse_qsl(parts.query, keep_blank_values=True)} - QUERY:
        raise wrong(f"it has {len(unknown)} options other than {', '.join(sorted(QUERY))}")
    if scheme == "unix":
        return BusUrl(text, "Redis at its socket")
    if not host:
        raise wrong("there is no host in it")
    if "@" in parts.path + parts.query or not _HOST.fullmatch(host):
        raise wrong("there is an @ after the host (`%2F` stands for / in a password, `%40` for @)")
    if parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise wrong("what follows the host is no number of a database")
    return BusUrl(text, f"Redis at {host}:{port}{' (TLS)' if scheme == 'rediss' else ''}")


def connect(url: BusUrl, answer_s: float = ANSWER_S) -> Any:
    """A client that has not spoken yet and tries nothing twice by itself: callers know what may be repeated."""
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise MissingError(
            "cannot speak to Redis", "the package redis is not installed", "pip install 'ghtools[redis]'"
        ) from None
    settings: dict[str, Any] = {"socket_timeout": answer_s, "socket_keepalive": True, "decode_responses": False}
    if not url.text.startswith("unix"):
        settings["socket_connect_timeout"] = CONNECT_S
    else:
        del settings["socket_keepalive"]
    try:
        return redis.Redis.from_url(url.text, retry=Retry(NoBackoff(), 0), **settings)
    except (ValueError, TypeError, redis.RedisError):
        raise GhError("cannot use the URL of Redis", "the client refuses it", _EXAMPLE) from None


def bus_errors() -> tuple[type[Exception], ...]:
    """What a call of the client may raise when Redis is away or refuses."""
    import redis

    return (redis.RedisError, OSError)


def lasting(error: BaseException) -> bool:
    """Whether waiting will not help: credentials, certificates, a key of another type."""
    import redis

    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return True
    if isinstance(error, redis.ResponseError):
        return _code(error) in _LASTING
    return _tls(error) is not None


def why(error: BaseException) -> str:
    """An error in plain words, made of nothing but its kind."""
    import redis

    if isinstance(error, redis.AuthenticationError):
        return "the server refuses the user or the password"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return "this user may not do that there"
    if tls := _tls(error):
        return tls
    if isinstance(error, redis.BusyLoadingError):
        return "the server is loading its data"
    if isinstance(error, redis.ResponseError):
        code = _code(error)
        known = {
            "NOAUTH": "the server wants a password",
            "WRONGPASS": "the server refuses the user or the password",
            "NOPERM": "this user may not do that there",
            "WRONGTYPE": "that name is in use for something that is no stream",
            "OOM": "the server is out of memory",
            "READONLY": "the server is a replica",
            "MISCONF": "the server cannot write to its disk",
        }
        return known.get(code, f"the server answered {code or 'an error'}")
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return "its host name is not known"
        if isinstance(cause, TimeoutError | redis.TimeoutError):
            return "no answer in time"
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return cause.strerror.lower()
    return "the connection was closed" if isinstance(error, redis.ConnectionError) else type(error).__name__


def _code(error: BaseException) -> str:
    """The word that an answer of the server begins with, such as OOM; empty if there is none."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _causes(error: BaseException | None) -> list[BaseException]:
    """The error and what it came from."""
    found: list[BaseException] = []
    while error is not None and error not in found and len(found) < 8:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _tls(error: BaseException) -> str | None:
    """What a failed TLS handshake means, None if it was not that."""
    import ssl

    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate is not trusted (?ssl_ca_certs=FILE in the URL names who signed it)"
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS there"
    return None


class Backoff:
    """Pauses that double up to `most_s`, each cut at random so that many clients do not come back at once."""

    def __init__(self, rng: Random, first_s: float = 0.1, most_s: float = 5.0) -> None:
        self._rng, self._first, self._most = rng, first_s, most_s
        self.reset()

    def reset(self) -> None:
        """The connection works: begin anew."""
        self._next = self._first

    def pause_s(self) -> float:
        """How long to wait now."""
        now, self._next = self._next, min(self._most, self._next * 2)
        return self._rng.uniform(0.5, 1.0) * now


def entries_of(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of one stream in an answer to XREAD (a list under RESP2, a map under RESP3)."""
    if not reply:
        return []
    found = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    if found and isinstance(found[0], list):  # RESP3 nests once more
        found = [entry for part in found for entry in part]
    return list(found)
