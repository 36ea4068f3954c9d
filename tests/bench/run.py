# SPDX-License-Identifier: Apache-2.0
"""`make bench`: every benchmark, one after another. Each prints `name value unit comparison`, one figure a line.

Machines are shared and noisy: compare within one run, and the peer's figure of the same run, not between runs.
`python tests/bench/run.py shim bocd` runs only those.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run them; the number that failed."""
    wanted = sys.argv[1:]
    failed = 0
    for script in sorted(HERE.glob("bench_*.py")):
        name = script.stem.removeprefix("bench_")
        if wanted and name not in wanted:
            continue
        print(f"# {name}", flush=True)
        failed += subprocess.run([sys.executable, str(script)], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
