# SPDX-License-Identifier: Apache-2.0
"""JSON lines back into records: what `gh-show --json` wrote (view/jsonl.py), or lines made by hand or by jq."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Any

from ghtools.stream.errors import InputError
from ghtools.stream.framing import decode, encode, extension
from ghtools.stream.records import DTYPES, FLAG_BYTES_UNKNOWN, KINDS, OPS, PHASES, Record

from .batches import COLUMNS, Regroup
from .importers import File, Options
from .lines import lines, place

NAME = "jsonl"
DOC = "JSON lines of gh-show --json, one object a record or a row; missing heads and ends are added"

WORDS: dict[str, dict[str, int]] = {
    name: {word: code for code, word in enumerate(words)}
    for name, words in (("op", OPS), ("dtype", DTYPES), ("phase", PHASES))
}
FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
# What a row may leave out, and what that means.
DEFAULTS: dict[str, dict[str, float]] = {
    "calls": {"dtype": 0, "flags": 0, "peer": -1, "comm": 0, "bytes": 0, "seq": -1, "dur_ns": -1},
    "iters": {"phase": 0, "calls": 0, "seq": -1},
}
_SCALARS = {
    kind: {f.name: str(f.type) for f in fields(cls) if "dtype" not in f.metadata and f.name != "extra"}
    for kind, cls in KINDS.items()
}
_ROW_KEYS = {
    kind: frozenset({"kind", "row", "rows", *names, *(f"{name}_code" for name in names if name in WORDS)})
    for kind, names in COLUMNS.items()
}
_NESTED = {kind for kind in COLUMNS if any(want.startswith(("list", "dict")) for want in _SCALARS[kind].values())}
_KNOWN = {kind: _ROW_KEYS[kind] | _SCALARS[kind].keys() - {"extra"} for kind in COLUMNS}
_GETTERS = {kind: itemgetter(*names) for kind, names in COLUMNS.items()}
_CODED = {
    kind: [(place, WORDS.get(name)) for place, name in enumerate(names) if name in WORDS or name == "comm"]
    for kind, names in COLUMNS.items()
}


def looks_like(first: bytes) -> bool:
    """Whether the first line begins as an object with a kind."""
    line = first.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return line.startswith(b"{") and b'"kind"' in line


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """The records of all lines. Raises InputError naming the line that cannot be one; bounded memory."""
    for file in files:
        regroup = Regroup()
        try:
            for item in lines(file.source, file.name):
                if item is None:
                    yield from regroup.flush()
                    continue
                number, line = item
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if not line.strip():
                    continue
                try:
                    yield from _line(line, regroup)
                except (ValueError, TypeError, OverflowError, RecursionError, KeyError) as error:
                    why = _why(error)
                    raise InputError(f"bad input at {place(file.name, number)}", why) from None
        except InputError:
            yield from regroup.flush()  # sound rows before the bad line are delivered
            raise
        yield from regroup.flush()


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg.lower()} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, KeyError):
        return f"the key {error.args[0]} is missing"
    return str(error)


def _line(line: bytes, regroup: Regroup) -> Iterator[Record]:
    """What one line yields: its record, or the batches that its row completes."""
    item = json.loads(line.decode(), object_hook=_untag if b"__" in line else None)
    if not isinstance(item, dict):
        raise ValueError(f"a {type(item).__name__} where an object should be")
    kind = item.get("kind")
    if not isinstance(kind, str):
        raise ValueError("an object without a kind")
    if kind in COLUMNS and item.get("rows") != 0:
        yield from _row(kind, item, regroup)
        return
    if kind in COLUMNS:
        item.pop("rows")
    yield from regroup.flush()
    if kind in KINDS:
        item = _scalars(kind, item)
    record = decode(item)
    encode(record)  # a number or a text that the stream cannot carry is the line's fault
    yield record


def _scalars(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """Plain fields as the stream has them: hex communicators, non-finite numbers, whole numbers as int."""
    made = dict(item)
    extra = made.pop("extra", None)
    if isinstance(extra, dict):
        made.update((key, value) for key, value in extra.items() if key not in _SCALARS[kind])
    elif extra is not None:
        made["extra"] = extra
    for name, want in _SCALARS[kind].items():
        if name in made:
            value = made[name]
            if name == "comm":
                made[name] = _comm(value)
            elif want == "float" and isinstance(value, str):
                made[name] = FLOATS.get(value, value)
            elif want == "int" and type(value) is float:
                made[name] = _whole(name, value)
    return made


def _row(kind: str, item: dict[str, Any], regroup: Regroup) -> Iterator[Record]:
    row, total = _place(item)
    values = _quick(kind, item) or _values(kind, item)
    if item.keys() <= _KNOWN[kind] and kind not in _NESTED:
        key: Any = (kind, *map(str, map(item.get, _SCALARS[kind])))
    else:
        key = (kind, repr(_rest(kind, item)))
    scalars: dict[str, Any] = {}
    if key not in regroup:
        record = decode({"kind": kind, **_scalars(kind, _rest(kind, item))})
        encode(record)
        scalars = {name: getattr(record, name) for name in _SCALARS[kind]} | {"extra": record.extra}
    try:
        yield from regroup.add(kind, key, scalars, values, row, total)
    except OverflowError as error:
        raise ValueError(f"a number of {kind} is out of range: {error}") from None
    except TypeError as error:
        raise ValueError(f"a value of {kind} is no number: {error}") from None


def _rest(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """What is common to the rows of a batch."""
    return {key: value for key, value in item.items() if key not in _ROW_KEYS[kind]}


def _quick(kind: str, item: dict[str, Any]) -> list[Any] | None:
    """The columns of a row as gh-show writes it; None where anything is otherwise."""
    try:
        values = list(_GETTERS[kind](item))
        for place, codes in _CODED[kind]:
            values[place] = codes[values[place]] if codes else int(values[place], 16)
    except (KeyError, TypeError, ValueError):
        return None
    return values if all(type(value) is int for value in values) else None


def _values(kind: str, item: dict[str, Any]) -> list[Any]:
    """The columns of a row made by hand or by jq."""
    defaults = DEFAULTS.get(kind, {})
    values = [_value(item, name, code, defaults) for name, code in COLUMNS[kind].items()]
    if kind == "calls" and "bytes" not in item and "flags" not in item:
        values[list(COLUMNS[kind]).index("flags")] = FLAG_BYTES_UNKNOWN
    return values


def _place(item: dict[str, Any]) -> tuple[int, int]:
    """row and rows, or (-1, 0) where the line does not say its place."""
    row, total = item.get("row", -1), item.get("rows", 0)
    if type(row) is not int or type(total) is not int or not (row == -1 or 0 <= row < total):
        if type(row) is int and "rows" not in item:
            return -1, 0
        raise ValueError(f"row {row} of {total} rows")
    return (row, total) if row >= 0 else (-1, 0)


def _value(item: dict[str, Any], name: str, code: str, defaults: dict[str, float]) -> int | float:
    """One value of a column; KeyError if it is missing and has no default."""
    value = item.get(name)
    if type(value) is int:
        return value
    if name in WORDS:
        return _coded(item, name, value, defaults)
    if value is None:
        return defaults[name]
    if name == "comm":
        return _comm(value)
    if code == "d":
        value = FLOATS.get(value, value) if isinstance(value, str) else value
        if isinstance(value, float):
            return value
    if isinstance(value, float):
        return _whole(name, value)
    raise ValueError(f"{name} is {type(value).__name__}, not a number")


def _coded(item: dict[str, Any], name: str, value: object, defaults: dict[str, float]) -> int | float:
    """A code from its word, from the word of an unknown code (op99), or from <name>_code."""
    if isinstance(value, str):
        if value in WORDS[name]:
            return WORDS[name][value]
        number = value.removeprefix(name)
        if number.isascii() and number.isdigit() and len(number) <= 5:
            return int(number)
        raise ValueError(f"{name} {value!r} is unknown")
    if value is not None:
        raise ValueError(f"{name} is {type(value).__name__}, not a word")
    code = item.get(f"{name}_code", defaults.get(name))
    if code is None:
        raise KeyError(name)
    if type(code) is not int:
        raise ValueError(f"{name}_code is {type(code).__name__}, not a number")
    return code


def _comm(value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and value.startswith("0x") and len(value) <= 18:
        return int(value, 16)
    if isinstance(value, float):
        return _whole("comm", value)
    raise ValueError("comm is not a communicator such as 0x00000000000004d2")


def _whole(name: str, value: float) -> int:
    """Whole numbers that a JSON tool wrote as 1.7e18."""
    if not value.is_integer():
        raise ValueError(f"{name} is {value}, not a whole number")
    return int(value)


def _untag(item: dict[str, Any]) -> Any:
    """Undo the tags of view/jsonl.py."""
    if len(item) == 1:
        [(tag, value)] = item.items()
        if tag == "__bytes__" and isinstance(value, str):
            return b64decode(value, validate=True)
        if tag == "__float__" and value in FLOATS:
            return FLOATS[value]
        if tag == "__ext__" and isinstance(value, list) and len(value) == 2:
            return extension(value[0], b64decode(value[1], validate=True))
    return {_unkey(key): value for key, value in item.items()}


def _unkey(key: str) -> str | bytes:
    if key.startswith("__bytes__:"):
        return b64decode(key.removeprefix("__bytes__:"), validate=True)
    return key.removeprefix("__text__:")
