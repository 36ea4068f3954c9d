# SPDX-License-Identifier: Apache-2.0
"""gh-score as people run it: labels, truth, several sections, bad input."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest


def bash(script: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def scored(script: str, cwd: Path, env: dict[str, str]) -> dict[str, dict[str, object]]:
    done = bash(script, cwd, env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_truth_of_ranks_and_of_the_job(tmp_path: Path, clean_env: dict[str, str]) -> None:
    one = "gh-synth --change 120:1.5:2:200 | gh-bocd --keep | gh-score --truth --json"
    got = scored(one, tmp_path, clean_env)
    assert got["series_right"]["count"] == 4 and got["iterations"] == 1200
    got = scored(one.replace("synth", "synth --coupled"), tmp_path, clean_env)
    assert got["series_right"]["count"] == got["series_right"]["of"] == 1


def test_each_section_has_its_labels(tmp_path: Path, clean_env: dict[str, str]) -> None:
    bash("gh-synth --change 120:1.5:all:200 > a; gh-synth --seed 1 > b; cat a b > ab", tmp_path, clean_env)
    (tmp_path / "labels.csv").write_text("onset,end,series\n120,200,1\n")
    got = scored("gh-bocd ab | gh-score --json --iters 300 labels.csv", tmp_path, clean_env)
    assert got["series_right"]["count"] == got["series_right"]["of"] == 2
    (tmp_path / "labels.csv").write_text("onset,end\n120,200\n")
    got = scored("gh-bocd ab | gh-score --json labels.csv", tmp_path, clean_env)
    assert got["series_right"]["count"] == 1 and got["iterations"] is None


def test_what_is_missed_is_said(tmp_path: Path, clean_env: dict[str, str]) -> None:
    (tmp_path / "labels.csv").write_text("onset\n50\n")
    done = bash("gh-synth --change 120:1.5 | gh-bocd | gh-score labels.csv", tmp_path, clean_env)
    assert "missed: slow since iteration 50" in done.stdout
    done = bash("gh-synth --change 120:1.5 | gh-bocd | gh-score --within-iters 100 labels.csv", tmp_path, clean_env)
    assert "missed:" not in done.stdout


@pytest.mark.parametrize("labels", ["absent.csv", ".", "/dev/zero", "bad.csv", "binary"])
def test_bad_labels_are_one_line(labels: str, tmp_path: Path, clean_env: dict[str, str]) -> None:
    (tmp_path / "bad.csv").write_text("onset\nsoon\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    done = bash(f"gh-synth --iters 20 | gh-bocd | gh-score {labels}", tmp_path, clean_env)
    assert done.returncode == 3 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("gh-score: cannot read the labels")


def test_a_cut_stream_is_scored_and_said(tmp_path: Path, clean_env: dict[str, str]) -> None:
    script = "gh-synth --change 120:1.5 | head -c -9 | gh-bocd -q 2>/dev/null | gh-score --truth"
    done = bash(script, tmp_path, clean_env)
    assert done.returncode == 3 and "series right" in done.stdout


def test_usage(tmp_path: Path, clean_env: dict[str, str]) -> None:
    assert bash("gh-score < /dev/null", tmp_path, clean_env).returncode == 2
    assert bash("gh-synth | gh-score --truth --level odd", tmp_path, clean_env).returncode == 2
    done = bash("gh-synth calls | gh-score --truth --json", tmp_path, clean_env)
    assert done.returncode in (0, 3) and "Traceback" not in done.stderr
