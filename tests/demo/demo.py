# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a real 4-rank torch job, started by an ordinary torchrun command under gh-run, slowed for real.

Rank 2 gets a CPU quota in the middle of the job, and gets it back later. The exit code says whether what gh-run
found is what was done: one onset and one relief, each within 12 iterations, one part that is slow, which is rank 2 by
its compute, named within 10 iterations of the confirmed onset, and nothing else. A test in the job may confirm it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ghtools.job.paths import jobs  # noqa: E402 (the tree of this script, not an installed one)
from ghtools.stream.framing import sections  # noqa: E402
from ghtools.stream.records import Alert, Change, Finding, Iters, Record, Suspect  # noqa: E402
from tests.bed.throttle import Throttle  # noqa: E402

STEPS, SLOW_AT, WELL_AT = 200, 100, 140
# Batches that take a while to come leave the CPUs some air: what else runs on the machine then slows the job little,
# and what is found is what was done.
JOB = ("--batch", "8", "--load-ms", "120")
RANKS, SLOW_RANK, SHARE = 4, 2, 0.04
WITHIN = 12  # iterations
NAMED_WITHIN = 10  # iterations of the confirmed onset


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def pid_of_rank(job: str, rank: int) -> int:
    """The process of a rank, from the ring it has made."""
    for found in jobs():
        if found.job == job:
            return next(ring.pid for ring in found.rings if ring.rank == rank)
    raise SystemExit(f"demo: job {job} has no ring")


def run(out: Path) -> tuple[int, dict[str, int]]:
    """Run the job under gh-run and slow it; exit code and the times (ns) at which the limit was put and lifted."""
    job = secrets.token_hex(2)
    train = ["torchrun", "--nproc-per-node", str(RANKS), str(ROOT / "tests/demo/train.py"), "--steps", str(STEPS)]
    train += JOB
    watch = ["gh-run", "--job", job, "--out", str(out / "demo.ght"), "--plot", str(out / "demo.png"), "--"]
    print("$", " ".join([*watch[:1], *watch[3:], *train]), flush=True)
    process = subprocess.Popen(
        [*watch, *train], stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None
    throttle: Throttle | None = None
    times: dict[str, int] = {}
    try:
        for line in process.stdout:  # the job's own output tells how far it is
            print(line, end="", flush=True)
            step = int(line.split()[1]) if line.startswith("step ") else 0
            if step >= SLOW_AT and throttle is None:
                throttle = Throttle(pid_of_rank(job, SLOW_RANK), SHARE)
                times["slow"] = time.time_ns()
                say(f"about iteration {step}: rank {SLOW_RANK} is slowed ({throttle.how})")
            elif step >= WELL_AT and throttle is not None and "well" not in times:
                throttle.lift()
                times["well"] = time.time_ns()
                say(f"about iteration {step}: the limit is lifted")
    finally:
        if throttle is not None:
            throttle.lift()
    return process.wait(), times


def judge(path: Path, times: dict[str, int]) -> list[str]:
    """What is wrong with what was found; empty if it is what was done."""
    records: list[Record] = []
    with open(path, "rb") as file:
        for section in sections(file, lambda error: None):
            records += section
    begins = sorted(int(t) for r in records if isinstance(r, Iters) and r.rank == 0 for t in r.t_ns)
    found = [r for r in records if isinstance(r, Change) and r.level == "job" and r.stage == "confirmed"]
    found = [change for change in found if change.verdict != "warm-up"]  # which alerts nobody
    kinds = [change.type for change in found]
    if kinds[:1] != ["onset"] or kinds.count("onset") > 1 or "relief" not in kinds:
        return [f"one onset and one relief were to be found; it was {', '.join(kinds) or 'nothing'}"]
    # Where other work holds the machine the pace may change in smaller steps, too: the relief is the one at the lift.
    reliefs = [change for change in found if change.type == "relief"]
    found = [found[0], min(reliefs, key=lambda change: abs(change.onset_t_ns - times["well"]))]
    wrong = []
    for change, name in zip(found, ("slow", "well"), strict=True):
        late = sum(times[name] <= t < change.said_t_ns for t in begins)
        off = abs(sum(t < change.onset_t_ns for t in begins) - sum(t < times[name] for t in begins))
        say(f"{change.type}: placed within {off} iterations of the injection, confirmed {late} iterations after it")
        if late > WITHIN or change.said_t_ns < times[name]:
            wrong.append(f"the {change.type} was confirmed {late} iterations after the injection, over {WITHIN}")
    return wrong + judge_names(records, times, found[0], begins)


def judge_names(records: list[Record], times: dict[str, int], onset: Change, begins: list[int]) -> list[str]:
    """What is wrong with who was named: the slow rank and nobody else, in one alert, soon."""
    named = [r for r in records if isinstance(r, Suspect) and r.verdict == "attributed"]
    parts = [(r.what, r.ranks, r.cause) for r in named]
    # More iterations may move the cause: an iteration of this job is nearly one gap, and so is a late input.
    if parts[:1] != [("rank", [SLOW_RANK], "compute")] or any(part[:2] != parts[0][:2] for part in parts):
        return [f"rank {SLOW_RANK} was to be named for its compute, once; it was {parts or 'nobody'}"]
    said = [r.text for r in records if isinstance(r, Alert) and r.state == "named"]
    if not said or not all(f"rank {SLOW_RANK} " in text for text in said):
        return [f"alerts were to name rank {SLOW_RANK} and nobody else; they were {said or 'none'}"]
    tested = [r for r in records if isinstance(r, Finding)]
    if any(r.verdict == "confirmed" and r.ranks != [SLOW_RANK] for r in tested) or len(said) > 2:
        return [f"a test was to confirm rank {SLOW_RANK} alone, once; it was {[r.text for r in tested]}"]
    for finding in tested:
        say(f"the job was held for a test: {finding.verdict}: {finding.text}")
    # Both as gh-run heard them: the newest iteration in the stream before each.
    heard = {kind: newest_before(records, kind) for kind in ("onset", "name")}
    after = heard["name"] - heard["onset"]
    after_onset = heard["name"] + 1 - sum(t < times["slow"] for t in begins)
    ratio = named[0].ratio
    say(f"rank {SLOW_RANK} named {after_onset} iterations after the injection, {after} after the onset was confirmed")
    say(f"its compute was found to take {ratio:.1f} times that of its peers, the job {onset.ratio:.1f} times as long")
    late = f"rank {SLOW_RANK} was named {after} iterations after the onset was confirmed, over {NAMED_WITHIN}"
    return [late] if after > NAMED_WITHIN else []


def newest_before(records: list[Record], kind: str) -> int:
    """Iterations of rank 0 that the stream has told before the confirmed onset, or before the slow rank's name."""
    count = 0
    for r in records:
        if isinstance(r, Iters) and r.rank == 0:
            count += len(r.t_ns)
        onset = isinstance(r, Change) and r.level == "job" and (r.type, r.stage) == ("onset", "confirmed")
        if (kind == "onset" and onset) or (kind == "name" and isinstance(r, Alert) and r.state == "named"):
            return count
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    code, times = run(out)
    if code or len(times) != 2:
        say(f"the job ended with exit {code}" if code else "the job ended before the limit was put and lifted")
        return 1
    wrong = judge(out / "demo.ght", times)
    for line in wrong:
        say(line)
    if not (out / "demo.png").exists():
        wrong.append("no picture")
    say("what was found is what was done" if not wrong else "what was found is NOT what was done")
    print(f"picture: {out / 'demo.png'}\nstream:  {out / 'demo.ght'}  (gh-show {out / 'demo.ght'} --kinds change)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
