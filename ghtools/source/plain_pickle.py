# SPDX-License-Identifier: Apache-2.0
"""Pickles of plain data (numbers, text, lists, tuples, maps), read without running anything.

Python's own Unpickler calls whatever a pickle names; a subclass can refuse that, but a few bytes can still make it
reserve gigabytes (a memo number, a length) or overrun the C stack (a key of nested tuples). This machine knows only
the instructions that plain data needs, takes memory in proportion to the input, and allows only text and numbers as
keys. A pickle that asks for any global is refused with its name.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from ghtools.stream.errors import InputError

MAX_LONG_BYTES = 1024  # more digits than Python turns into text
_MARK = object()
# Instructions that name a class or function, or act on one.
_CALLS = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x69: "INST", 0x6F: "OBJ", 0x52: "REDUCE", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX",
    0x62: "BUILD", 0x50: "PERSID", 0x51: "BINPERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
}  # fmt: skip
_SINGLE = {0x4E: None, 0x88: True, 0x89: False}
_TAKE = {  # instruction -> (bytes of its argument, how to read it)
    0x4A: ("<i", 4), 0x4B: ("<B", 1), 0x4D: ("<H", 2), 0x47: (">d", 8),
}  # fmt: skip
_TEXT = {0x58: 4, 0x8C: 1, 0x8D: 8, 0x54: 4, 0x55: 1, 0x42: 4, 0x43: 1, 0x8E: 8}  # instruction -> bytes of its length
_BYTES = (0x42, 0x43, 0x8E)


def loads(data: bytes, name: str) -> Any:
    """The object in `data`; InputError naming the file and what is wrong with it, at which byte."""
    return _Machine(data, name).run()


class _Machine:
    """One run over a pickle: a stack, a memo, and a place in the input."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name, self._at = data, name, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def _bad(self, why: str) -> NoReturn:
        raise InputError(f"bad input: {self._name}", f"{why} (byte {self._at} of its pickle)")

    def _need(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise InputError(f"input cut: {self._name}", f"its pickle is not whole after {len(self._data)} bytes")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def _number(self, size: int) -> int:
        return int.from_bytes(self._need(size), "little")

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + 4096)
        if end < 0:
            self._bad("a line without an end")
        return self._need(end + 1 - self._at)[:-1].decode("utf-8", "replace")

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            self._bad("nothing is left to take")
        return self._stack.pop()

    def _from_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while place >= 0 and self._stack[place] is not _MARK:
            place -= 1
        if place < 0:
            self._bad("a group without a begin")
        items = self._stack[place + 1 :]
        del self._stack[place:]
        return items

    def _store(self, index: int) -> None:
        if not self._stack or self._stack[-1] is _MARK:
            self._bad("nothing to remember")
        self._memo[index] = self._stack[-1]

    def _put_items(self, items: list[Any]) -> None:
        target = self._stack[-1] if self._stack else None
        if not isinstance(target, dict) or len(items) % 2:
            self._bad("items for what is no map")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | None):
                self._bad("a key that is neither text nor a number")
            target[key] = value

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1] if self._stack else None
        if not isinstance(target, list):
            self._bad("items for what is no list")
        target.extend(items)

    def _refuse(self, code: int) -> NoReturn:
        what = f"an object by {_CALLS[code]}"
        if code in (0x63, 0x69):
            what = f"the global {self._line()[:80]}.{self._line()[:80]}"
        elif code == 0x93:
            parts = [part if isinstance(part, str) else "?" for part in self._stack[-2:]]
            what = f"the global {'.'.join(part[:80] for part in parts)}"
        raise InputError(f"refused: {self._name}", f"its pickle asks for {what}, which could run code")

    def run(self) -> Any:
        """All instructions up to STOP."""
        stack = self._stack
        while True:
            if self._at >= len(self._data):
                self._need(1)
            code = self._data[self._at]
            self._at += 1
            if code == 0x71:  # BINPUT
                self._store(self._number(1))
            elif code == 0x68 or code == 0x6A:  # BINGET, LONG_BINGET
                index = self._number(1 if code == 0x68 else 4)
                if index not in self._memo:
                    self._bad("a reference to nothing")
                stack.append(self._memo[index])
            elif code in _TEXT:
                raw = self._need(self._number(_TEXT[code]))
                stack.append(raw if code in _BYTES else raw.decode("utf-8", "replace"))
            elif code in _TAKE:
                form, size = _TAKE[code]
                stack.append(struct.unpack(form, self._need(size))[0])
            elif code in _SINGLE:
                stack.append(_SINGLE[code])
            elif code == 0x75:  # SETITEMS
                self._put_items(self._from_mark())
            elif code == 0x73:  # SETITEM
                value = self._pop()
                self._put_items([self._pop(), value])
            elif code == 0x65:  # APPENDS
                self._extend(self._from_mark())
            elif code == 0x61:  # APPEND
                self._extend([self._pop()])
            elif code == 0x28:  # MARK
                stack.append(_MARK)
            elif code == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif code == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif code == 0x64:  # DICT
                items = self._from_mark()
                stack.append({})
                self._put_items(items)
            elif code == 0x6C:  # LIST
                stack.append(self._from_mark())
            elif code == 0x74:  # TUPLE
                stack.append(tuple(self._from_mark()))
            elif 0x85 <= code <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
                items = [self._pop() for _ in range(code - 0x84)]
                stack.append(tuple(reversed(items)))
            elif code == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif code == 0x8A or code == 0x8B:  # LONG1, LONG4
                size = self._number(1 if code == 0x8A else 4)
                if size > MAX_LONG_BYTES:
                    self._bad(f"a number of {size} bytes")
                stack.append(int.from_bytes(self._need(size), "little", signed=True))
            elif code == 0x72:  # LONG_BINPUT
                self._store(self._number(4))
            elif code == 0x94:  # MEMOIZE
                self._store(len(self._memo))
            elif code in (0x49, 0x4C, 0x46, 0x56, 0x70, 0x67):
                self._text_instruction(code)
            elif code == 0x80:  # PROTO
                if self._number(1) > 5:
                    self._bad("a protocol above 5")
            elif code == 0x95:  # FRAME: the length of what follows, of no use here
                self._need(8)
            elif code == 0x2E:  # STOP
                return self._pop()
            elif code in _CALLS:
                self._refuse(code)
            else:
                self._bad(f"the instruction {code:#04x}, which plain data does not need")

    def _text_instruction(self, code: int) -> None:
        """Protocol 0: numbers, text and memo numbers written as lines."""
        line = self._line()
        try:
            if code == 0x56:
                self._stack.append(line)
            elif code == 0x46:
                self._stack.append(float(line))
            elif code == 0x70:
                self._store(int(line))
            elif code == 0x67:
                self._stack.append(self._memo[int(line)])
            elif line in ("00", "01"):
                self._stack.append(line == "01")
            else:
                self._stack.append(int(line.rstrip("L")))
        except (ValueError, KeyError):
            self._bad("a line that is no number, or a reference to nothing")
