# SPDX-License-Identifier: Apache-2.0
"""The program that runs in the kernel at each probed function's entry, and the record it leaves.

It looks up its target's state, reserves a record in the ring (or counts a drop), copies the argument
registers and what they point to, and submits it. Nothing is decided there: what the bytes mean is found out
by uprobe_decode. Reads that fail leave zeros.
"""

from __future__ import annotations

import numpy as np

from . import bpf
from .bpf import FP, R0, R1, R2, R3, R4, R6, R7, R8, R9, Code
from .uprobe_table import Probe

MORE = 10  # tensors of a list after its first whose sizes are read
DUMP_AT, DUMP_WORDS = 16, 25  # of the first tensor's TensorImpl: bytes skipped (vtable, counts), words copied

# As the kernel writes it: a header word (length, busy and discard bits), then our fields. All records have
# the same size and the ring is a multiple of it, so the ring is an array.
RECORD = np.dtype(
    [
        ("header", "<u8"), ("t", "<u8"), ("drops", "<u8"), ("target", "<u4"), ("probe", "<u4"), ("thread", "<u8"),
        ("args", "<u8", 6), ("comm", "<u8"), ("sp", "<u8"), ("caller", "<u8"), ("options", "<i8", 2),
        ("begin", "<u8"), ("end", "<u8"), ("tensor", "<u8"),
        ("more", "<u8", (MORE, 2)), ("dump", "<u8", DUMP_WORDS),
    ]
)  # fmt: skip
PAYLOAD = RECORD.itemsize - 8

# State of one target, shared with the program: records dropped; offset of numel_ in a TensorImpl, 0 = unknown.
STATE = np.dtype([("drops", "<u8"), ("numel_at", "<u8")])


def _field(name: str) -> int:
    fields = RECORD.fields
    assert fields is not None
    return int(fields[name][1]) - 8


def _argument(code: Code, register: int, number: int) -> None:
    """register = argument `number`; those beyond the sixth are on the stack and must be read there first."""
    code.load(register, R6, bpf.ARG_OFFSETS[number])


def build(target: int, number: int, probe: Probe, states: int, ring: int) -> bytes:
    """The program of one probe for one target; `states` and `ring` are descriptors of maps."""
    code = Code()
    code.copy(R6, R1)  # the registers of the process
    code.call(bpf.KTIME_GET_NS)
    code.copy(R9, R0)
    code.store_number(FP, -4, target, bytes_=4)
    code.load_map(R1, states)
    code.copy(R2, FP)
    code.add(R2, -4)
    code.call(bpf.MAP_LOOKUP)
    code.jump_if_zero(R0, "end")
    code.copy(R7, R0)  # this target's state
    code.load_map(R1, ring)
    code.set(R2, PAYLOAD)
    code.set(R3, 0)
    code.call(bpf.RINGBUF_RESERVE)
    code.jump_if_zero(R0, "full")
    code.copy(R8, R0)  # the record
    code.store(R8, _field("t"), R9)
    code.load(R1, R7, 0)
    code.store(R8, _field("drops"), R1)
    code.store_number(R8, _field("target"), target, bytes_=4)
    code.store_number(R8, _field("probe"), number, bytes_=4)
    code.call(bpf.GET_PID_TGID)
    code.store(R8, _field("thread"), R0)
    for i in range(6):
        _argument(code, R1, i)
        code.store(R8, _field("args") + 8 * i, R1)
    code.load(R3, R6, bpf.SP_OFFSET)
    code.store(R8, _field("sp"), R3)
    code.read_user(R8, _field("caller"), 8)
    if 0 <= probe.comm < 6:
        _argument(code, R1, probe.comm)
        code.store(R8, _field("comm"), R1)
    else:
        # Arguments from the seventh on lie on the stack above the return address.
        code.load(R3, R6, bpf.SP_OFFSET)
        code.add(R3, 8 + 8 * max(probe.comm - 6, 0))
        code.read_user(R8, _field("comm"), 8)
    if probe.root_at >= 0:
        _argument(code, R3, probe.root_at)
        code.add(R3, probe.root_offset)
        code.read_user(R8, _field("options"), 16)
    for name in ("begin", "end", "tensor"):
        code.store_number(R8, _field(name), 0)
    if probe.vector >= 0:
        _argument(code, R3, probe.vector)
        code.read_user(R8, _field("begin"), 16)
    elif probe.tensor >= 0:
        _argument(code, R1, probe.tensor)  # a Tensor is one pointer: a list of one
        code.store(R8, _field("begin"), R1)
        code.add(R1, 8)
        code.store(R8, _field("end"), R1)
    if probe.vector >= 0 or probe.tensor >= 0:
        _tensors(code, probe)
    code.copy(R1, R8)
    code.set(R2, bpf.NO_WAKEUP)
    code.call(bpf.RINGBUF_SUBMIT)
    code.label("end")
    code.set(R0, 0)
    code.exit()
    code.label("full")
    code.set(R1, 1)
    code.fetch_add(R7, 0, R1)
    code.set(R0, 0)
    code.exit()
    return code.assemble()


def _tensors(code: Code, probe: Probe) -> None:
    """Copy the beginning of the first tensor's TensorImpl, and of others their numel and type."""
    code.load(R3, R8, _field("begin"))
    code.read_user(R8, _field("tensor"), 8)
    code.load(R3, R8, _field("tensor"))
    code.add(R3, DUMP_AT)
    code.read_user(R8, _field("dump"), 8 * DUMP_WORDS)
    for i in range(MORE):
        code.store_number(R8, _field("more") + 16 * i + 8, 0xFFFF)  # no type: not read
    if probe.vector < 0:
        return
    code.load(R9, R7, 8)  # where numel_ is, once that is known
    code.jump_if_zero(R9, "read")
    for i in range(MORE):
        at = _field("more") + 16 * i
        code.load(R3, R8, _field("begin"))
        code.add(R3, 8 * (i + 1))
        code.load(R4, R8, _field("end"))
        code.jump_if_not_below(R3, R4, "read")
        code.read_user(R8, at, 8)
        code.load(R3, R8, at)
        code.add_register(R3, R9)
        code.read_user(R8, at, 16)
    code.label("read")
