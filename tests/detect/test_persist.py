# SPDX-License-Identifier: Apache-2.0
"""A detector that is saved and restored goes on as if it had never stopped; a hostile file is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ghtools.detect import persist
from ghtools.detect.detector import Detector
from ghtools.detect.memory import Settings
from ghtools.stream.errors import InputError
from ghtools.stream.records import Iters
from ghtools.stream.state import load, save
from tests.detect.bocd_help import cut, iters, noisy


def stream() -> list[Iters]:
    steps = ((60, 64, 1.6), (120, 190, 1.4), (150, 190, 1.5), (260, 400, 1.06))
    parts = [list(cut(iters(noisy(400, *steps, seed=rank), rank), 1)) for rank in range(3)]
    for part in parts:
        part[200].phase[0] = 3
    return [rec for batch in zip(*parts, strict=True) for rec in batch]


def said(detector: Detector, records: list[Iters]) -> list[dict[str, Any]]:
    return [vars(change) for rec in records for change in detector.feed(rec)]


WHOLE = stream()


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    made = said(Detector(), WHOLE)
    assert {(c["type"], c["stage"]) for c in made} >= {("onset", "withdrawn"), ("relief", "confirmed")}
    return made


@pytest.mark.parametrize("seed", range(8))
def test_split_anywhere(seed: int, tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    at = random.Random(seed).randrange(len(WHOLE)) if seed else 3 * 123  # 123: while a change is suspected
    first = Detector()
    made = said(first, WHOLE[:at])
    save(tmp_path / "state", persist.MAGIC, *persist.dump(first))
    second = Detector()
    found = load(tmp_path / "state", persist.MAGIC)
    assert found is not None
    persist.restore(second, *found)
    assert made + said(second, WHOLE[at:]) == expected


def test_other_options_are_refused() -> None:
    saved = persist.dump(Detector())
    with pytest.raises(InputError, match="other options"):
        persist.restore(Detector(Settings(min_change=0.2)), *saved)


def test_any_change_of_the_values_is_refused_or_harmless() -> None:
    detector = Detector()
    said(detector, WHOLE[:380])
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        meta, blobs = persist.dump(detector)
        meta = json.loads(json.dumps(meta))
        _spoil(meta, rng)
        if rng.random() < 0.3:
            blob = bytearray(blobs[0])
            for _ in range(20):
                blob[rng.randrange(len(blob))] = rng.randrange(256)
            blobs[0] = bytes(blob)
        other = Detector()
        try:
            persist.restore(other, meta, blobs)
        except InputError:
            refused += 1
        else:
            said(other, WHOLE[380:420])
    assert refused > 50


def _spoil(node: Any, rng: random.Random) -> None:
    """Put nonsense somewhere into nested plain values."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.9:
            node = node[key]
            continue
        node[key] = rng.choice([None, "x", -1, 10**30, 1.5, [], {}, [[]], True])
        return


def test_memory_does_not_grow() -> None:
    detector = Detector()
    sizes = []
    for life in range(6):
        x = noisy(2000, *[(at, at + 30, 1.5) for at in range(100, 1900, 100)], seed=life)
        for rank in range(2):
            list(detector.feed(iters(x, rank, first=2000 * life, t0=life * 10**14)))
        meta, blobs = persist.dump(detector)
        sizes.append(len(json.dumps(meta)) + sum(map(len, blobs)))
    assert sizes[-1] < 1.2 * sizes[2]


def test_values_that_cannot_be_json_are_not_in_the_state() -> None:
    detector = Detector()
    said(detector, WHOLE[:500])
    meta, _ = persist.dump(detector)
    assert not any(isinstance(v, np.generic) for w in meta["watches"] for v in w.values())
    assert json.loads(json.dumps(meta)) == json.loads(json.dumps(meta))
