# SPDX-License-Identifier: Apache-2.0
"""Text of `nvidia-smi -q`: what a GPU says of itself, as samples.

`nvidia-smi -q` (alone, or among other output; repeated with -l) makes it. Numbers become samples named by their
sections (temperature.gpu_current_temp, in C), "Active" and "Not Active" 1 and 0, with the labels pci and uuid. "N/A" is
left out. They tell clocks, throttling, temperature, power, ECC and PCIe width at one moment: what explains a slow GPU.
They cannot tell that a GPU is slow: the software power cap is active in ordinary work, an idle GPU has low clocks.
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

NAME = "nvidia-smi"
DOC = "text of nvidia-smi -q: clocks, throttle reasons, temperature, power, ECC, PCIe of each GPU as samples"

MAX_DEPTH, MAX_HELD = 8, 256
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_STAMP = re.compile(r"Timestamp {1,60}: (.{10,40})$")
_FIELD = re.compile(r"( {4,40})([A-Za-z0-9][^:]{0,80}?) {0,60}(?:: (.{0,200}))?$")
_NUMBER = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)(?:x|\s+([A-Za-z%/]{1,8}))?$")
_WORDS = {"Active": 1.0, "Not Active": 0.0, "Enabled": 1.0, "Disabled": 0.0, "Yes": 1.0, "No": 0.0}
_LEFT_OUT = ("processes", "serial_number", "gpu_part_number", "board_id", "minor_number", "accounting_mode_buffer_size")


def looks_like(first: bytes) -> bool:
    """Whether it begins as such a report, or as a capture that names the command."""
    return b"==NVSMI LOG==" in first or (b"nvidia-smi" in first and b"NVIDIA-SMI version" in first)


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Samples of each GPU of each report. InputError where there is no report at all."""
    samples = Samples()
    try:
        for file in files:
            report = _Report(samples)
            for item in lines(Told(file.source, file.name, options.warn), file.name):
                if item is None:
                    yield from samples.flush()
                else:
                    yield from report.line(plain(item[1])[:400].rstrip())
            yield from report.end()
    except (GhError, Stopped):
        yield from samples.flush()
        raise
    yield from samples.flush()
    if not samples.count:
        names = ", ".join(file.name for file in files[:3])
        raise InputError(f"no report in {names}", "there is no section of a GPU", "nvidia-smi -q")


class _Report:
    """Walks the indented sections of one file."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._t_ns = 0
        self._labels: dict[str, str] = {}  # of the GPU whose lines are read; empty = none
        self._mig = ""  # index of the MIG device whose lines are read
        self._held: list[tuple[str, str, str, float]] | None = None  # mig, path, unit, value before the uuid was read
        self._path: list[tuple[int, str]] = []

    def line(self, text: str) -> Iterator[Record]:
        """One line: a stamp, a GPU, a section or a value; anything else ends the GPU."""
        if self._labels and (field := _FIELD.match(text)):
            yield from self._field(len(field[1]), _name(field[2]), field[3])
        elif text:
            yield from self.end()
            if stamp := _STAMP.match(text):
                self._t_ns = _when(stamp[1])
            elif gpu := _GPU.match(text):
                self._labels, self._mig, self._held, self._path = {"pci": gpu[1].lower()}, "", [], []

    def end(self) -> Iterator[Record]:
        """The GPU's lines are over."""
        yield from self._release()
        self._labels = {}

    def _release(self) -> Iterator[Record]:
        held, self._held = self._held or [], None
        for one in held:
            yield from self._add(*one)

    def _add(self, mig: str, path: str, unit: str, value: float) -> Iterator[Record]:
        labels = {**self._labels, "mig": mig} if mig else self._labels
        yield from self._samples.add(path, unit, labels, self._t_ns, value)

    def _field(self, depth: int, name: str, value: str | None) -> Iterator[Record]:
        while self._path and self._path[-1][0] >= depth:
            if self._path.pop()[1] == "mig_device":
                self._mig = ""
        if value is None:
            if len(self._path) < MAX_DEPTH:
                self._path.append((depth, name))
            return
        value = value.strip()
        path = ".".join([*(section for _, section in self._path), name])
        if name == "gpu_uuid":
            self._labels["uuid"] = printable(value, 64)
            yield from self._release()
        elif path == "mig_device.index":
            self._mig = printable(value, 8)
        elif not any(word in path for word in _LEFT_OUT):
            number = _NUMBER.match(value)
            if value in _WORDS or number:
                unit = (number and number[2]) or ""
                one = (self._mig, path, unit, _WORDS[value] if number is None else float(number[1]))
                if self._held is not None and len(self._held) < MAX_HELD:
                    self._held.append(one)
                else:
                    yield from self._add(*one)


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.strip().lower()).strip("_")


def _when(text: str) -> int:
    try:
        when = datetime.strptime(text.strip(), "%a %b %d %H:%M:%S %Y")
    except ValueError:
        return 0
    return int(when.replace(tzinfo=timezone.utc).timestamp()) * 10**9
