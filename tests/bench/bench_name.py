# SPDX-License-Identifier: Apache-2.0
"""From the moment a rank gets a CPU quota to its name: real 4-rank jobs, as gh-run's chain times them.

Prints `name value unit comparison`, one figure a line. The goal is issue 4's: named within 10 iterations of the onset.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.system.profile_bed import judge, record

GOAL = "goal 10 iterations after the onset"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=["dp4", "tp2dp2", "pp2dp2"])
    for name in parser.parse_args().scenarios:
        with tempfile.TemporaryDirectory() as folder:
            found = judge(record(name, Path(folder)))
        before, after = found.iter_ms
        beside = f"{found.verdict}; onset confirmed after {found.noticed}; {before:.0f} -> {after:.0f} ms an iteration"
        print(f"name_{name} {found.iterations} iterations {GOAL}; {beside}", flush=True)
        print(f"name_{name}_time {found.iterations * after / 1000:.2f} s {GOAL}; {found.verdict}", flush=True)


if __name__ == "__main__":
    main()
