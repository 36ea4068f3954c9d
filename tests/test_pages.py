# SPDX-License-Identifier: Apache-2.0
"""The pages and the README's table are what the commands say, and the pages are sound roff."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ghtools.commands import _man
from tests.conftest import ROOT

PAGES = sorted((ROOT / "man").glob("*.[17]"))


def test_pages_and_readme_are_true() -> None:
    said: list[str] = []
    assert _man.main(["--check", str(ROOT / "man"), str(ROOT / "README.md")], said.append) == 0, said


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_man_reads_the_page_without_a_warning(path: Path) -> None:
    if not shutil.which("man"):
        pytest.skip("man is not installed")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("path", [p for p in PAGES if p.suffix == ".1"], ids=lambda path: path.name)
def test_every_page_has_its_sections(path: Path) -> None:
    text = path.read_text()
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert f".SH {section}\n" in text
