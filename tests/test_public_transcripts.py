# SPDX-License-Identifier: Apache-2.0
"""One-liners over the published measurements, read in place as $DATA; `--rewrite` writes what they print now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_transcripts import commands_of, run

FILES = sorted((Path(__file__).parent / "transcripts" / "public").glob("*.txt"))


@pytest.mark.slow
@pytest.mark.public_data
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_public_transcript(
    path: Path, tmp_path: Path, public_data: Path, clean_env: dict[str, str], request: pytest.FixtureRequest
) -> None:
    clean_env["DATA"] = str(public_data)
    wanted = path.read_text()
    got = run(commands_of(wanted), tmp_path, clean_env).replace(str(public_data), "$DATA")
    if request.config.getoption("--rewrite"):
        path.write_text(got)
        return
    assert got == wanted
