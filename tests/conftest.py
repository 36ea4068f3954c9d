# SPDX-License-Identifier: Apache-2.0
"""What all tests share: where things are, and the option that rewrites transcripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent  # not resolved: a venv's python is a link

# Tests do not time: a busy machine is no fault of what is tested.
settings.register_profile("ghtools", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ghtools")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what the transcripts' commands print now")


@pytest.fixture
def public_data() -> Path:
    """Folder of the published measurements; the test is skipped where it is absent."""
    folder = Path(os.environ.get("GHT_PUBLIC_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the published measurements are not at {folder} (set GHT_PUBLIC_DATA)")
    return folder


@pytest.fixture
def clean_env(tmp_path: Path) -> dict[str, str]:
    """An environment for commands: ghtools first on PATH, rings in a directory of the test's own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GHT_", "LD_PRELOAD"))}
    env["PATH"] = f"{BIN}:{env['PATH']}"
    env["GHT_DIR"] = str(tmp_path / "rings")
    env["TZ"] = "UTC"
    env["COLUMNS"] = "100"
    env["NO_COLOR"] = "1"
    env["OMP_NUM_THREADS"] = "1"
    return env
