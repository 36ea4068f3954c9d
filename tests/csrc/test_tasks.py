# SPDX-License-Identifier: Apache-2.0
"""The CPU tests that run inside a job, under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .build import CSRC, HERE, cc

SOURCES = [HERE / "tasks_run.c", *sorted((CSRC / "tasks").glob("*.c"))]


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_cpu_tests_under_the_sanitizers(tmp_path: Path, sanitizer: str) -> None:
    program = cc(tmp_path / "tasks", SOURCES, "-O2", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    done = subprocess.run([program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 3 * (2 * 8 + 1)  # best and plain at each size, and the triad
