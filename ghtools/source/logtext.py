# SPDX-License-Identifier: Apache-2.0
"""What logs of all kinds have in common: time stamps, marks of the rank that spoke, carriage returns, colours."""

from __future__ import annotations

import re
from calendar import timegm
from collections import deque
from collections.abc import Callable

from ghtools.stream.framing import READ_BYTES, Source

# 2025-06-16 22:30:50,322 and its like; without a zone it is taken as UTC.
STAMP = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d(?!\d))?"
)
TELL_BYTES = 1 << 29
NCCL_INFO = re.compile(r"(?:^| )\[(\d{1,4})\] NCCL INFO ")  # after HOST:PID:TID; the number is the device's
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# torchrun's "[rank3]:" and mpirun's "[1,3]<stdout>:"; srun --label's "3: " only at the begin of a line.
_SPEAKER = re.compile(r"\[rank ?(\d{1,7})\]|\[\d{1,7},(\d{1,7})\](?:<std(?:out|err)>)?:")
_LABEL = re.compile(r"\s{0,4}(\d{1,7}): ")


def stamp_ns(text: str, before: int) -> int | None:
    """The last time stamp of `text` that stands within 300 characters before position `before`; None without one."""
    found = _last(STAMP, text, before, 300)
    return _ns(found) if found else None


def _last(pattern: re.Pattern[str], text: str, before: int, within: int) -> re.Match[str] | None:
    found = deque(pattern.finditer(text, max(0, before - within), before), maxlen=1)
    return found[0] if found else None


def _ns(match: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second = (int(match[n]) for n in range(1, 7))
    if not (1970 <= year < 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    seconds = timegm((year, month, day, hour, minute, second))
    zone = match[8]
    if zone and zone != "Z":
        shift = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= shift if zone[0] == "+" else -shift
    return max(seconds * 10**9 + int((match[7] or "0").ljust(9, "0")), 0)


def speaker(text: str, before: int) -> int:
    """The global rank that a launcher put before position `before`, -1 without one.

    torchrun's [default3] is a local rank and says nothing.
    """
    last = _last(_SPEAKER, text, before, 200) or _LABEL.match(text, 0, before)
    return int(next(group for group in last.groups() if group)) if last else -1


def plain(line: bytes) -> str:
    """Text of a line of log: bytes that are no UTF-8 are replaced, colours taken out."""
    text = line.decode("utf-8", "replace")
    return COLOUR.sub("", text) if "\x1b" in text else text


def printable(text: str, limit: int = 200) -> str:
    """Text from a file for a message: one line, not long, and nothing that moves a terminal's cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:limit])


class Ahead:
    """A source of which the first bytes that are no blanks can be looked at."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.first = b""
        while not self.first.strip():
            more = source.read1(READ_BYTES)
            if not more:
                break
            self.first = (self.first + more)[-READ_BYTES:]
        self._ahead = self.first

    def read1(self, size: int, /) -> bytes:
        """As the source."""
        ahead, self._ahead = self._ahead, b""
        return ahead or self._source.read1(size)

    def waiting(self, timeout_s: float) -> bool:
        """As the source."""
        ask = getattr(self._source, "waiting", None)
        return bool(self._ahead) or ask is None or bool(ask(timeout_s))


class Told:
    """A source that says how far it is, now and then, so that long work is seen to go on."""

    def __init__(self, source: Source, name: str, say: Callable[[str], None]) -> None:
        self._source, self._name, self._say = source, name, say
        self._bytes, self._next = 0, TELL_BYTES

    def read1(self, size: int, /) -> bytes:
        """As the source."""
        data = self._source.read1(size)
        self._bytes += len(data)
        if self._bytes >= self._next:
            self._next += TELL_BYTES
            self._say(f"{self._name}: {self._bytes >> 20} MiB read")
        return data

    def waiting(self, timeout_s: float) -> bool:
        """As the source."""
        ask = getattr(self._source, "waiting", None)
        return ask is None or bool(ask(timeout_s))


class Returns:
    """A source in which a lone carriage return ends a line, as in the output of a progress bar."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._held = b""

    def read1(self, size: int, /) -> bytes:
        """As the source; a carriage return at the very end waits for what follows."""
        while True:
            data = self._source.read1(size)
            if not data:
                held, self._held = self._held, b""
                return held
            data = self._held + data
            self._held = b""
            if b"\r" not in data:
                return data
            if data.endswith(b"\r"):
                data, self._held = data[:-1], b"\r"
            if data:
                return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def waiting(self, timeout_s: float) -> bool:
        """As the source."""
        ask = getattr(self._source, "waiting", None)
        return ask is None or bool(ask(timeout_s))
