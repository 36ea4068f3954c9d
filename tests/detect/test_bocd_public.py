# SPDX-License-Identifier: Apache-2.0
"""Series that others published (../shared/data/README.md): labelled episodes are found, controls are silent.

All of these were looked at while the detector was tuned; they are sanity checks, not held-out results.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from ghtools.detect.memory import Settings
from ghtools.detect.watch import Watch
from ghtools.stream.records import Change
from tests.detect.bocd_help import MODEL, iters

pytestmark = pytest.mark.public_data


def confirmed(index: list[int], seconds: list[float], settings: Settings | None = None) -> list[Change]:
    rec = iters(np.array(seconds))
    rec.index = np.array(index)
    return [c for c in Watch(0, MODEL, settings or Settings()).feed(rec) if c.stage == "confirmed"]


def slow(made: list[Change]) -> list[Change]:
    return [c for c in made if c.type in ("onset", "drift")]


def megatron(folder: Path, name: str) -> list[Change]:
    values = json.loads((folder / "megatron-golden" / name).read_text())["iteration-time"]["values"]
    sound = {int(step): float(v) for step, v in values.items() if v != "nan"}
    return confirmed(list(sound), list(sound.values()))


def test_megatron_release_run(public_data: Path) -> None:
    loss, relief = megatron(public_data, "gpt3_15b_8t_release.h100.json")
    assert (loss.type, loss.verdict, relief.verdict) == ("drift", "unknown", "recovered")
    assert abs(loss.onset_index - 27_100) <= 200 and abs(relief.onset_index - 35_700) <= 200
    assert loss.ratio == pytest.approx(1.063, abs=0.01)


def test_megatron_weekly_bursts(public_data: Path) -> None:
    made = megatron(public_data, "gpt3_weekly_tp2_pp2.gb200.json")
    assert [c.type for c in made] == ["onset", "relief", "onset", "relief"]
    assert [abs(c.onset_index - at) <= 4 for c, at in zip(made, (214, 244, 1407, 1426), strict=True)] == [True] * 4


def test_megatron_slow_since_a_resume(public_data: Path) -> None:
    (onset,) = megatron(public_data, "gpt3_tp4_pp1_resume.h100.json")
    assert abs(onset.onset_index - 51) <= 2
    assert onset.ratio > 15


def test_megatron_sawtooth_and_burst(public_data: Path) -> None:
    made = slow(megatron(public_data, "nemotron3_super.gb200.json"))
    assert [c.onset_index for c in made] == [12_170]


@pytest.mark.parametrize("name", ["gpt3_weekly_tp4_cp2.h100.json", "gpt3_weekly_tp2_pp2.h100.json"])
def test_megatron_controls(name: str, public_data: Path) -> None:
    assert megatron(public_data, name) == []


def test_megatron_warm_up(public_data: Path) -> None:
    assert {(c.type, c.verdict) for c in megatron(public_data, "mixtral_8x7b.h100.json")} <= {("relief", "warm-up")}


@pytest.mark.parametrize(("result", "episodes"), [(0, 0), (1, 0), (4, 0), (5, 1), (9, 0)])
def test_mlperf_repeats_of_one_job(result: int, episodes: int, public_data: Path) -> None:
    steps, seconds = [], []
    for line in (public_data / f"mlperf/google_h200_n8_sd/result_{result}.txt").read_text().splitlines():
        if found := re.search(r":::MLLOG (\{.*\})", line):
            item = json.loads(found[1])
            if item["key"] == "tracked_stats" and "throughput" in item["value"]:
                steps.append(item["metadata"]["step_num"])
                seconds.append(1 / item["value"]["throughput"])
    made = confirmed(steps, seconds)
    assert len(slow(made)) == episodes
    if episodes:
        assert 2700 <= made[0].onset_index <= 3000
        assert made[-1].verdict == "recovered" and 5100 <= made[-1].onset_index <= 5400


def test_pipemorph_injections(public_data: Path) -> None:
    with (public_data / "pipemorph/large_scale_128gpu_1F1B.csv").open() as file:
        rows = list(csv.DictReader(file))
    labels = [15, 85, 120, 190, 230, 300, 340, 410, 450, 520, 560, 630, 670, 740, 780, 850, 890, 960]
    first = [row for row in rows if row["run"] == "1"]
    made = confirmed([int(row["line"]) for row in first], [float(row["iter_ms"]) / 1e3 for row in first])
    assert [c.type for c in made] == ["onset", "relief"] * 9
    assert all(0 <= c.onset_index - at <= 3 for c, at in zip(made, labels, strict=True))
    assert all(c.said_index - c.onset_index <= 8 for c in made)
    second = [row for row in rows if row["run"] == "2"]
    assert confirmed([int(row["line"]) for row in second], [float(row["iter_ms"]) / 1e3 for row in second]) == []


def figure(folder: Path, number: int) -> tuple[np.ndarray, list[Change]]:
    """Minutes and changes of a throughput curve, each point as one iteration."""
    points = np.loadtxt(folder / f"greyhound-figures/atc25_fig{number}_throughput.csv", delimiter=",", skiprows=1)
    points = points[np.argsort(points[:, 0])]
    return points[:, 0], confirmed(list(range(len(points))), list(1 / points[:, 1]))


def test_greyhound_cpu_contention(public_data: Path) -> None:
    minutes, made = figure(public_data, 2)
    opened = [c for i, c in enumerate(made) if c.type != "relief" and c.episode not in {d.episode for d in made[:i]}]
    assert [round(float(minutes[c.onset_index])) for c in opened] == pytest.approx([22, 57], abs=4)


def test_greyhound_thermal_from_the_start(public_data: Path) -> None:
    minutes, made = figure(public_data, 3)
    assert [c.type for c in made] == ["relief"]
    assert 9 <= minutes[made[0].onset_index] <= 13


def test_greyhound_congestion(public_data: Path) -> None:
    minutes, made = figure(public_data, 4)
    assert [c.type for c in made] == ["onset", "onset"]
    assert [float(minutes[c.onset_index]) for c in made] == pytest.approx([85, 264], abs=6)


@pytest.mark.parametrize("run", [0, 1])
def test_planned_batch_sizes(run: int, public_data: Path) -> None:
    text = (public_data / f"nanogpt-steps/2025-11-29_BatchSizeSchedule.{run}.txt").read_text()
    total = {int(step): int(ms) for step, ms in re.findall(r"step:(\d+)/\d+ .*train_time:(\d+)ms", text)}
    steps = sorted(total)
    seconds = list(np.diff([total[s] for s in steps]) / 1e3 / np.diff(steps))
    settings = Settings(schedule=(710, 1415))
    assert {c.verdict for c in confirmed(steps[:-1], seconds, settings)} == {"planned"}
    # Without the schedule it is a step whose cause is not known; no cause is claimed.
    assert [c.onset_index for c in confirmed(steps[:-1], seconds)] == pytest.approx([708, 1415], abs=3)


def test_a_flat_control_with_a_spike(public_data: Path) -> None:
    text = (public_data / "nanogpt-steps/normuonh.0.txt").read_text()
    total = {int(step): float(s) for step, s in re.findall(r"step:(\d+)/\d+ train_time:([\d.]+)s", text)}
    steps = sorted(total)
    assert confirmed(steps[:-1], list(np.diff([total[s] for s in steps]) / np.diff(steps))) == []
