# SPDX-License-Identifier: Apache-2.0
"""JSON of any length: the objects of its outer arrays one by one, in bounded memory, at the speed of a C loop."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ghtools.job.native import lib
from ghtools.stream.errors import InputError
from ghtools.stream.framing import Source

READ_BYTES = 1 << 20
MAX_OBJECT_BYTES = 16 << 20
MAX_REST_BYTES = 16 << 20
MAX_SPANS = 1 << 14

_ERRORS = {-1: "it does not begin as JSON", -2: "something follows its end"}


class _State(ctypes.Structure):
    """struct split_state of csrc/native/json_split.c."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("base", "depth", "arrays", "in_string", "escape", "element", "start", "drop_comma", "ended")
    ]


lib.gh_json_split.restype = ctypes.c_int64
lib.gh_json_split.argtypes = [
    ctypes.POINTER(_State), ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64),
]  # fmt: skip


class Splitter:
    """Objects of a JSON text that stand in an array of its root object, or in an array that is the root.

    Only those that contain one of `needles` are given (all if there are none); an object that lies across two reads
    is always given. The needles can be replaced at any time by `want`. The bytes of an object are not checked.
    """

    def __init__(self, name: str, needles: Sequence[bytes] = ()) -> None:
        self.name = name
        self.bytes = 0
        self._state = _State()
        self._rest = bytearray()
        self._pending = bytearray()
        self._spans = (ctypes.c_int64 * (2 * MAX_SPANS))()
        self._out = ctypes.create_string_buffer(READ_BYTES)
        self.want(needles)

    def want(self, needles: Sequence[bytes]) -> None:
        """From the next read on, give objects that contain one of these."""
        self._needles = (ctypes.c_char_p * max(len(needles), 1))(*needles)
        self._count = len(needles)

    def objects(self, source: Source) -> Iterator[bytes]:
        """All objects of a source, to its end. InputError where it is no JSON, is cut, or an object is too large."""
        while chunk := source.read1(READ_BYTES):
            for begin in range(0, len(chunk), READ_BYTES):
                yield from self._feed(chunk[begin : begin + READ_BYTES])
        if not self._state.ended:
            why = "it is empty" if not self.bytes else f"its JSON is not whole after {self.bytes} bytes"
            raise InputError(f"input cut: {self.name}", why)

    def _feed(self, chunk: bytes) -> Iterator[bytes]:
        self.bytes += len(chunk)
        rest_length, used = ctypes.c_int64(), ctypes.c_int64()
        while chunk:
            base = self._state.base
            count = lib.gh_json_split(
                ctypes.byref(self._state), chunk, len(chunk), self._needles, self._count,
                self._spans, MAX_SPANS, self._out, ctypes.byref(rest_length), ctypes.byref(used),
            )  # fmt: skip
            if count < 0:
                raise InputError(f"bad input: {self.name}", f"{_ERRORS[count]}, near byte {base}")
            self._rest += memoryview(self._out)[: rest_length.value]
            if len(self._rest) > MAX_REST_BYTES:
                raise InputError(f"bad input: {self.name}", f"over {MAX_REST_BYTES >> 20} MiB outside its events")
            for start, end in zip(self._spans[0 : 2 * count : 2], self._spans[1 : 2 * count : 2], strict=True):
                if start >= base:
                    yield chunk[start - base : end - base]
                else:
                    self._pending += chunk[: end - base]
                    whole, self._pending = bytes(self._pending), bytearray()
                    yield whole
            if self._state.element:
                self._pending += chunk[max(self._state.start - base, 0) : used.value]
                if len(self._pending) > MAX_OBJECT_BYTES:
                    raise InputError(f"bad input: {self.name}", f"an object of over {MAX_OBJECT_BYTES >> 20} MiB")
            else:
                self._pending.clear()
            chunk = chunk[used.value :]

    def outside(self) -> dict[str, Any]:
        """Members of the root object that are no objects in arrays, as far as they have been read; {} if not JSON."""
        text = self._rest.decode("utf-8", "replace")
        if not self._state.ended:
            if text.count('"') % 2:
                text = text[: text.rfind('"')]
            text = text.rstrip(',:"')
            text += "]}" if text.endswith("[") else "}"
        try:
            found = json.loads(re.sub(r",(?=[\]}])", "", text))
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
