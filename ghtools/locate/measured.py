# SPDX-License-Identifier: Apache-2.0
"""What a test of one device measured, in the form that the judge and the `gemm` records are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NamedTuple

UNITS = {"gemm": ("TFLOP/s", 1e12), "bandwidth": ("GB/s", 1e9)}
NAMES = {"gemm": "GEMM", "bandwidth": "memory bandwidth"}


@dataclass(frozen=True)
class Repeat:
    """One window; times in ns. What is not known is -1. The fields are the rows of csrc/tasks/tasks.h, in order."""

    t_ns: int  # when it began, since the epoch
    wall_ns: int
    cpu_ns: int  # of CPU that the threads used together
    work: int  # flops, or bytes moved
    forced: int = -1  # involuntary context switches
    waited_ns: int = -1  # on a run queue, the threads together; throttled time is in it
    throttled_ns: int = -1  # of the cgroup
    periods: int = -1  # of its quota
    held: int = -1  # ... in which it was throttled
    busy_ns: int = -1  # of CPU used on the whole host
    steal_ns: int = -1  # taken from this virtual machine by its host
    khz: int = -1  # clock of the CPU

    @property
    def rate(self) -> float:
        """Flops or bytes a second."""
        return self.work * 1e9 / self.wall_ns if self.wall_ns > 0 else 0.0


@dataclass(frozen=True)
class Measured:
    """One test of one rank or GPU. `status`: ok, skipped or failed; `why` says what happened if it is not ok."""

    rank: int
    host: str
    device: str = "cpu"  # or the UUID of a GPU
    kind: str = "cpu"  # what may be compared: the CPU's kernel, a GPU's name
    test: str = "gemm"
    dtype: str = "float32"
    size: int = 0
    threads: int = 1
    repeats: tuple[Repeat, ...] = ()
    quota: float = -1.0  # CPUs; -1 = none
    status: str = "ok"
    why: str = ""
    together: int = 1  # tests of this kind on its host at once
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """Flops or bytes a second of each repeat."""
        return [repeat.rate for repeat in self.repeats]

    @property
    def rate(self) -> float:
        """Their median; 0 if there is none."""
        return median(self.rates) if self.repeats else 0.0

    def share(self, name: str) -> float:
        """A time of the repeats as a share of the threads' wall time, mean; -1 if it is not known."""
        values = [getattr(repeat, name) for repeat in self.repeats]
        if not values or min(values) < 0:
            return -1.0
        return fmean(
            value / (repeat.wall_ns * self.threads) for value, repeat in zip(values, self.repeats, strict=True)
        )

    @property
    def throttled(self) -> float:
        """Share of the time that the cgroup was throttled, 0 to 1; -1 = not known."""
        return min(1.0, self.share("throttled_ns"))

    @property
    def waited(self) -> float:
        """Share of the time that the threads waited for a CPU, throttling apart; -1 = not known."""
        waited = self.share("waited_ns")
        return waited if waited < 0 else max(0.0, waited - max(0.0, self.throttled))

    @property
    def mhz(self) -> float:
        """Clock of the CPU; -1 = not known."""
        clocks = [repeat.khz for repeat in self.repeats if repeat.khz > 0]
        return median(clocks) / 1000 if clocks else -1.0


class Key(NamedTuple):
    """What must be equal for a measurement to be comparable with an earlier one."""

    host: str
    device: str
    kind: str
    test: str
    dtype: str
    size: int
    threads: int
    together: int


@dataclass(frozen=True)
class Past:
    """Earlier results of a device, oldest first: flops or bytes a second, and the CPU share of each (-1: no CPU)."""

    rates: tuple[float, ...]
    shares: tuple[float, ...]
    t_ns: int = 0  # of the newest


def key_of(one: Measured) -> Key:
    """Where a measurement belongs in the history."""
    return Key(one.host, one.device, one.kind, one.test, one.dtype, one.size, one.threads, one.together)
