# SPDX-License-Identifier: Apache-2.0
"""Packed files are read as they are."""

import gzip
import importlib.util
import io
import sys

import pytest

from ghtools.source.unpack import Unpacked
from ghtools.stream.errors import InputError, MissingError

from .feed import Slow, feed

TEXT = "".join(f"{n}.25\n" for n in range(1, 5000)).encode()
needs_zstd = pytest.mark.skipif(not importlib.util.find_spec("zstandard"), reason="zstandard is not installed")


def pack(how: str, data: bytes) -> bytes:
    if how == "gzip":
        return gzip.compress(data)
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def whole(source: Unpacked, size: int = 1000) -> bytes:
    return b"".join(iter(lambda: source.read1(size), b""))


HOWS = ["gzip", pytest.param("zstd", marks=needs_zstd)]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_unpacked(how: str, size: int) -> None:
    packed = pack(how, TEXT)
    assert whole(Unpacked(Slow(packed, size))) == TEXT
    assert whole(Unpacked(Slow(packed + pack(how, b"more"), size))) == TEXT + b"more"
    assert whole(Unpacked(Slow(pack(how, b""), size))) == b""


@pytest.mark.parametrize("how", HOWS)
def test_a_cut_file_is_said_and_what_was_before_is_delivered(how: str) -> None:
    packed = pack(how, TEXT)
    fed = feed("series", packed[: len(packed) // 2], names=["x.gz"])
    # zstd knows only whole blocks, and this text is one.
    assert len(fed.iters()["index"]) > 1000 or how == "zstd"
    assert fed.reason == "cut: input cut: x.gz"
    assert f"the {how} file is not whole" in fed.said[-1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("at", [5, 20, -3])
def test_a_broken_file_is_no_traceback(how: str, at: int) -> None:
    packed = bytearray(pack(how, TEXT))
    packed[at] ^= 0xFF
    source = Unpacked(io.BytesIO(bytes(packed)), "x")
    try:
        whole(source)
    except InputError as error:
        assert "x" in str(error)


@pytest.mark.parametrize("how", HOWS)
def test_much_in_little_is_unpacked_in_pieces(how: str) -> None:
    source = Unpacked(io.BytesIO(pack(how, bytes(200 << 20))))
    total = most = 0
    while made := source.read1(1 << 16):
        total, most = total + len(made), max(most, len(made))
    assert total == 200 << 20 and most <= 32 << 20


def test_zstd_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingError, match="ghtools\\[zstd\\]"):
        Unpacked(io.BytesIO(b"\x28\xb5\x2f\xfd\x00")).read1(10)


def test_plain_bytes_are_untouched() -> None:
    assert whole(Unpacked(io.BytesIO(TEXT))) == TEXT
