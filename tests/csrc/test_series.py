# SPDX-License-Identifier: Apache-2.0
"""gh-bocd's hot path under the sanitizers, and built without the vector units of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from .build import CSRC, HERE, cc

SOURCES = [HERE / "series_fuzz.c", *(CSRC / "native" / name for name in ("bocd.c", "series.c", "compare.c"))]
QUIET = ("-Wno-psabi", "-lm")


def run(program: Path, *words: str) -> str:
    return subprocess.run([program, *words], check=True, capture_output=True, text=True, timeout=120).stdout


def test_random_and_damaged_states_under_the_sanitizers(tmp_path: Path) -> None:
    flags = ("-O2", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *QUIET)
    program = cc(tmp_path / "fuzz", SOURCES, *flags)
    for seed in range(1, 5):
        assert int(run(program, str(seed))) > 100  # most states, the damaged ones too, went through


def test_builds_agree(tmp_path: Path) -> None:
    best = np.fromstring(run(cc(tmp_path / "best", SOURCES, "-O3", *QUIET)), sep=" ")
    plain = np.fromstring(run(cc(tmp_path / "plain", SOURCES, "-O3", "-DGH_PLAIN", *QUIET)), sep=" ")
    assert len(best) == 300 * 33
    assert np.abs(best - plain).max() < 1e-4
    assert np.allclose(best.reshape(300, 33)[:, 0], 0.001)
