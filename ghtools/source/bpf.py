# SPDX-License-Identifier: Apache-2.0
"""As much of Linux' bpf(2) and perf_event_open(2) as uprobes need, by way of ctypes; x86-64 only.

Everything made here belongs to file descriptors: when the process ends, however it ends, the kernel removes
the breakpoints, the programs and the maps. Nothing is left in tracefs and nobody else's tracing is touched.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path

from ghtools.stream.errors import MissingError

SYS_BPF, SYS_PERF_EVENT_OPEN = 321, 298  # x86-64
MAP_CREATE, PROG_LOAD = 0, 5
MAP_ARRAY, MAP_RINGBUF = 2, 27
MAP_MMAPABLE = 1 << 10
PROG_KPROBE = 2
PERF_SET_BPF, PERF_ENABLE = 0x40042408, 0x2400
PERF_FLAG_CLOEXEC = 8
UPROBE_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")

# The kernel lends the helpers that read user memory to programs that say GPL, as those of bcc and bpftrace do.
LICENSE = ctypes.create_string_buffer(b"GPL")

# Registers of the BPF machine, and where x86-64's lie in the context of a uprobe (struct pt_regs).
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = range(11)
ARG_OFFSETS = (112, 104, 96, 88, 72, 64)  # rdi, rsi, rdx, rcx, r8, r9
SP_OFFSET = 152

MAP_LOOKUP, KTIME_GET_NS, GET_PID_TGID, PROBE_READ_USER, RINGBUF_RESERVE, RINGBUF_SUBMIT = 1, 5, 14, 112, 131, 132
NO_WAKEUP = 1  # of RINGBUF_SUBMIT: nobody is woken, we look every few milliseconds; a wake-up costs more than a record

_libc = ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *args: int | ctypes.Array[ctypes.c_char] | None) -> int:
    values = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = int(_libc.syscall(ctypes.c_long(number), *values))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _bpf(command: int, attr: bytes) -> int:
    # Kernels accept a longer attr than they know if the rest is zero.
    buffer = ctypes.create_string_buffer(attr.ljust(128, b"\0"), 128)
    return _syscall(SYS_BPF, command, buffer, 128)


class Code:
    """A small assembler: methods append instructions, labels are patched by `assemble`."""

    def __init__(self) -> None:
        self._code: list[list[int]] = []  # [code, dst | src << 4, offset, immediate]
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def put(self, code: int, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> None:
        """One instruction as the machine has it."""
        self._code.append([code, dst | src << 4, offset, immediate])

    def set(self, dst: int, value: int) -> None:
        """dst = a number of 32 bits, sign-extended."""
        self.put(0xB7, dst, immediate=value)

    def copy(self, dst: int, src: int) -> None:
        """dst = src"""
        self.put(0xBF, dst, src)

    def add(self, dst: int, value: int) -> None:
        """dst += a number"""
        self.put(0x07, dst, immediate=value)

    def add_register(self, dst: int, src: int) -> None:
        """dst += src"""
        self.put(0x0F, dst, src)

    def load(self, dst: int, base: int, offset: int) -> None:
        """dst = *(u64 *)(base + offset)"""
        self.put(0x79, dst, base, offset)

    def store(self, base: int, offset: int, src: int) -> None:
        """*(u64 *)(base + offset) = src"""
        self.put(0x7B, base, src, offset)

    def store_number(self, base: int, offset: int, value: int, bytes_: int = 8) -> None:
        """*(u64 or u32 *)(base + offset) = a number"""
        self.put(0x7A if bytes_ == 8 else 0x62, base, 0, offset, value)

    def fetch_add(self, base: int, offset: int, src: int) -> None:
        """src = *(u64 *)(base + offset), which grows by src; atomically"""
        self.put(0xDB, base, src, offset, 0x01)

    def load_map(self, dst: int, fd: int) -> None:
        """dst = a map"""
        self.put(0x18, dst, 1, 0, fd)
        self.put(0)

    def call(self, helper: int) -> None:
        """r0 = helper(r1 ... r5)"""
        self.put(0x85, immediate=helper)

    def jump_if_zero(self, register: int, label: str) -> None:
        """Go to a label if a register is 0."""
        self._jumps.append((len(self._code), label))
        self.put(0x15, register)

    def jump_if_not_below(self, a: int, b: int, label: str) -> None:
        """Go to a label if a >= b, unsigned."""
        self._jumps.append((len(self._code), label))
        self.put(0x3D, a, b)

    def label(self, name: str) -> None:
        """The place a jump goes to."""
        self._labels[name] = len(self._code)

    def exit(self) -> None:
        """return r0"""
        self.put(0x95)

    def read_user(self, base: int, offset: int, size: int) -> None:
        """Copy `size` bytes at the user address in r3 to base + offset; zeros if they cannot be read."""
        self.copy(R1, base)
        self.add(R1, offset)
        self.set(R2, size)
        self.call(PROBE_READ_USER)

    def assemble(self) -> bytes:
        """The program."""
        for at, label in self._jumps:
            self._code[at][2] = self._labels[label] - at - 1
        return b"".join(struct.pack("<BBhi", *instruction) for instruction in self._code)


class Map:
    """An array of `count` values of 64-bit words, or a ring buffer, shared with the kernel."""

    def __init__(self, kind: int, value_bytes: int, count: int) -> None:
        flags = MAP_MMAPABLE if kind == MAP_ARRAY else 0
        key = 4 if kind == MAP_ARRAY else 0
        self.fd = _bpf(MAP_CREATE, struct.pack("<5I", kind, key, value_bytes, count, flags))

    def view(self, length: int, offset: int, writable: bool) -> mmap.mmap:
        """Map `length` bytes from `offset`."""
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(self.fd, length, mmap.MAP_SHARED, prot, offset=offset)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


def load_program(code: bytes) -> int:
    """Load a program of type kprobe (which uprobes use, too); its descriptor. MissingError with the verifier's word."""
    text = ctypes.create_string_buffer(code, len(code))
    attr = struct.pack("<IIQQ", PROG_KPROBE, len(code) // 8, ctypes.addressof(text), ctypes.addressof(LICENSE))
    try:
        return _bpf(PROG_LOAD, attr)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):
            raise
        log = ctypes.create_string_buffer(1 << 16)
        try:
            return _bpf(PROG_LOAD, attr + struct.pack("<IIQ", 1, len(log), ctypes.addressof(log)))
        except OSError:
            lines = log.value.decode(errors="replace").strip().splitlines()
            why = " / ".join(lines[-3:]) or os.strerror(error.errno)
            raise MissingError("the kernel refuses the tracing program", why) from None


def attach_uprobe(path: str, offset: int, pid: int, program: int) -> int:
    """Run `program` whenever process `pid`, any thread of it, comes to `offset` in the file; a descriptor."""
    kind = int(UPROBE_TYPE.read_text())
    name = ctypes.create_string_buffer(os.fsencode(path))
    attr = bytearray(112)
    struct.pack_into("<II", attr, 0, kind, len(attr))
    struct.pack_into("<QQ", attr, 56, ctypes.addressof(name), offset)
    fd = _syscall(
        SYS_PERF_EVENT_OPEN, ctypes.create_string_buffer(bytes(attr), len(attr)), pid, -1, -1, PERF_FLAG_CLOEXEC
    )
    try:
        fcntl.ioctl(fd, PERF_SET_BPF, program)
        fcntl.ioctl(fd, PERF_ENABLE, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd
