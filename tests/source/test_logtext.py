# SPDX-License-Identifier: Apache-2.0
"""What logs have in common: stamps, speakers, returns, progress."""

import io

import pytest

from ghtools.source import logtext
from ghtools.source.logtext import Ahead, Returns, Told, printable, speaker, stamp_ns

from .feed import Slow

BASE = 1767323045  # 2026-01-02 03:04:05 UTC


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-01-02 03:04:05", BASE * 10**9),
        ("[2026-01-02 03:04:05,678]", BASE * 10**9 + 678_000_000),
        ("2026/01/02 03:04:05.123456789", BASE * 10**9 + 123_456_789),
        ("2026-01-02T03:04:05Z", BASE * 10**9),
        ("2026-01-02T03:04:05.5+01:00", (BASE - 3600) * 10**9 + 500_000_000),
        ("2026-01-02T03:04:05-0530", (BASE + 5 * 3600 + 1800) * 10**9),
        ("2026-01-02 03:04:04 and 2026-01-02 03:04:05", BASE * 10**9),
        ("2026-13-02 03:04:05", None),
        ("2026-01-02 25:04:05", None),
        ("no time 12:30", None),
        ("x" * 400, None),
    ],
)
def test_stamps(text: str, ns: int | None) -> None:
    assert stamp_ns(text, len(text)) == ns


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("[rank3]: x", 3), ("[rank 12] x", 12), ("7: x", 7), (" 0: x", 0), ("[1,5]<stdout>: x", 5), ("[1,5]: x", 5),
        ("[default7]: x", -1), ("12:30:01 x", -1), ("x", -1), ("[rank1]: a [rank2]: b", 2),
    ],
)  # fmt: skip
def test_speakers(text: str, rank: int) -> None:
    assert speaker(text, len(text)) == rank


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_lone_return_ends_a_line(size: int) -> None:
    source = Returns(Slow(b"a\rb\r\nc\nd\r", size))
    assert b"".join(iter(lambda: source.read1(10), b"")) == b"a\nb\nc\nd\r"


@pytest.mark.parametrize("size", [1, 4, 100])
def test_looking_ahead_takes_nothing_away(size: int) -> None:
    source = Ahead(Slow(b"  \n\n {x} and more", size))
    assert source.first.lstrip()[:1] == b"{"
    assert b"".join(iter(lambda: source.read1(10), b"")) == b"  \n\n {x} and more"
    assert Ahead(io.BytesIO(b" \n")).first == b" \n"


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logtext, "TELL_BYTES", 1 << 20)
    said: list[str] = []
    source = Told(io.BytesIO(bytes(5 << 19)), "x.log", said.append)
    while source.read1(1 << 16):
        pass
    assert said == ["x.log: 1 MiB read", "x.log: 2 MiB read"]


def test_printable() -> None:
    assert printable("a\nb\x1b[2J" + "c" * 300, 10) == "a\\nb\\x1b[2Jccc"
