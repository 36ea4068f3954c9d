# SPDX-License-Identifier: Apache-2.0
"""State files: what is saved comes back, what is not ours is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.state import load, save


def test_round_trip_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save(path, "m", {"a": [1, 2.5, "x"]}, [b"one", b"", b"\n\x00three"])
    assert load(path, "m") == ({"a": [1, 2.5, "x"]}, [b"one", b"", b"\n\x00three"])
    assert path.stat().st_mode & 0o777 == 0o600
    save(path, "m", {}, [])
    assert load(path, "m") == ({}, [])
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_is_no_state(tmp_path: Path) -> None:
    assert load(tmp_path / "state", "m") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"hello\n",
        b"[1]\n",
        b'{"magic":"other"}\n',
        b'{"magic":"m"}\n',
        b'{"magic":"m","meta":[],"sizes":[],"crc":0}\n',
        b'{"magic":"m","meta":{},"sizes":[5],"crc":0}\nabc',
        b'{"magic":"m","meta":{},"sizes":[3],"crc":0}\nabc',
        b'{"magic":"m","meta":{},"sizes":[-3,6],"crc":891568578}\nabc',
        b'{"magic":"m","meta":{},"sizes":"abc","crc":891568578}\nabc',
        b'{"magic":"m","meta":{},"sizes":3,"crc":891568578}\nabc',
        b"[" * 100_000,
        b"\xff\xfe\n",
    ],
)
def test_what_is_not_a_state_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(data)
    with pytest.raises(InputError, match="cannot use the state"):
        load(path, "m")


def test_every_cut_and_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save(path, "m", {"a": 1}, [b"blob of some bytes"])
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at])
        with pytest.raises(InputError):
            load(path, "m")
    for at in range(data.index(b"\n") + 1, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(InputError):
            load(path, "m")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GhError, match="cannot write the state"):
        save(tmp_path / "no" / "state", "m", {}, [])
    with pytest.raises(GhError, match="cannot read the state"):
        load(tmp_path, "m")


def test_a_link_in_the_way_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".state.{os.getpid()}").symlink_to(victim)
    with pytest.raises(GhError):
        save(tmp_path / "state", "m", {}, [])
    assert victim.read_text() == "precious"
