# SPDX-License-Identifier: Apache-2.0
"""What NVML says of a GPU: the facts that explain a slow one. Needs the package nvidia-ml-py; without it, nothing.

`throttle_words` was tested; the rest needs a GPU and was not run on one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# nvml.h, nvmlClocksThrottleReason*. Idle (1) and the software power cap (4) are how a GPU lives, and explain nothing.
THROTTLE_BITS = {
    0x2: "application clocks set",
    0x8: "hardware slow-down",
    0x10: "sync boost",
    0x20: "software thermal slow-down",
    0x40: "hardware thermal slow-down",
    0x80: "hardware power brake",
    0x100: "display clocks set",
}


def throttle_words(mask: int) -> list[str]:
    """The reasons in NVML's bit mask that matter, in words; a bit that is not known is given as a number."""
    known = sum(THROTTLE_BITS) | 0x1 | 0x4
    words = [word for bit, word in THROTTLE_BITS.items() if mask & bit]
    return words + ([f"unknown reasons {mask & ~known:#x}"] if mask & ~known else [])


class Nvml:
    """NVML, or nothing if it is not there: every question then has no answer."""

    def __init__(self) -> None:
        self._lib: Any = None
        with suppress(Exception):  # pynvml has an error class of its own for each fault
            import pynvml

            pynvml.nvmlInit()
            self._lib = pynvml

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """An answer, or None: what one driver or card cannot tell is no reason to fail."""
        with suppress(Exception):
            return question(self._lib)
        return None

    def why_not(self, uuid: str) -> str:
        """Why a GPU must not be tested: MIG, or processes of others on it; empty if it may."""
        if self._lib is None:
            return ""
        handle = self._handle(uuid)
        mig = self._ask(lambda lib: lib.nvmlDeviceGetMigMode(handle)[0])
        if mig:
            return "MIG is on"
        others = self._ask(lambda lib: lib.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        pids = [process.pid for process in others if process.pid != os.getpid()]
        return f"it is in use by process {pids[0]}" if pids else ""

    def facts(self, uuid: str) -> dict[str, Any]:
        """Clocks in MHz, throttle reasons, temperature in deg C, power in W, ECC errors since the last reset."""
        if self._lib is None:
            return {}
        handle = self._handle(uuid)
        questions: dict[str, Callable[[Any], Any]] = {
            "sm_mhz": lambda lib: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM),
            "sm_max_mhz": lambda lib: lib.nvmlDeviceGetMaxClockInfo(handle, lib.NVML_CLOCK_SM),
            "memory_mhz": lambda lib: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM),
            "throttle": lambda lib: throttle_words(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            "temperature_c": lambda lib: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU),
            "power_w": lambda lib: lib.nvmlDeviceGetPowerUsage(handle) / 1000,
            "power_limit_w": lambda lib: lib.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "ecc_uncorrected": lambda lib: lib.nvmlDeviceGetTotalEccErrors(
                handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC
            ),
            "ecc_corrected": lambda lib: lib.nvmlDeviceGetTotalEccErrors(
                handle, lib.NVML_MEMORY_ERROR_TYPE_CORRECTED, lib.NVML_VOLATILE_ECC
            ),
            "pci": lambda lib: lib.nvmlDeviceGetPciInfo(handle).busId,
        }
        answers = {name: self._ask(question) for name, question in questions.items()}
        return {
            name: value.decode(errors="replace") if isinstance(value, bytes) else value
            for name, value in answers.items()
            if value is not None
        }

    def _handle(self, uuid: str) -> Any:
        return self._ask(lambda lib: lib.nvmlDeviceGetHandleByUUID(uuid))
