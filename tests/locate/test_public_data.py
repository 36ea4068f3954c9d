# SPDX-License-Identifier: Apache-2.0
"""Published traces: what their owners say is slow is named, and what is not hardware names nobody."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ghtools.source.importers import File, Options, importer
from ghtools.stream.records import Head, Record
from tests.locate.simulate import Run, feed

pytestmark = pytest.mark.public_data


def imported(form: str, paths: list[Path]) -> Iterator[Record]:
    """A head, and what gh-import makes of the files."""
    yield Head(tool="gh-import")
    sources = [path.open("rb") for path in paths]
    try:
        files: Any = [File(path.name, source) for path, source in zip(paths, sources, strict=True)]
        yield from importer(form).read(files, Options())
    finally:
        for source in sources:
            source.close()


def what_if(folder: Path, name: str) -> Run:
    if importlib.util.find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed, which reads parquet")
    return feed(imported("what-if", [folder / "what-if" / f"trace-{name}.parquet"]))


def test_64_gpus_with_one_slow_worker(public_data: Path) -> None:
    made = what_if(public_data, "AR")
    assert made.attributed == [("rank", [0], "compute")]
    (said,) = (s for s in made.said if s.verdict == "attributed")
    assert said.ratio == pytest.approx(2.27, rel=0.08)  # the owners' figure; theirs is of compute operations alone
    assert said.evidence["stands_for"] == [1, 2, 3]  # its tensor parallel group is one in this trace
    assert said.evidence["last_share"] > 0.95


def test_8_gpus_with_a_heavier_last_stage(public_data: Path) -> None:
    made = what_if(public_data, "ST")
    assert not made.attributed
    assert [(s.what, s.cause, s.verdict) for s in made.said] == [("none", "imbalance", "cleared")]
    assert made.said[0].evidence["ranks"] == [6, 7]


def test_one_step_of_8_ranks_is_not_enough(public_data: Path) -> None:
    folder = public_data / "kineto" / "dlrm-8rank"
    made = feed(imported("kineto", sorted(folder.glob("*.json"))))
    assert [(s.what, s.verdict) for s in made.said] == [("none", "inconclusive")]
    assert "1 iterations" in made.said[0].text or "no iteration" in made.said[0].text
