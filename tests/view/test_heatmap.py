# SPDX-License-Identifier: Apache-2.0
"""The heat map of who waits for whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ghtools.source.synth_profile import ProfileSpec, profile_job
from ghtools.stream.errors import GhError
from ghtools.stream.records import Head
from ghtools.view import heatmap


def data(**spec: object) -> heatmap.HeatData:
    return heatmap.collect(profile_job(ProfileSpec(**spec), Head()))  # type: ignore[arg-type]


def test_the_row_of_the_slow_rank_stays_pale() -> None:
    made = data(tp=2, dp=2, pp=2, fault="compute", rank=5, ratio=2.0, iters=20)
    assert made.ranks == list(range(8))
    assert made.named == {5: "compute"}
    group = made.columns.index("tp [4,5]")
    assert made.wait[5, group] == 0
    assert made.wait[4, group] == pytest.approx(480, rel=0.1)  # ms: as much again as it works itself
    assert np.isnan(made.wait[0, group])
    assert made.iters == 20


def test_many_groups_are_joined_by_name() -> None:
    made = data(tp=2, dp=4, pp=4, iters=12)
    assert sorted(made.columns) == ["dp", "pp, down", "pp, up", "tp", "world"]
    assert np.isnan(made.wait).sum() == 0


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = data(dp=4, fault="compute", rank=2, iters=20)
    for name in ("wait.png", "wait.svg"):
        heatmap.save(made, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    assert "compute" in (tmp_path / "wait.svg").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wait.png", "wait.svg"]


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(GhError, match="nothing to draw"):
        heatmap.save(heatmap.collect([Head()]), tmp_path / "wait.png")
    with pytest.raises(GhError, match="suffix"):
        heatmap.save(heatmap.HeatData(), tmp_path / "wait.txt")
