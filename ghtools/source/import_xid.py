# SPDX-License-Identifier: Apache-2.0
"""Kernel logs with messages of NVIDIA's driver: `NVRM: Xid (PCI:BUS): CODE, ...`.

`dmesg -T`, `journalctl -k` or /var/log/kern.log hold them. Each Xid becomes a sample of the metric nvidia_xid with the
labels pci, xid and, for codes that NVIDIA's list of Xid errors explains, what it means; a rank's device can be found by
its PCI bus id. They tell that the driver met an error and when; an Xid explains a slow or lost GPU but does not show
one, and a log without Xids does not show a healthy one (the ring of dmesg is short; the driver limits its messages).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import Record

from .importers import File, Options
from .lines import lines
from .logtext import Told, plain, printable
from .samples import Samples

NAME = "xid"
DOC = "kernel logs (dmesg -T, journalctl -k, kern.log) with NVIDIA Xid errors, as samples of nvidia_xid by PCI bus id"

# docs.nvidia.com/deploy/xid-errors, shortened.
MEANS = {
    13: "graphics engine exception", 31: "GPU memory page fault", 43: "GPU stopped processing",
    45: "preemptive cleanup after earlier errors", 46: "GPU stopped processing", 48: "double bit ECC error",
    61: "internal micro-controller breakpoint", 62: "internal micro-controller halt", 63: "row remapping event",
    64: "row remapping failure", 68: "NVDEC exception", 69: "graphics engine class error", 74: "NVLink error",
    79: "GPU has fallen off the bus", 92: "high single-bit ECC error rate", 94: "contained ECC error",
    95: "uncontained ECC error", 109: "context switch timeout", 110: "security fault",
    119: "GSP RPC timeout", 120: "GSP error", 121: "C2C error", 122: "SPI PMU RPC read failure",
    123: "SPI PMU RPC write failure", 140: "unrecovered ECC error",
}  # fmt: skip
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,24})\): (\d{1,5})\b")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\]")
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)")
_SINCE_BOOT = re.compile(r"\[ {0,12}(\d{1,10})\.(\d{6})\]")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def looks_like(first: bytes) -> bool:
    """Whether a line is a message of the driver."""
    return b"NVRM: Xid (" in first


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Samples, one series a GPU and code, in bounded memory. InputError where there is no Xid at all."""
    samples = Samples()
    try:
        for file in files:
            for item in lines(Told(file.source, file.name, options.warn), file.name):
                if item is None:
                    yield from samples.flush()
                elif found := _XID.search(plain(item[1])[:4096]):
                    pci, code = printable(found[1].lower()), int(found[2])
                    labels = {"pci": pci, "xid": str(code)}
                    if code in MEANS:
                        labels["means"] = MEANS[code]
                    t_ns = _time_of(found.string[: found.start()])
                    yield from samples.add("nvidia_xid", "", labels, t_ns, float(code))
    except (GhError, Stopped):
        yield from samples.flush()
        raise
    yield from samples.flush()
    if not samples.count:
        names = ", ".join(file.name for file in files[:3])
        raise InputError(f"no Xid in {names}", "no line holds 'NVRM: Xid (', which is no sign of health")


def _time_of(before: str) -> int:
    """When a line was written, ns since the epoch (or since boot, where the log counts so); 0 = it does not say."""
    try:
        if found := _CTIME.search(before):
            month, day, hour, minute, second, year = found.groups()
            when = datetime(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second))
        elif found := _ISO.search(before):
            when = datetime(*map(int, found.groups()))  # type: ignore[arg-type]
        elif found := _SINCE_BOOT.search(before):
            return int(found[1]) * 10**9 + int(found[2]) * 1000
        else:
            return 0
        return int(when.replace(tzinfo=timezone.utc).timestamp()) * 10**9
    except ValueError:
        return 0
