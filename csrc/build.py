# SPDX-License-Identifier: Apache-2.0
"""Build the two native libraries: the preload shim and what Python calls.

Used by hand (`python csrc/build.py`, `make shim`) and by the package's own build (hatchling runs
`BuildHook`), so that `pip install .` gives working commands. Needs a C compiler and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "ghtools" / "_lib"
FLAGS = [
    "-std=gnu11", "-O3", "-g", "-Wall", "-Wextra", "-Wshadow", "-fvisibility=hidden", "-fPIC", "-shared",
    "-fno-semantic-interposition", "-Wno-psabi",
    "-fexceptions",  # C++ exceptions pass through the hooks, which undo their depth count
    f"-I{HERE}",
]  # fmt: skip
# library -> (directories of its sources, libraries it links with)
LIBRARIES = {
    "libghtools_shim.so": (["shim", "tasks"], ["-ldl", "-lpthread", "-lm"]),
    "libghtools_native.so": (["native", "tasks"], ["-lm", "-lpthread"]),
}


def compiler() -> list[str]:
    """The C compiler to use: $CC, else the first of cc, gcc, clang on PATH."""
    if cc := os.environ.get("CC"):
        return cc.split()
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    sys.exit("cannot build ghtools: no C compiler was found; try `apt-get install gcc`")


def version() -> str:
    """The version as ghtools/__init__.py has it, without importing ghtools."""
    text = (HERE.parent / "ghtools" / "__init__.py").read_text()
    return text.split('__version__ = "')[1].split('"')[0]


def build(extra: list[str] | None = None, out: Path = OUT) -> list[Path]:
    """Compile each library into `out`, replacing it atomically (a running job may have it mapped)."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name, (folders, libs) in LIBRARIES.items():
        sources = [str(p) for folder in folders for p in sorted((HERE / folder).glob("*.c"))]
        temporary = out / f".{name}.{os.getpid()}"
        subprocess.run(
            [
                *compiler(),
                *FLAGS,
                f'-DGH_VERSION="{version()}"',
                *(extra or []),
                f"-Wl,-soname,{name}",
                "-o",
                str(temporary),
                *sources,
                *libs,
            ],
            check=True,
        )
        temporary.replace(out / name)
        made.append(out / name)
    return made


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, outside a package build
    pass
else:

    class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
        """hatchling's hook: build the libraries and put them into the wheel."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Called by hatchling before it packs; `version` is "standard" or "editable"."""
            for path in build():
                build_data["artifacts"].append(f"/{path.relative_to(HERE.parent)}")
            build_data["pure_python"] = False
            # The libraries are plain C loaded by path: any Python 3 of this platform can use the wheel.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    for library in build(sys.argv[1:]):
        print(library.relative_to(HERE.parent))
