# SPDX-License-Identifier: Apache-2.0
"""The test library with NCCL's ABI in its several guises, and programs that use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ghtools.job.native import SHIM
from tests.csrc.build import HERE, cc


@dataclass(frozen=True)
class Fakes:
    """What was built, by how it is found."""

    folder: Path
    library: Path  # libnccl.so.2, with pnccl twins
    driver: Path  # a program linked with it
    by_name: Path  # a library that needs libnccl.so.2
    by_scan: Path  # a library that needs the same under another name, without twins
    static_open: Path  # a library with NCCL inside, its symbols exported
    static_hidden: Path  # a library with NCCL inside, its symbols hidden


def build_fakes(folder: Path) -> Fakes:
    """Build everything into `folder`."""
    fake, driver = HERE / "fakenccl.c", HERE / "driver.c"
    rpath = f"-Wl,-rpath,{folder}"
    library = cc(folder / "libnccl.so.2", [fake], "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2")
    other = cc(folder / "libotherccl.so", [fake], "-Wl,-soname,libotherccl.so")
    return Fakes(
        folder,
        library,
        cc(folder / "driver", [driver, library], "-DMAIN", rpath),
        cc(folder / "libby_name.so", [driver, library], rpath),
        cc(folder / "libby_scan.so", [driver, other], rpath),
        cc(folder / "libstatic_open.so", [driver, fake]),
        cc(folder / "libstatic_hidden.so", [driver, fake], "-DHIDDEN"),
    )


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    """Everything built from fakenccl.c and driver.c."""
    return build_fakes(tmp_path_factory.mktemp("fakes"))


@pytest.fixture
def shim_env(clean_env: dict[str, str]) -> dict[str, str]:
    """Environment of a rank 0 under the shim, job `t`, rings in a folder of the test's own."""
    return {**clean_env, "LD_PRELOAD": str(SHIM), "GHT_JOB": "t", "RANK": "0"}
