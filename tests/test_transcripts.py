# SPDX-License-Identifier: Apache-2.0
"""Each tests/transcripts/gh-X.txt is a page's EXAMPLES and a test: `$ command` lines and what they print.

All commands of one file run in one empty directory, one after the other, by bash, stdout and stderr together; an
exit code other than 0 is shown as a line `[exit N]`. `pytest tests/test_transcripts.py --rewrite` writes what is
printed now.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def commands_of(text: str) -> list[str]:
    """The commands of a transcript; a line that ends in a backslash goes on in the next."""
    commands: list[str] = []
    more = False
    for line in text.splitlines():
        if more:
            commands[-1] += "\n" + line
        elif line.startswith("$ "):
            commands.append(line[2:])
        else:
            continue
        more = line.endswith("\\")
    return commands


def run(commands: list[str], folder: Path, env: dict[str, str]) -> str:
    """What the commands print, as a transcript."""
    text = ""
    for command in commands:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
        )  # fmt: skip
        text += f"$ {command}\n{done.stdout.decode()}"
        if done.returncode:
            text += f"[exit {done.returncode}]\n"
    return text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path, tmp_path: Path, clean_env: dict[str, str], request: pytest.FixtureRequest) -> None:
    wanted = path.read_text()
    got = run(commands_of(wanted), tmp_path, clean_env)
    if request.config.getoption("--rewrite"):
        path.write_text(got)
        return
    assert got == wanted
