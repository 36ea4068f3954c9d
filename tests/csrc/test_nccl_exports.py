# SPDX-License-Identifier: Apache-2.0
"""The list of hooked functions against the exported functions of the real library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ghtools.job.native import SHIM
from tests.csrc.build import CSRC

EXPORTS = CSRC / "nccl_exports.txt"


def exported() -> set[str]:
    """Names (without "nccl") in the recorded list."""
    return {
        line.strip().removeprefix("nccl")
        for line in EXPORTS.read_text().splitlines()
        if line.strip() and not line.startswith("#")
    }


def listed(macro: str) -> set[str]:
    """Names in one macro list of nccl_calls.h."""
    text = (CSRC / "nccl_calls.h").read_text()
    body = re.split(rf"#define {macro}\(\w\)", text)[1].split("\n#define")[0].split("\n/*")[0]
    return set(re.findall(r"\b[CN]\((\w+)", body))


def hooked() -> set[str]:
    names: set[str] = set()
    for macro in ("GH_NCCL_DATA_CALLS", "GH_NCCL_SIGNALS", "GH_NCCL_GROUPS", "GH_NCCL_COMMS"):
        names |= listed(macro)
    return names


def dynamic_names(library: Path) -> set[str]:
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    return {line.split()[-1].split("@")[0] for line in out.stdout.splitlines()}


def test_every_hooked_function_is_exported_by_nccl() -> None:
    assert hooked() <= exported()


def test_every_collective_p2p_group_and_communicator_function_is_hooked_or_left_alone() -> None:
    of_these = re.compile(r"^(All|Bcast|Broadcast|Reduce(?!d)|Gather|Scatter|Send|Recv|Put|Signal|Wait|Group|Comm)\w*")
    wanted = {name for name in exported() if of_these.match(name)}
    assert wanted == hooked() | listed("GH_NCCL_COMMS_LEFT_ALONE")
    assert not hooked() & listed("GH_NCCL_COMMS_LEFT_ALONE")


def test_the_shim_exports_the_hooks_and_nothing_else_of_nccl() -> None:
    ours = {name.removeprefix("nccl") for name in dynamic_names(SHIM) if name.startswith("nccl")}
    assert ours == hooked() | listed("GH_RCCL_DATA_CALLS")


def test_the_shim_exports_no_stray_name() -> None:
    stray = [n for n in dynamic_names(SHIM) if not n.startswith(("nccl", "_ZN4c10d"))]
    assert stray == ["gh_shim_abi"]


@pytest.mark.download
@pytest.mark.skipif(os.environ.get("GHT_DOWNLOAD") != "1", reason="asks a registry only if GHT_DOWNLOAD=1")
def test_recorded_list_is_that_of_the_wheel(tmp_path: Path) -> None:
    version = EXPORTS.read_text().split("nvidia-nccl-cu12 ")[1].split()[0]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, f"nvidia-nccl-cu12=={version}"],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    library = zipfile.ZipFile(wheel).extract("nvidia/nccl/lib/libnccl.so.2", tmp_path)
    real = {n.removeprefix("nccl") for n in dynamic_names(Path(library)) if n.startswith("nccl")}
    assert real == exported()
