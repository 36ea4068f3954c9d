# SPDX-License-Identifier: Apache-2.0
"""gh-validate-ring: passes and the time to schedule them, the judge, and a whole test of healthy ranks on this host.

    python tests/bench/bench_ring.py

Prints one line a figure: name, value, unit, remark. The whole test runs with its own sizes (16, 32, 64 MB, three
times, both ways); on a host with fewer CPUs than ranks its time is that of copying through the loopback.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ghtools.locate.passes import Schedule, btree, double_tree, ring, tree
from ghtools.locate.ring_fabric import Plan
from ghtools.locate.ring_judge import Exchanged, first
from ghtools.stream.framing import read_records
from ghtools.stream.records import Link
from tests.conftest import BIN


def figure(name: str, value: float, unit: str, remark: str = "") -> None:
    """One line."""
    print(f"{name:<44} {value:>10.4g} {unit:<8} {remark}", flush=True)


def best(work: Callable[[], Schedule], times: int = 3) -> tuple[float, Schedule]:
    """Least seconds of some, and the result."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        made = work()
        took.append(time.perf_counter() - began)
    return min(took), made


def schedules(n: int) -> None:
    """Passes of each topology and the time to find them."""
    kinds: dict[str, Callable[[], Schedule]] = {
        "ring": lambda: ring(n),
        "tree": lambda: tree(btree(n)),
        "both trees": lambda: double_tree(n),
    }
    for name, work in kinds.items():
        seconds, made = best(work)
        figure(f"{name}, {n} ranks", made.passes, "passes", f"scheduled in {1000 * seconds:.3g} ms")


def judged(n: int) -> None:
    """The judge over the passes of a ring."""
    random = np.random.default_rng(1)
    shape = (2, Plan().repeats, len(Plan().sizes))
    seen = [Exchanged((r, (r + 1) % n), "network", 10 + random.random(shape), step=r % 2) for r in range(n)]
    began = time.perf_counter()
    first(seen)
    figure(f"judge of a ring, {n} ranks", time.perf_counter() - began, "s")


def whole(n: int, *words: str) -> None:
    """A test as a user runs it."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [BIN / "gh-validate-ring", "--ranks", f"0-{n - 1}", "-q", *words], capture_output=True, check=False
    )
    took, after = time.perf_counter() - began, os.times()
    links = [one for one in read_records(io.BytesIO(done.stdout)) if isinstance(one, Link)]
    passes = len({one.step for one in links if one.facts["phase"] == "pass"})
    again = len({(tuple(sorted(one.ranks)), one.t_ns) for one in links if one.facts["phase"] != "pass"})
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    remark = f"{passes} passes, {again} exchanges more, exit {done.returncode}, {cpu:.3g} s of CPU outside the ranks"
    figure(f"whole test, {n} ranks {' '.join(words)}".rstrip(), took, "s", remark)


def main() -> None:
    """All of it."""
    for n in (16, 1024, 100_000):
        schedules(n)
    for n in (1024, 16_384):
        judged(n)
    for n in (4, 8, 16):
        whole(n)
    whole(16, "--topology", "both")


if __name__ == "__main__":
    main()
