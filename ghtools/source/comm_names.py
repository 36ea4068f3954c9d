# SPDX-License-Identifier: Apache-2.0
"""What PyTorch, NCCL and RCCL call operations, element types and groups, as codes of the stream."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from ghtools.stream.records import DTYPES, OP_CODE

# Found inside a name without its underlines, in this order: "reduce_scatter" holds "reduce" and "scatter".
_OPS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("barrier", "barrier"),
    ("sendrecv", "unknown"),  # a kernel that may be send, recv, both or all_to_all
    ("send", "send"),
    ("recv", "recv"),
)
_KERNEL = re.compile(r"\b(?:nccl|msccl|rccl)(?:Dev|Symk?Dev|Symk?)?Kernel_(\w+)")
_DTYPE = {
    "float": "float32", "float32": "float32", "f32": "float32",
    "double": "float64", "float64": "float64", "f64": "float64",
    "half": "float16", "float16": "float16", "f16": "float16",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
    "long": "int64", "longint": "int64", "int64": "int64", "i64": "int64",
    "int": "int32", "int32": "int32", "i32": "int32", "short": "int16", "int16": "int16", "shortint": "int16",
    "char": "int8", "signedchar": "int8", "int8": "int8", "i8": "int8",
    "byte": "uint8", "unsignedchar": "uint8", "uint8": "uint8", "u8": "uint8",
    "uint32": "uint32", "u32": "uint32", "uint64": "uint64", "u64": "uint64", "bool": "bool",
    "float8e4m3fn": "float8_e4m3", "float8e4m3": "float8_e4m3", "float8e4m3fnuz": "float8_e4m3",
    "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2",
    "complexfloat": "complex64", "complexdouble": "complex128",
}  # fmt: skip
ITEM_BYTES = {
    "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3": 1, "float8_e5m2": 1, "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
MAX_NUMEL = 1 << 50
MAX_RANKS = 1 << 17


def op_of(name: str) -> int | None:
    """Code of an operation from a name such as "nccl:_all_gather_base"; None for what is none (wait, init)."""
    plain = name.lower().rpartition(":")[2].replace("_", "")
    for part, op in _OPS:
        if part in plain:
            return OP_CODE[op]
    return None


def op_of_kernel(name: str) -> int | None:
    """Code of a communication kernel's operation, 0 if its name does not say; None for other kernels.

    Old names are ncclKernel_AllReduce_RING_LL_Sum_float(...), newer ncclDevKernel_AllReduce_Sum_f32_RING_LL(...),
    those over symmetric memory ncclSymkDevKernel_...; RCCL says ncclDevKernel_Generic for all.
    """
    found = _KERNEL.search(name)
    if not found:
        return None
    return op_of(found[1].partition("_")[0]) or 0


def dtype_of(name: object) -> int:
    """Code of an element type; 0 if it is not known."""
    if not isinstance(name, str):
        return 0
    plain = name.lower().replace("c10::", "").replace("_", "").replace(" ", "")
    return DTYPES.index(_DTYPE.get(plain, "unknown"))


def size_of(numel: int, dtype: int) -> int | None:
    """Bytes of so many elements; None if the type is not known."""
    item = ITEM_BYTES.get(DTYPES[dtype], 0)
    return numel * item if item and 0 <= numel <= MAX_NUMEL else None


def numel_of(shapes: Any) -> int | None:
    """Elements in a list of shapes, or a list of such lists; None if it is neither or says nothing."""
    total, some = 0, False
    for shape in shapes if isinstance(shapes, list) else ():
        if not isinstance(shape, list | tuple):
            return None
        if shape and isinstance(shape[0], list):
            for inner in shape:
                count = _product(inner)
                if count is None:
                    return None
                total, some = total + count, True
        elif shape:
            count = _product(shape)
            if count is None:
                return None
            total, some = total + count, True
    return total if some else None


def _product(shape: Any) -> int | None:
    count = 1
    for edge in shape if isinstance(shape, list | tuple) else ("",):
        if not isinstance(edge, int) or not 0 <= edge <= MAX_NUMEL or count > MAX_NUMEL:
            return None
        count *= edge
    return count


def text_of(value: object) -> str:
    """Text, cut to 256 characters, or a number as text; anything else is empty."""
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 63 else ""
    return value[:256] if isinstance(value, str) else ""


def ranks_of(text: object) -> list[int]:
    """Ranks of "[0, 1, 2]" or of a list; [] where it is shortened ("..."), too long, or none."""
    if isinstance(text, str):
        if not re.fullmatch(r"\s*\[[\d,\s]*\]\s*", text):
            return []
        found = [int(part) for part in re.findall(r"\d{1,9}", text)]
    elif isinstance(text, list) and all(isinstance(rank, int) and 0 <= rank < 1 << 31 for rank in text):
        found = list(text)
    else:
        return []
    return found if len(found) <= MAX_RANKS and len(set(found)) == len(found) else []


def group_id(name: str, ranks: Sequence[int], *more: object) -> int:
    """Identity of a group, equal on all its ranks: from its name and its members; never 0."""
    text = "\0".join([name, ",".join(map(str, ranks)), *map(str, more)])
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little") or 1


_IN_NAME = (
    re.compile(r"rank[-_. =]?(\d{1,7})(?!\d)", re.I),
    re.compile(r"worker[-_. =]?(\d{1,7})(?!\d)", re.I),
    re.compile(r"[-_.](\d{1,7})\.(?:pt\.trace\.)?(?:json|pkl|pickle|sqlite|db)(?:\.gz|\.zst)?$", re.I),
    re.compile(r"_(\d{1,7})(?:\.gz)?$"),
)
_TENSORBOARD = re.compile(r"_\d+\.\d{10,19}\.pt\.trace\.json")  # HOST_PID.TIME.pt.trace.json: the number is no rank


def rank_in_name(path: str) -> int | None:
    """The rank a file's name tells: rank-3, rank3, worker3, host_rank_3, _3.json, _dump_3; the last one of a kind."""
    name = path.rpartition("/")[2]
    for pattern in _IN_NAME[: 2 if _TENSORBOARD.search(name) else None]:
        if found := pattern.findall(name):
            return int(found[-1])
    return None
