# SPDX-License-Identifier: Apache-2.0
"""The published series, read in place through gh-import's importers, against the right answers of the data's README."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.detect.detector import Detector
from ghtools.detect.labels import Label
from ghtools.detect.score import Tolerance, score
from ghtools.detect.watch import Settings
from ghtools.source.importers import File, Options, read
from ghtools.stream.records import Change, Head, Iters
from tests.bench import detect_study_text as text

MARGIN = 5  # TCPD's


@dataclass(frozen=True)
class Known:
    """A file and what is right for it. Labels are iterations, or minutes where `minutes` is set."""

    path: str
    truth: str  # authors, derived, or control (nothing is there)
    labels: tuple[Label, ...] = ()
    minutes: bool = False
    options: Options = Options()
    format: str = "auto"
    schedule: tuple[int, ...] = ()
    note: str = ""


def _pipemorph(folder: Path) -> tuple[Label, ...]:
    """The injections; the slow-down shows 2 iterations after each label."""
    lines = [line.split(";") for line in (folder / "large-scale.trace").read_text().split()]
    marks = [(int(line[0]), float(line[2])) for line in lines]
    ends = dict(zip((at for at, _ in marks), (at for at, _ in marks[1:]), strict=False))
    made = [Label(at + 2, ends[at] + 2) for at, delay in marks if 0 < delay < 1]
    return (Label(0, 6, "warm-up"), *made, *(Label(at, at + 20, "restart") for at, delay in marks if delay > 1))


def known(data: Path) -> list[Known]:
    """All labelled series."""
    golden, nano = "megatron-golden/", "nanogpt-steps/"
    rate = Options(column="iters_per_s", unit="it/s", more={"time": "time_min:min"})
    planned = (Label(710, kind="planned"), Label(1415, kind="planned"))
    return [
        Known(golden + "gpt3_15b_8t_release.h100.json", "derived",
              (Label(27100, 35700, "drift", ratio=1.063, within=6000),)),
        Known(golden + "gpt3_weekly_tp2_pp2.gb200.json", "derived", (Label(214, 244), Label(1407, 1426))),
        Known(golden + "nemotron3_super.gb200.json", "derived", (Label(12170, 12230, ratio=1.6, within=100),)),
        Known(golden + "gpt3_tp4_pp1_resume.h100.json", "derived", (Label(51),)),
        Known(golden + "gpt3_weekly_tp4_cp2.h100.json", "control"),
        Known(golden + "gpt3_weekly_tp2_pp2.h100.json", "control"),
        Known(golden + "mixtral_8x7b.h100.json", "derived", (Label(0, 300, "warm-up"),)),
        *(
            Known(f"mlperf/google_h200_n8_sd/result_{n}.txt", "derived" if n == 5 else "control",
                  (Label(2800, 5200, within=700),) if n == 5 else ())
            for n in (0, 1, 4, 5, 9)
        ),
        Known("pipemorph/large_scale_128gpu_1F1B.csv", "authors", _pipemorph(data / "pipemorph"),
              options=Options(column="iter_ms", unit="ms", more={"index": "iteration"}), format="series"),
        Known("greyhound-figures/atc25_fig2_throughput.csv", "authors", (Label(22, within=5), Label(55, within=6)),
              True, rate, "series"),
        Known("greyhound-figures/atc25_fig3_throughput.csv", "authors", (Label(10, kind="faster", within=5),), True,
              rate, "series", note="it starts slow, so only its end can be seen"),
        Known("greyhound-figures/atc25_fig4_throughput.csv", "authors", (Label(82, within=15), Label(255, within=15)),
              True, rate, "series", note="read off the curve: 82 and 255 min"),
        Known(nano + "normuonh.0.txt", "control"),
        *(Known(f"{nano}2025-11-29_BatchSizeSchedule.{n}.txt", "authors", planned) for n in (0, 1)),
        *(
            Known(f"{nano}2025-11-29_BatchSizeSchedule.{n}.txt", "authors", planned, schedule=(710, 1415),
                  note="the schedule given")
            for n in (0, 1)
        ),
        Known("bigscience/bloom-176b-log-lines.txt", "authors", (Label(42783, kind="drift", ratio=1.057),),
              note="18 lines out of a log, 3 of them after the onset"),
    ]  # fmt: skip


def _iters(data: Path, one: Known) -> list[Iters]:
    with (data / one.path).open("rb") as file:
        source = File(one.path, file)  # type: ignore[arg-type]
        records = read(one.format, [source], one.options, Head(), lambda line: None)
        return [record for record in records if isinstance(record, Iters)]


def _row(data: Path, one: Known) -> list[str]:
    batches = _iters(data, one)
    detector = Detector(Settings(schedule=one.schedule))
    changes = [change for rec in batches for change in detector.feed(rec)]
    labels: Sequence[Label] = one.labels
    index = np.concatenate([rec.index for rec in batches])
    if one.minutes:
        t_min = np.concatenate([rec.t_ns for rec in batches]) / 60e9

        def at(minute: float) -> int:
            return int(index[min(int(np.searchsorted(t_min, minute)), len(index) - 1)])

        labels = [
            replace(x, onset=at(x.onset), end=-1, within=at(x.onset + x.within) - at(x.onset)) for x in one.labels
        ]
    steps = np.diff(index)
    early = max(2, int(np.median(steps)) * 2 if len(steps) else 2)  # a sparse log cannot say it to the iteration
    got = score(labels, [c for c in changes if c.level == "job"], len(index), Tolerance(max(early, 5)))
    said = [
        f"{c.verdict} {c.onset_index} ({100 * (c.ratio - 1):+.0f} %, said {c.said_index})"
        for c in changes
        if c.level == "job" and c.stage == "confirmed" and (c.type != "relief" or c.verdict != "recovered")
    ]
    what = one.path + (f" ({one.note})" if one.note else "")
    found = f"{got.wanted - len(got.missed)} of {got.wanted}"
    return [
        what, one.truth, str(len(index)), found, str(len(got.false)), str(len(got.misnamed)),
        ", ".join(map(str, got.delay)), "; ".join(said[:9]),
    ]  # fmt: skip


def _short_runs(data: Path) -> str:
    """128 runs of 5 to 15 iterations, delay from the 7th on."""
    runs: dict[tuple[str, ...], list[list[float]]] = {}
    with (data / "pipemorph" / "short_runs.csv").open() as file:
        for row in csv.DictReader(file):
            key = (row["experiment"], row["model"], row["method"], row["slow_links"], row["delay_s"])
            if row["iteration"] == "1":
                runs.setdefault(key, []).append([])
            runs[key][-1].append(float(row["iter_ms"]))
    total = found = suspected = early = 0
    for parts in runs.values():
        for values in parts:
            total += 1
            dur = (np.asarray(values) * 1e6).astype("<i8")
            index = np.arange(1, len(dur) + 1)
            rec = Iters(rank=-1, index=index, t_ns=np.cumsum(dur) - dur, dur_ns=dur, phase=np.zeros(len(dur), "u1"))
            changes = list(Detector().feed(rec))
            slow = [c for c in changes if c.type == "onset" and c.level == "job"]
            found += any(c.stage == "confirmed" for c in slow)
            suspected += any(c.stage == "suspected" for c in slow)
            early += any(c.stage == "confirmed" and c.onset_index < 6 for c in slow)
    return (
        f"pipemorph/short_runs.csv: of {total} runs, most of 15 iterations with a delay from the 7th on, {found} were "
        f"confirmed slow and {suspected} suspected, {early} with an onset before the 6th. A level needs 10 values "
        "before anything is said of it, so runs this short cannot be judged, and are not.\n"
    )


# -- TCPD -------------------------------------------------------------------------------------------------


def f1(annotations: Sequence[Sequence[int]], found: Sequence[int], margin: int = MARGIN) -> float:
    """F1 as the TCPD benchmark defines it: precision against all annotators' points, recall the mean over them."""

    def hits(true: set[int], told: set[int]) -> int:
        left, count = set(told), 0
        for point in sorted(true):
            near = [x for x in left if abs(x - point) <= margin]
            if near:
                left.discard(min(near, key=lambda x: (abs(x - point), x)))
                count += 1
        return count

    told = {0, *found}
    every = {0}.union(*map(set, annotations))
    precision = hits(every, told) / len(told)
    recall = float(np.mean([hits({0, *points}, told) / len({0, *points}) for points in annotations]))
    return 2 * precision * recall / (precision + recall)


def covering(annotations: Sequence[Sequence[int]], found: Sequence[int], n: int) -> float:
    """How well the annotators' segments are covered by those found: weighted best Jaccard index, mean over them."""

    def segments(points: Sequence[int]) -> list[tuple[int, int]]:
        cuts = sorted({0, *(p for p in points if 0 < p < n), n})
        return list(pairwise(cuts))

    def jaccard(a: tuple[int, int], b: tuple[int, int]) -> float:
        both = max(0, min(a[1], b[1]) - max(a[0], b[0]))
        return both / (a[1] - a[0] + b[1] - b[0] - both)

    told = segments(found)
    scores = [
        sum((s[1] - s[0]) * max(jaccard(s, t) for t in told) for s in segments(points)) / n for points in annotations
    ]
    return float(np.mean(scores))


def points_of(raw: Sequence[Any], standard: bool) -> list[int]:
    """Where gh-bocd says that a series changes.

    As it is, the values are taken as durations (those not above 0 are skipped). Standardised, a value becomes a
    duration whose logarithm has noise of 2 %, measured by differences, so that 10 % is five of its deviations.
    """
    values = np.array([float(v) if v is not None else np.nan for v in raw])
    good = np.isfinite(values) if standard else np.isfinite(values) & (values > 0)
    x: NDArray[np.float64] = values[good]
    if len(x) < 2:
        return []
    if standard:
        steps = np.abs(np.diff(x))
        noise = 1.4826 * float(np.median(steps)) / np.sqrt(2) or float(steps.mean()) or 1.0
        x = np.exp(np.clip(0.02 * (x - np.median(x)) / noise, -8, 8))
    unit = 1e9 / float(np.median(x))
    dur = np.clip(np.rint(x * unit), 1, 1 << 60).astype("<i8")
    index = np.flatnonzero(good).astype("<i8")
    rec = Iters(
        rank=-1, index=index, t_ns=np.cumsum(np.minimum(dur, 1 << 40)), dur_ns=dur, phase=np.zeros(len(x), "u1")
    )
    changes: list[Change] = list(Detector().feed(rec))
    return sorted({c.onset_index for c in changes if c.stage == "confirmed" and c.level == "job"})


def tcpd(data: Path) -> str:
    """F1 and covering beside the published figures of other methods with their default settings."""
    folder = data / "tcpd"
    annotations = json.loads((folder / "annotations.json").read_text())
    with (folder / "peer_bocpd_default_f1.csv").open() as file:
        peers = {row["dataset"]: row for row in csv.DictReader(file)}
    rows, means = [], []
    for path in sorted(folder.glob("datasets/*/*.json")):
        name = path.stem
        series = json.loads(path.read_text())
        if name not in annotations or series["n_dim"] != 1:
            continue
        told = list(annotations[name].values())
        ours = []
        for standard in (False, True):
            found = points_of(series["series"][0]["raw"], standard)
            ours += [f1(told, found), covering(told, found, series["n_obs"])]
        nothing = f1(told, [])
        peer = [float(peers[name][m]) if name in peers else float("nan") for m in ("bocpd", "binseg", "pelt", "zero")]
        assert not isfinite(peer[3]) or abs(peer[3] - nothing) < 1e-3, (name, peer[3], nothing)  # same definition
        means.append([*ours, *peer])
        rows.append([name, str(series["n_obs"]), *(f"{v:.3f}" if isfinite(v) else "-" for v in (*ours, *peer))])
    both = [row for row in means if isfinite(row[4])]
    rows.append([f"**mean of the {len(both)} with published scores**", "", *(f"**{v:.3f}**" for v in np.mean(both, 0))])
    return (
        text.table(
            [
                "series",
                "n",
                "F1 as it is",
                "covering",
                "F1 standardised",
                "covering",
                "BOCPD",
                "BinSeg",
                "PELT",
                "zero",
            ],
            rows,
        )
        + "\n\nF1 with margin 5. BOCPD, BinSeg, PELT: published, default settings (over all univariate series F1 "
        "0.662, 0.698, 0.674, covering 0.594, 0.672, 0.652; saying nothing 0.645 and 0.566). The column zero is "
        "recomputed here and agrees with the published one, so the definition is the same. gh-bocd looks for steps of "
        "10 % of iteration times that last, not for whatever changes a series, and needs 10 values before it says "
        "anything.\n"
    )


def public(data: Path, say: Callable[[str], None]) -> str:
    """All of them."""
    rows = []
    for one in known(data):
        rows.append(_row(data, one))
        say(" | ".join(rows[-1]))
    wanted = sum(int(row[3].split(" of ")[1]) for row in rows)
    found = sum(int(row[3].split(" of ")[0]) for row in rows)
    false, wrong = sum(int(row[4]) for row in rows), sum(int(row[5]) for row in rows)
    summary = f"Episodes found: {found} of {wanted}; false: {false}; planned and called fail-slow: {wrong}.\n"
    scores = tcpd(data)
    say(scores.splitlines()[-3])
    return "\n\n".join(
        [
            summary
            + text.table(
                ["series", "truth", "points", "found", "false", "misnamed", "delays", "onsets and other changes said"],
                rows,
            ),
            _short_runs(data),
            "## Turing Change Point Dataset\n\n" + scores,
        ]
    )
