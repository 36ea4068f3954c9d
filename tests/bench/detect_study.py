# SPDX-License-Identifier: Apache-2.0
"""The detector's studies; writes tests/bench/results/*.md (`make bench-detect`).

The seed differs from those that the detector was tuned on (20261129 in detector_table.py, and 4242, of which series
that went wrong were looked at), and the series are of other kinds than populations.py has, but for the part
`published`, which measures those kinds on this seed. The part `public` reads measurements that were all looked at while
the detector was made; none of them is held out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.bench import detect_study_synthetic as synthetic
from tests.bench import detect_study_text as text

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("GHT_PUBLIC_DATA") or ROOT.parent / "shared" / "data")
Part = Callable[[synthetic.Sizes, ProcessPoolExecutor, Callable[[str], None]], str]


def _public(sizes: synthetic.Sizes, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> str:
    from tests.bench.detect_study_public import public

    return public(DATA, say)


def _peers(sizes: synthetic.Sizes, pool: ProcessPoolExecutor, say: Callable[[str], None]) -> str:
    from tests.bench.detect_study_peers import peers

    return peers(sizes, say)


PARTS: dict[str, tuple[Part, str, str]] = {
    "paper": (
        synthetic.paper,
        "The paper's populations",
        "As many jobs and faults as in Tables 3 and 4 of the GREYHOUND paper (times the replicates), with synthetic "
        "noise: one of eight kinds a job. How long a fault lasts and what it costs are drawn from curves read from the "
        "paper's Figure 1. These are not the paper's traces: its figures (accuracy 100 and 99.1, false positives 0, "
        "false negatives 0 and 2.3) are not comparable. A job is right if its fault is confirmed while it lasts or "
        "within 60 iterations after, and nothing else is.",
    ),
    "hard": (synthetic.hard, "Difficult kinds", "Steps under each noise, and what is easily mistaken for one."),
    "quiet": (synthetic.quiet, "Quiet series", "Nothing happens in 1,000 iterations."),
    "published": (
        synthetic.published,
        "The kinds of ALGORITHMS.md section 1.5",
        "Re-measured on this study's seed, beside the prototype's figures on its own held-out seed.",
    ),
    "public": (
        _public,
        "Public series",
        "Labels marked derived were read off the numbers; none is held out, all were looked at while tuning.",
    ),
    "peers": (_peers, "Peers", "The same series through other detectors, each as its own documentation uses it."),
}


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="comma list of " + ", ".join(PARTS))
    parser.add_argument("--series", type=int, default=500, help="series of each difficult kind; in full 2000")
    parser.add_argument("--quiet", type=int, default=10_000, help="quiet series at CV 2 %%")
    parser.add_argument("--replicates", type=int, default=5, help="times the paper's number of jobs; in full 10")
    parser.add_argument("--seed", type=int, default=9001)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--one", default="", metavar="KIND:N,N", help="explain single series of a kind instead")
    options = parser.parse_args()
    sizes = synthetic.Sizes(
        options.series, options.quiet, options.replicates, options.seed, options.jobs, DATA / "greyhound-figures"
    )
    if options.one:
        kind, _, numbers = options.one.rpartition(":")
        print(synthetic.explain(kind, [int(word) for word in numbers.split(",")], sizes))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    command = "python -m tests.bench.detect_study " + " ".join(sys.argv[1:])
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in options.parts.split(","):
            if name in ("paper", "public") and not DATA.is_dir():
                print(f"{name}: skipped, the published measurements are not at {DATA}", file=sys.stderr)
                continue
            part, title, about = PARTS[name]
            began = time.perf_counter()
            body = part(sizes, pool, lambda line, name=name: print(f"{name}: {line}", file=sys.stderr, flush=True))
            wall = time.perf_counter() - began
            head = text.header(title, command.strip(), options.seed, wall, about)
            (options.out / f"{name}.md").write_text(f"{head}\n{body}\n")
            print(f"{name}: wrote {options.out / name}.md in {wall:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
