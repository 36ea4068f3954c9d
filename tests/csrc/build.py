# SPDX-License-Identifier: Apache-2.0
"""Compiling the C parts of tests: warnings are errors, everything goes into a folder of the test run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.conftest import ROOT

CSRC = ROOT / "csrc"
HERE = Path(__file__).resolve().parent
SHIM_SOURCES = [*sorted((CSRC / "shim").glob("*.c")), *sorted((CSRC / "tasks").glob("*.c"))]
WARN = ["-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fvisibility=hidden", "-fexceptions", "-g"]


def cc(out: Path, sources: list[Path], *flags: str) -> Path:
    """Compile and link `sources` into `out` (by its name a library or a program)."""
    kind = ["-shared", "-fPIC"] if ".so" in out.name else []
    command = ["cc", *WARN, *kind, f"-I{CSRC}", "-o", str(out), *map(str, sources), *flags, "-ldl", "-lpthread", "-lm"]
    subprocess.run(command, check=True)
    return out
