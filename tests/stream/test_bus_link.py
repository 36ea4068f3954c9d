# SPDX-License-Identifier: Apache-2.0
"""URLs of Redis: what is accepted, and that nothing of a secret is ever shown."""

from __future__ import annotations

import random
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ghtools.stream.bus_link import Backoff, bus_url
from ghtools.stream.errors import GhError


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("redis://h", "Redis at h:6379"),
        ("redis://u:pw@h:1234/2", "Redis at h:1234"),
        ("rediss://:pw@10.0.0.1:1?ssl_ca_certs=/x", "Redis at 10.0.0.1:1 (TLS)"),
        ("redis://[::1]:7", "Redis at ::1:7"),
        ("unix://:pw@/run/redis.sock?db=1", "Redis at its socket"),
    ],
)
def test_labels(text: str, label: str) -> None:
    assert bus_url(text).label == label


@pytest.mark.parametrize(
    "text",
    ["", "h:6379", "http://h", "redis://", "redis://h:port", "redis://h:70000", "redis://h/db", "redis://h?decode=1",
     "redis://h#x"],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(GhError):
        bus_url(text)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6), st.booleans())
@example("pa/ss@word", False)
@example("pa#ss:word@x", False)
@example("1234/567@h:12", False)
def test_a_password_is_never_shown(password: str, quoted: bool) -> None:
    """Also not one that was not quoted as it should have been, of which a part may look like a host."""
    secret = f"Zq{password}qZ"
    text = f"redis://user:{quote(secret, safe='') if quoted else secret}@host:6379/0"
    try:
        made = bus_url(text)
        shown = f"{made.label} {made!r}"
    except GhError as error:
        assert not quoted
        shown = str(error)
    assert "Zq" not in shown
    assert "qZ" not in shown
    assert "user:" not in shown.lower().replace("user:password", "")


def test_errors_are_told_by_their_kind_alone() -> None:
    redis = pytest.importorskip("redis", reason="the package redis is not installed")
    from ghtools.stream.bus_link import lasting, why

    echoed = redis.ResponseError("unknown command 'AUTH', with args beginning with: 's3cret'")
    assert "s3cret" not in why(echoed)
    assert not lasting(echoed)
    annotated = redis.ResponseError(
        "Command # 1 (XADD s *) of pipeline caused error: WRONGTYPE Operation against a key"
    )
    assert lasting(annotated)
    assert "no stream" in why(annotated)
    assert why(redis.ResponseError("OOM command not allowed")) == "the server is out of memory"
    assert not lasting(redis.BusyLoadingError("LOADING"))
    assert lasting(redis.AuthenticationError("invalid username-password pair"))
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError:
            raise redis.ConnectionError("Error 111 connecting to host") from None
    except redis.ConnectionError as error:
        assert why(error) == "connection refused"


def test_backoff_doubles_to_a_bound_and_is_reset() -> None:
    backoff = Backoff(random.Random(1), first_s=1.0, most_s=8.0)
    pauses = [backoff.pause_s() for _ in range(6)]
    for pause, most in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
        assert most / 2 <= pause <= most
    backoff.reset()
    assert backoff.pause_s() <= 1.0
