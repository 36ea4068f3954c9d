# SPDX-License-Identifier: Apache-2.0
"""Records as JSON lines, so that source/jsonl.py restores the same stream.

A plain record is one object. A batch is one object a row: its scalar fields, `row` and `rows` (its place in
the batch), its columns, and for codes the word (`op`) beside the number (`op_code`). Communicators are hex
text, because many JSON readers keep only 53 bits of a number. What JSON has no form for is tagged:
`{"__bytes__": base64}`, `{"__ext__": [code, base64]}`, `{"__float__": "NaN"}` (plain "NaN", "Infinity" and
"-Infinity" in a field that is a number); a key that looks like a tag gets `__text__:` before it.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from ghtools.stream.records import DTYPES, OPS, PHASES, Record, Unknown, columns

from .table import CHUNK_ROWS, name_of

# Column -> its words; the words stand under the column's name, the number under <name>_code.
WORDS: dict[str, tuple[str, ...]] = {"op": OPS, "dtype": DTYPES, "phase": PHASES}
RESERVED = frozenset({"row", "rows", "extra", "op_code", "dtype_code", "phase_code"})

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)


def _number(value: float) -> object:
    """A float, as text where JSON has no form for it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _safe(value: object) -> object:
    """`value` with everything JSON has no form for replaced by a tagged one."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": _number(value)}
    if isinstance(value, bytes):
        return {"__bytes__": b64encode(value).decode()}
    if isinstance(value, dict):
        return {_key(key): _safe(item) for key, item in value.items()}
    if hasattr(value, "code") and hasattr(value, "data"):  # an extension type of msgpack, by shape
        return {"__ext__": [value.code, b64encode(value.data).decode()]}
    if hasattr(value, "to_bytes") and hasattr(value, "nanoseconds"):  # msgpack's time stamp is extension -1
        return {"__ext__": [-1, b64encode(value.to_bytes()).decode()]}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value


def _key(key: str | bytes) -> str:
    """A map's key: bytes are tagged, and so is a text that looks like a tag."""
    if isinstance(key, bytes):
        return f"__bytes__:{b64encode(key).decode()}"
    return f"__text__:{key}" if key.startswith(("__bytes__", "__ext__", "__float__", "__text__")) else key


def _plain(record: Record) -> dict[str, Any]:
    """Kind, scalar fields and extra keys of a record, made safe."""
    if isinstance(record, Unknown):
        safe = _safe(record.extra)
        assert isinstance(safe, dict)
        return safe
    names = [f.name for f in fields(record) if f.name != "extra" and "dtype" not in f.metadata]
    item: dict[str, Any] = {"kind": record.kind}
    for name in names:
        value = getattr(record, name)
        item[name] = hex_comm(value) if name == "comm" else _number(value) if type(value) is float else _safe(value)
    extra = _safe(record.extra)
    assert isinstance(extra, dict)
    if RESERVED.isdisjoint(extra):
        item.update(extra)
    else:
        item["extra"] = extra
    return item


def hex_comm(comm: int) -> str | int:
    """A communicator's identity as the JSON text of its unsigned 64 bits."""
    return f"0x{comm:016x}" if comm >= 0 else comm


def lines(record: Record) -> Iterator[str]:
    """The JSON lines of one record; an empty batch is one line with rows = 0 and no columns."""
    item = _plain(record)
    names = list(columns(type(record)))
    if not names:
        yield _encoder.encode(item)
        return
    total = len(getattr(record, names[0]))
    if not total:
        yield _encoder.encode({**item, "rows": 0})
        return
    # Rows come by the million and hold only numbers and words of ours: one template, filled in.
    begin = _encoder.encode(item)[:-1].replace("%", "%%") + f',"row":%d,"rows":{total}'
    template = begin + "".join(_FORMS.get(name, f',"{name}":%s') for name in names) + "}"
    for start in range(0, total, CHUNK_ROWS):
        parts: list[Iterable[object]] = [range(start, total)]
        for name in names:
            values = getattr(record, name)[start : start + CHUNK_ROWS].tolist()
            if name in WORDS:
                parts.append([name_of(WORDS[name], value, name) for value in values])
            if values and isinstance(values[0], float):
                values = [value if math.isfinite(value) else f'"{_number(value)}"' for value in values]
            parts.append(values)
        yield from (template % row for row in zip(*parts, strict=False))


_FORMS = {name: f',"{name}":"%s","{name}_code":%d' for name in WORDS} | {"comm": ',"comm":"0x%016x"'}
