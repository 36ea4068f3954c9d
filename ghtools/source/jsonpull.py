# SPDX-License-Identifier: Apache-2.0
"""JSON a piece at a time: every number, text and literal with where it stands, in bounded memory.

The standard library wants the whole text at once; a range query of a week or a cut file need it piecemeal.
Containers that are small enough to stand whole in the buffer are left to it, which is much faster.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator

from ghtools.stream.errors import InputError
from ghtools.stream.framing import READ_BYTES, Source

from .lines import place

MAX_TOKEN_CHARS = 1 << 20
MAX_DEPTH = 64
CUT = "the JSON is cut"

Path = tuple[str | int, ...]
Leaf = tuple[Path, str | int, object]

_BLANK = " \t\r\n"
_SCALAR = r'(?:(-?\d{1,15}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?)|"([^"\\\x00-\x1f]{0,200})")'
_TOKEN = re.compile(r'[ \t\r\n]*(?:([{}\[\]:,])|("(?:[^"\\\x00-\x1f]|\\.)*")|([-+.A-Za-z0-9]+))')
_PAIR = re.compile(rf'[ \t\r\n]*"([^"\\\x00-\x1f]{{0,200}})"[ \t\r\n]*:[ \t\r\n]*{_SCALAR}[ \t\r\n]*,')
_ITEM = re.compile(rf"[ \t\r\n]*{_SCALAR}[ \t\r\n]*,")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,400})(?:\.[0-9]{1,400})?(?:[eE][-+]?[0-9]{1,5})?$")
_LITERAL = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_DECODER = json.JSONDecoder()
_NEAR = 4096  # a container whose first end mark is nearer than this may be small


class Leaves:
    """(path of the container, key or index in it, value) for all that is no container, in the order of the text.

    The path is the same object while the container is the same. Iterating raises InputError with the line where the
    text is no JSON or is cut; all that stood before has been yielded. Bytes that are no UTF-8 are replaced.
    """

    def __init__(self, source: Source, name: str = "-") -> None:
        self._source, self._name = source, name
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._data = ""
        self._at = 0
        self._lines = 1  # number of the line at which _data begins
        self._end = False
        self._open = 0  # containers
        self.cut = False  # whether what was wrong is only that the rest is missing

    def where(self) -> str:
        """The place that has been read, as messages name it."""
        return place(self._name, self._lines + self._data.count("\n", 0, self._at))

    def __iter__(self) -> Iterator[Leaf]:
        path: Path = ()
        keys: list[str | int] = []  # of the open containers, the key or index that is being read
        maps: list[bool] = []
        want = "value"  # or key, first key, first value, colon, comma, end
        while True:
            # What is usual, a plain pair or item and its comma, at one go.
            if want in ("key", "first key"):
                while pair := _PAIR.match(self._data, self._at):
                    if (value := self._plain(pair[2], pair[3])) is None:
                        break
                    self._at = pair.end()
                    want = "key"
                    yield path, pair[1], value
            elif maps and not maps[-1] and want in ("value", "first value"):
                while item := _ITEM.match(self._data, self._at):
                    if (value := self._plain(item[1], item[2])) is None:
                        break
                    self._at = item.end()
                    want, index = "value", int(keys[-1])
                    keys[-1] = index + 1
                    yield path, index, value
            mark, text, word = self._token()
            if not (mark or text or word):
                if want != "end":
                    raise self._bad(CUT if self._open else "it is empty")
                return
            if want in ("value", "first value") and mark != "]":
                if mark in ("{", "["):
                    if maps and (whole := self._whole(mark)) is not None:
                        yield from self._flat(whole, (*path, keys[-1]))
                        want = "comma"
                        continue
                    if len(maps) >= MAX_DEPTH:
                        raise self._bad(f"nested over {MAX_DEPTH} deep")
                    maps.append(mark == "{")
                    keys.append(0)
                    self._open += 1
                    path = tuple(keys[:-1])
                    want = "first key" if mark == "{" else "first value"
                    continue
                if mark:
                    raise self._bad(f"{mark} where a value should be")
                yield path, keys[-1] if keys else 0, self._value(text, word)
                want = "comma" if maps else "end"
            elif want in ("key", "first key") and text:
                keys[-1] = str(self._value(text, ""))
                want = "colon"
            elif want == "colon" and mark == ":":
                want = "value"
            elif want == "comma" and mark == ",":
                if maps[-1]:
                    want = "key"
                else:
                    keys[-1] = int(keys[-1]) + 1
                    want = "value"
            elif (mark == "}" and want in ("comma", "first key") and maps[-1]) or (
                mark == "]" and want in ("comma", "first value") and not maps[-1]
            ):
                maps.pop()
                keys.pop()
                self._open -= 1
                path = tuple(keys[:-1])
                want = "comma" if maps else "end"
            else:
                raise self._bad(f"{_short(mark or text or word)} where a {want.split()[-1]} should be")

    def _plain(self, number: str | None, text: str | None) -> object:
        """A number or text without escapes; None for what looks like a number and is none (007)."""
        if text is not None:
            return text
        assert number is not None
        if number.isdecimal() and number.isascii() and (number[0] != "0" or number == "0"):
            return int(number)
        return self._value("", number) if _NUMBER.match(number) else None

    def _whole(self, mark: str) -> object:
        """The container that has just begun, if all of it is in the buffer; else None and nothing is read."""
        close = "}" if mark == "{" else "]"
        if self._data.find(close, self._at, self._at + _NEAR) < 0:
            return None
        try:
            whole, end = _DECODER.raw_decode(self._data, self._at - 1)
        except (ValueError, RecursionError):
            return None
        self._at = end
        return whole

    def _flat(self, value: object, path: Path) -> Iterator[Leaf]:
        if len(path) >= MAX_DEPTH:
            raise self._bad(f"nested over {MAX_DEPTH} deep")
        pairs = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
        for key, item in pairs:
            if isinstance(item, dict | list):
                yield from self._flat(item, (*path, key))
            else:
                yield path, key, item

    def _token(self) -> tuple[str, str, str]:
        """Mark, text or word; all empty at the end."""
        while True:
            match = _TOKEN.match(self._data, self._at)
            # What touches the end of the data may go on in the next piece, except a mark.
            if match and (match[1] or match.end() < len(self._data) or self._end):
                self._at = match.end()
                if match[3] and self._open and self._at == len(self._data) and _may_go_on(match[3]):
                    raise self._bad(CUT)  # this may be half a number
                return match[1] or "", match[2] or "", match[3] or ""
            rest = self._data[self._at : self._at + 40].lstrip(_BLANK)
            if self._end:
                if self._data[self._at :].strip(_BLANK):
                    raise self._bad(CUT if rest[:1] == '"' else f"{_short(rest)} is no JSON")
                return "", "", ""
            if match is None and rest[:1] not in ("", '"'):
                raise self._bad(f"{_short(rest)} is no JSON")
            if len(self._data) - self._at > MAX_TOKEN_CHARS:
                raise self._bad(f"a text of over {MAX_TOKEN_CHARS >> 20} MiB")
            self._more()

    def _more(self) -> None:
        more = self._source.read1(READ_BYTES)
        self._end = not more
        self._lines += self._data.count("\n", 0, self._at)
        self._data = self._data[self._at :] + self._decode(more, self._end)
        self._at = 0

    def _value(self, text: str, word: str) -> object:
        if text:
            try:
                return json.loads(text)
            except ValueError:
                raise self._bad(f"{_short(text)} is no text") from None
        if word in _LITERAL:
            return _LITERAL[word]
        if not _NUMBER.match(word):
            raise self._bad(f"{_short(word)} is no value")
        return int(word) if word.lstrip("-").isdecimal() else float(word)

    def _bad(self, why: str) -> InputError:
        self.cut = why == CUT
        return InputError(f"bad input at {self.where()}", why)


def _may_go_on(word: str) -> bool:
    return word[0] in "-0123456789" or any(literal.startswith(word) for literal in _LITERAL)


def _short(word: str) -> str:
    return ascii(word[:20])[1:-1]
