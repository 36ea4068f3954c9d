# SPDX-License-Identifier: Apache-2.0
"""The house's rules, read from the code (DESIGN section 2): who may import whom, and what --help may load."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "ghtools"
# In import order: a room may import from rooms that stand later here.
ROOMS = ["commands", "view", "torch", "recover", "fleet", "mitigate", "locate", "detect", "source", "job", "stream"]
MACHINE = {"typer", "rich", "msgpack", "sys", "os"}
# Rooms that take and yield records or arrays, and those modules of other rooms that promise the same.
PURE_ROOMS = {"detect"}
PURE = ("source/synth*.py", "source/jsonl.py", "source/series.py", "source/lines.py", "source/batches.py",
        "source/importers.py", "view/sentence.py", "view/show.py", "view/table.py", "view/jsonl.py",
        "view/plot_data.py", "view/plot_term.py")  # fmt: skip
HEAVY = ["torch", "numpy", "scipy", "matplotlib", "cvxpy", "msgpack", "rich", "pandas", "hypothesis"]

FILES = sorted(HOUSE.rglob("*.py"))
COMMANDS = sorted(path.stem for path in (HOUSE / "commands").glob("*.py") if not path.stem.startswith("_"))


def room_of(path: Path) -> str:
    """The room a file stands in; empty for the package's own files."""
    parts = path.relative_to(HOUSE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything a file imports, inside functions too."""
    package = ["ghtools", *path.relative_to(HOUSE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_a_room_imports_only_from_rooms_below(path: Path) -> None:
    room = room_of(path)
    if not room:
        return
    assert room in ROOMS, f"{room} is no room"
    below = ROOMS[ROOMS.index(room) :]
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "ghtools" and len(parts) > 1 and parts[1] in ROOMS:
            assert parts[1] in below, f"{path}:{line} imports {name} from a room above"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_no_other_command(name: str) -> None:
    for line, imported in imports(HOUSE / "commands" / f"{name}.py"):
        parts = imported.split(".")
        if parts[:2] == ["ghtools", "commands"] and len(parts) > 2:
            assert parts[2].startswith("_"), f"{name}.py:{line} imports {imported}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_pure_rooms_touch_no_machine(path: Path) -> None:
    here = path.relative_to(HOUSE)
    pure = room_of(path) in PURE_ROOMS or any(here.match(pattern) for pattern in PURE)
    for line, name in imports(path):
        top = name.split(".")[0]
        if top == "msgpack":
            assert room_of(path) == "stream", f"{here}:{line}: only stream/ knows msgpack"
        if top == "typer":
            assert room_of(path) == "commands", f"{here}:{line}: only commands know typer"
        if pure and top in MACHINE:
            pytest.fail(f"{here}:{line} imports {name}")


def scripts() -> dict[str, str]:
    """Entry points of pyproject.toml."""
    section = re.search(r"^\[project\.scripts\]\n(.*?)^\[", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert section
    return dict(re.findall(r'^([\w-]+) = "([^"]+)"$', section[1], re.M))


def test_entry_points_are_the_command_modules() -> None:
    wanted = {f"gh-{name.rstrip('_').replace('_', '-')}": f"ghtools.commands.{name}:main" for name in COMMANDS}
    assert scripts() == wanted


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_version_load_nothing_heavy(name: str) -> None:
    code = f"""
import sys
sys.argv = ["gh-x", OPTION]
from ghtools.commands.{name} import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print("LOADED", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    for option, shown in (
        ("--help", "Usage: gh-"),
        ("--version", f"gh-{name.rstrip('_').replace('_', '-')} (ghtools) "),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("OPTION", repr(option))],
            capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout
        assert done.stdout.splitlines()[-1].split() == ["LOADED"], f"{option} loads too much"


SOURCES = [*FILES, *sorted((ROOT / "csrc").rglob("*.[ch]")), *sorted((ROOT / "tests").rglob("*.py"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_file_says_its_licence(path: Path) -> None:
    first = path.read_text().split("\n", 1)[0]
    line = "SPDX-License-Identifier: Apache-2.0"
    assert first == (f"/* {line} */" if path.suffix in (".c", ".h") else f"# {line}")
