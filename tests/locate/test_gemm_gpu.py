# SPDX-License-Identifier: Apache-2.0
"""GPU tests: what NVML says, with a fake of its module (no driver can exist here), and the real thing where there is.

The fake has the names of nvidia-ml-py that are called; what a real driver answers is not known from it.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ghtools.locate.gemm_judge import judge
from ghtools.locate.gemm_test import Plan, records_of
from ghtools.locate.measured import Measured, Repeat
from ghtools.locate.nvml_facts import Nvml, throttle_words


def test_idle_and_the_software_power_cap_explain_nothing() -> None:
    assert throttle_words(0) == throttle_words(0x1 | 0x4) == []
    assert throttle_words(0x8 | 0x40 | 0x4) == ["hardware slow-down", "hardware thermal slow-down"]
    assert throttle_words(0x1000) == ["unknown reasons 0x1000"]


def fake_nvml(**more: Any) -> ModuleType:
    """A module pynvml with one GPU."""
    module = ModuleType("pynvml")

    def refuse(*_: object) -> object:
        raise RuntimeError("not supported")

    values: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1410, 2: 2619}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x40,
        "nvmlDeviceGetTemperature": lambda handle, kind: 88,
        "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
        "nvmlDeviceGetEnforcedPowerLimit": refuse,
        "nvmlDeviceGetMigMode": lambda handle: (0, 0),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=os.getpid())],
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=b"0000:01:00.0"),
        **more,
    }
    vars(module).update(values)
    return module


def test_facts_are_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    nvml = Nvml()
    assert nvml.why_not("GPU-1") == ""
    assert nvml.facts("GPU-1") == {
        "sm_mhz": 1410, "sm_max_mhz": 1980, "memory_mhz": 2619, "throttle": ["hardware thermal slow-down"],
        "temperature_c": 88, "power_w": 350.5, "pci": "0000:01:00.0",
    }  # fmt: skip


def test_what_must_not_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetMigMode=lambda handle: (1, 1)))
    assert Nvml().why_not("GPU-1") == "MIG is on"
    others = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)]
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetComputeRunningProcesses=lambda handle: others))
    assert Nvml().why_not("GPU-1") == "it is in use by process 1"


def test_without_a_driver_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise RuntimeError("Driver Not Loaded")

    for module in (fake_nvml(nvmlInit=no_driver), None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert Nvml().facts("GPU-1") == {} and Nvml().why_not("GPU-1") == ""


def test_a_gpu_is_judged_with_what_nvml_says() -> None:
    def gpu(rank: int, rate: float, dtype: str, **facts: Any) -> Measured:
        repeats = tuple(Repeat(0, 10**9, -1, int(rate * 1e12) + number) for number in range(3))
        return Measured(rank, "a", f"GPU-{rank}", "H", dtype=dtype, size=8192, repeats=repeats, facts=facts, together=4)

    all_ = [gpu(rank, 700, "bfloat16") for rank in range(4)]
    all_[3] = gpu(3, 350, "bfloat16", throttle=["hardware thermal slow-down"])
    all_ += [gpu(rank, 60, "float32") for rank in range(4)]
    finding = judge(all_, {}, 0)[0]
    assert finding.what == "device" and finding.ranks == [3] and finding.ratio == pytest.approx(2)
    assert finding.text == (
        "rank 3: bfloat16 GEMM 2x slower than its peers, the GPU says it is throttled: hardware thermal slow-down"
    )
    (record, *_) = records_of(all_[3], 0)
    assert record.rate == pytest.approx(350) and record.device == "GPU-3" and "cpu_share" not in record.facts


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    from ghtools.locate.gemm_gpu import measure_gpus

    found = measure_gpus([0], Plan(edge=2048, window_ms=50))
    done = {(one.test, one.dtype) for one in found if one.status == "ok"}
    assert {("gemm", "float32"), ("gemm", "float16"), ("gemm", "bfloat16"), ("bandwidth", "int32")} <= done, found
    assert all(len(one.repeats) == 3 and one.rate > 0 for one in found if one.status == "ok")
