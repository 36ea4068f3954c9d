# SPDX-License-Identifier: Apache-2.0
"""Links against their own history, over a simulation: what nothing else can tell, and what no history may spoil."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ghtools.locate.ring_history import Past, load
from ghtools.locate.ring_judge import Link
from ghtools.stream.errors import Exit, GhError
from ghtools.stream.records import Finding

from .ring_sim import Sim, run_test

NETWORK = [(a, b) for a in (0, 1) for b in (2, 3)]


def two_hosts(share: float = 1.0, seed: int = 0) -> Sim:
    """Two hosts of two ranks; what is between them has so much of its bandwidth."""
    return Sim(4, per_host=2, links={frozenset(link): share for link in NETWORK}, seed=seed)


def run(sim: Sim, path: Path) -> tuple[Exit, list[Finding]]:
    test, found, _ = run_test(sim, history=path)
    return test.code, found


def test_two_hosts_alone_are_told_by_their_history(tmp_path: Path) -> None:
    path = tmp_path / "links"
    assert run(two_hosts(), path)[0] == Exit.UNKNOWN  # the first run has nothing to be compared with
    for seed in range(1, 5):
        code, found = run(two_hosts(seed=seed), path)
        assert (code, {one.verdict for one in found}) == (Exit.OK, {"cleared"}), [one.text for one in found]
    before = load(path)
    assert {(key.a, key.b, key.type) for key in before} == {
        ("host0", "host0", "loopback"), ("host1", "host1", "loopback"), ("host0", "host1", "network"),
    }  # fmt: skip
    code, found = run(two_hosts(0.1, seed=9), path)
    assert code == Exit.SLOW
    slow = [one for one in found if one.verdict == "confirmed"]
    assert [(one.what, one.ranks, one.hosts) for one in slow] == [("link", [0, 1, 2, 3], ["host0", "host1"])]
    assert slow[0].ratio == pytest.approx(10, rel=0.15) and "in 5 runs" in slow[0].text
    assert load(path) == before  # neither what is slow, nor what its ends have to do with


def test_a_single_link(tmp_path: Path) -> None:
    path = tmp_path / "links"
    assert run(Sim(2), path)[0] == Exit.UNKNOWN
    assert run(Sim(2, seed=1), path)[0] == Exit.OK
    code, found = run(Sim(2, seed=2, gbps=6.0), path)  # by two runs, 0.6 may be chance
    assert code == Exit.UNKNOWN and found[0].verdict == "could not tell"
    code, found = run(Sim(2, seed=3, gbps=3.0), path)
    assert (code, found[0].what, found[0].ranks) == (Exit.SLOW, "link", [0, 1])


def test_all_links_slow_alike(tmp_path: Path) -> None:
    path = tmp_path / "links"
    for seed in range(4):
        run(Sim(8, seed=seed), path)
    assert run_test(Sim(8, seed=9, gbps=5.0))[0].code == Exit.OK
    code, found = run(Sim(8, seed=9, gbps=5.0), path)
    assert code == Exit.SLOW and len(found) == 8 and all(one.ratio == pytest.approx(2, rel=0.1) for one in found)


def test_a_slow_rank_is_not_told_twice_and_spoils_nothing(tmp_path: Path) -> None:
    path = tmp_path / "links"
    for seed in range(4):
        run(Sim(8, seed=seed), path)
    before = load(path)
    _, found = run(Sim(8, seed=9, ranks={3: 0.2}), path)
    assert [(one.what, one.ranks) for one in found if one.verdict == "confirmed"] == [("rank", [3])]
    links: set[Link] = {(2, 3), (3, 4)}
    touched = {(f"host{a}", f"host{b}") for a, b in links}
    for key, past in load(path).items():
        grown = len(past.gbps) - len(before[key].gbps)
        assert grown == (0 if (key.a, key.b) in touched else 1), key


@pytest.mark.parametrize("gbps", [[], [0], [-1.0], "fast", [1.0] * 33])
def test_hostile_lines(tmp_path: Path, gbps: object) -> None:
    path = tmp_path / "links"
    run(Sim(2), path)
    line = json.loads(path.read_text())
    assert isinstance(next(iter(load(path).values())), Past)
    path.write_text(json.dumps({**line, "gbps": gbps}) + "\n")
    with pytest.raises(GhError, match="line 1"):
        load(path)
