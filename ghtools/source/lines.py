# SPDX-License-Identifier: Apache-2.0
"""Lines of a byte source, bounded, and a sign when the source has nothing more to say for now."""

from __future__ import annotations

from collections.abc import Iterator

from ghtools.stream.errors import InputError
from ghtools.stream.framing import READ_BYTES, Source

MAX_LINE_BYTES = 16 << 20
IDLE_S = 0.1  # a batch that is being put together is let go when nothing came for so long


def lines(source: Source, name: str = "-") -> Iterator[tuple[int, bytes] | None]:
    """(number from 1, line without its end), as soon as a line is whole; None when the source has gone quiet.

    Raises InputError at a line of over MAX_LINE_BYTES.
    """
    ask = getattr(source, "waiting", None)
    number = 0
    parts: list[bytes] = []  # of the line that is not whole yet
    held = 0
    while True:
        if ask is not None and not ask(IDLE_S):
            yield None
        chunk = source.read1(READ_BYTES)
        if not chunk:
            break
        whole = chunk.split(b"\n")
        parts.append(whole[0])
        held += len(whole[0])
        if held > MAX_LINE_BYTES:
            raise InputError(f"bad input at {place(name, number + 1)}", f"a line of over {MAX_LINE_BYTES >> 20} MiB")
        if len(whole) == 1:
            continue
        number += 1
        yield number, b"".join(parts).removesuffix(b"\r")
        for line in whole[1:-1]:
            number += 1
            yield number, line.removesuffix(b"\r")
        parts, held = [whole[-1]], len(whole[-1])
    if held:
        yield number + 1, b"".join(parts).removesuffix(b"\r")


def place(name: str, number: int) -> str:
    """A line as messages name it."""
    return f"line {number}" if name == "-" else f"{name}, line {number}"
