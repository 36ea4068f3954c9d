# SPDX-License-Identifier: Apache-2.0
"""Compiling the C parts of tests: warnings are errors, libraries and programs go into a folder of the test run."""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

from tests.conftest import ROOT

CSRC = ROOT / "csrc"
HERE = Path(__file__).resolve().parent
SHIM_SOURCES = [*sorted((CSRC / "shim").glob("*.c")), *sorted((CSRC / "tasks").glob("*.c"))]
WARN = ["-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fvisibility=hidden", "-fexceptions", "-g"]


OBJECTS = ROOT / "build" / "test-objects"


def cc(out: Path, sources: list[Path], *flags: str) -> Path:
    """Compile and link `sources`, and those among `flags`, into `out` (by its name a library or a program)."""
    sources = sources + [Path(one) for one in flags if _is_source(one)]
    flags = tuple(one for one in flags if not _is_source(one))
    kind = ["-shared", "-fPIC"] if ".so" in out.name else []
    compiling = [flag for flag in flags if flag.startswith("-") and not flag.startswith(("-Wl,", "-l", "-L"))]
    objects = [_object(one, [*kind[1:], *compiling]) if one.suffix == ".c" else one for one in sources]
    command = ["cc", *WARN, *kind, f"-I{CSRC}", "-o", str(out), *map(str, objects), *flags, "-ldl", "-lpthread", "-lm"]
    subprocess.run(command, check=True)
    return out


def _is_source(word: str) -> bool:
    return word.endswith(".c") and not word.startswith("-")


@cache
def _headers() -> str:
    """What all headers hold, as one number."""
    digest = hashlib.sha256(subprocess.run(["cc", "--version"], check=True, capture_output=True).stdout)
    for path in sorted([*CSRC.rglob("*.h"), *HERE.glob("*.h"), *ROOT.glob("tests/bench/*.h")]):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _object(source: Path, flags: list[str]) -> Path:
    """The object file of a source, made once for the same text and flags: many tests build the same shim."""
    words = "\0".join([str(source), source.read_text(), _headers(), *WARN, *flags])
    made = OBJECTS / f"{source.stem}-{hashlib.sha256(words.encode()).hexdigest()[:24]}.o"
    if not made.exists():
        OBJECTS.mkdir(parents=True, exist_ok=True)
        part = made.with_name(f".{made.stem}-{os.getpid()}.o")
        subprocess.run(["cc", *WARN, *flags, f"-I{CSRC}", "-c", "-o", str(part), str(source)], check=True)
        part.replace(made)  # another process may have made it meanwhile: it is the same
    return made
