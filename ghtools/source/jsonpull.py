# SPDX-License-Identifier: Apache-2.0
"""JSON a piece at a time: every number, text and literal with where it stands, in bounded memory.

The standard library wants the whole text at once; a range query of a week or a cut file need it piecemeal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ghtools.stream.errors import InputError
from ghtools.stream.framing import READ_BYTES, Source

from .lines import place

MAX_TOKEN_BYTES = 1 << 20
MAX_DEPTH = 64
CUT = "the JSON is cut"

Path = tuple[str | int, ...]
_TOKEN = re.compile(rb'[ \t\r\n]*(?:([{}\[\]:,])|("(?:[^"\\\x00-\x1f]|\\.)*")|([-+.A-Za-z0-9]+))')
_NUMBER = re.compile(rb"-?(?:0|[1-9]\d{0,400})(?:\.\d{1,400})?(?:[eE][-+]?\d{1,5})?$")
_LITERAL = {
    b"true": True,
    b"false": False,
    b"null": None,
    b"NaN": float("nan"),
    b"Infinity": float("inf"),
    b"-Infinity": float("-inf"),
}

Leaf = tuple[Path, str | int, object]


class Leaves:
    """(path of the container, key or index in it, value) for all that is no container, in the order of the text.

    The path is the same object while the container is the same. Iterating raises InputError with the line where the
    text is no JSON or is cut; all that stood before has been yielded.
    """

    def __init__(self, source: Source, name: str = "-") -> None:
        self._source, self._name = source, name
        self._data = b""
        self._at = 0
        self._lines = 1  # number of the line at which _data begins
        self._end = False
        self._open = 0  # containers
        self.cut = False  # whether what was wrong is only that the rest is missing

    def where(self) -> str:
        """The place that has been read, as messages name it."""
        return place(self._name, self._lines + self._data.count(b"\n", 0, self._at))

    def __iter__(self) -> Iterator[Leaf]:
        path: Path = ()
        keys: list[str | int] = []  # of the open containers, the key or index that is being read
        maps: list[bool] = []
        want = "value"  # or key, first key, first value, colon, comma, end
        while True:
            mark, text, word = self._token()
            if not (mark or text or word):
                if want != "end":
                    raise self._bad(CUT if self._open else "it is empty")
                return
            if want in ("value", "first value") and mark != b"]":
                if mark in (b"{", b"["):
                    if len(maps) >= MAX_DEPTH:
                        raise self._bad(f"nested over {MAX_DEPTH} deep")
                    maps.append(mark == b"{")
                    keys.append(0)
                    self._open += 1
                    path = tuple(keys[:-1])
                    want = "first key" if mark == b"{" else "first value"
                    continue
                if mark:
                    raise self._bad(f"{mark.decode()} where a value should be")
                if not maps:
                    yield (), 0, self._value(text, word)
                    want = "end"
                    continue
                yield path, keys[-1], self._value(text, word)
                want = "comma"
            elif want in ("key", "first key") and text:
                keys[-1] = str(self._value(text, b""))
                want = "colon"
            elif want == "colon" and mark == b":":
                want = "value"
            elif want == "comma" and mark == b",":
                if maps[-1]:
                    want = "key"
                else:
                    keys[-1] = int(keys[-1]) + 1
                    want = "value"
            elif (mark == b"}" and want in ("comma", "first key") and maps[-1]) or (
                mark == b"]" and want in ("comma", "first value") and not maps[-1]
            ):
                maps.pop()
                keys.pop()
                self._open -= 1
                path = tuple(keys[:-1])
                want = "comma" if maps else "end"
            else:
                raise self._bad(f"{_short(mark or text or word)} where a {want.split()[-1]} should be")

    def _token(self) -> tuple[bytes, bytes, bytes]:
        """Mark, text or word; all empty at the end."""
        while True:
            match = _TOKEN.match(self._data, self._at)
            # What touches the end of the data may go on in the next piece, except a mark.
            if match and (match[1] or match.end() < len(self._data) or self._end):
                self._at = match.end()
                if match[3] and self._open and self._at == len(self._data):
                    raise self._bad(CUT)  # this may be half a number
                return match[1] or b"", match[2] or b"", match[3] or b""
            if self._end:
                if self._data[self._at :].strip(b" \t\r\n"):
                    rest = self._data[self._at :].lstrip(b" \t\r\n")
                    raise self._bad(CUT if rest[:1] == b'"' else f"{_short(rest)} is no JSON")
                return b"", b"", b""
            if match is None and self._data[self._at :].lstrip(b" \t\r\n")[:1] not in (b"", b'"'):
                raise self._bad(f"{_short(self._data[self._at :].lstrip())} is no JSON")
            if len(self._data) - self._at > MAX_TOKEN_BYTES:
                raise self._bad(f"a text of over {MAX_TOKEN_BYTES >> 20} MiB")
            more = self._source.read1(READ_BYTES)
            self._end = not more
            self._lines += self._data.count(b"\n", 0, self._at)
            self._data = self._data[self._at :] + more
            self._at = 0

    def _value(self, text: bytes, word: bytes) -> object:
        if text:
            try:
                return json.loads(text)
            except ValueError:
                raise self._bad(f"{_short(text)} is no text") from None
        if word in _LITERAL:
            return _LITERAL[word]
        if not _NUMBER.match(word):
            raise self._bad(f"{_short(word)} is no value")
        return float(word) if b"." in word or b"e" in word or b"E" in word else int(word)

    def _bad(self, why: str) -> InputError:
        self.cut = why == CUT
        return InputError(f"bad input at {self.where()}", why)


def _short(word: bytes) -> str:
    return word[:20].decode("ascii", "backslashreplace")
