# SPDX-License-Identifier: Apache-2.0
"""Which end of a pair is slow."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from ghtools.locate.pairs import compare, judge_pairs, pair_tables, suspects, two_sides
from ghtools.source import import_nccl_tests
from ghtools.source.importers import File, Options
from ghtools.stream.records import Link


def test_five_numbers_of_a_public_thread() -> None:
    # nccl-tests#106, GB/s: 644 is slow; 284 or 678 is, and these data cannot say which
    pairs = {("644", "699"): 49.4, ("632", "641"): 88.4, ("284", "678"): 49.3}
    pairs |= {("641", "644"): 49.3, ("404", "699"): 86.8}
    ends = judge_pairs(compare(pairs))
    assert list(ends.slow) == ["644"]
    assert ends.slow["644"] == pytest.approx(0.57, abs=0.01)
    assert [pair.ends for pair in ends.open] == [("284", "678")]
    assert not ends.links and not ends.suspect
    texts = [s.text for s in suspects(("sendrecv", "network", 0), compare(pairs))]
    assert any("284 or 678" in text and "cannot say which" in text for text in texts)


def test_one_slow_pair_alone_names_nobody() -> None:
    ends = judge_pairs(compare({("a", "b"): 10.0, ("c", "d"): 20.0, ("e", "f"): 21.0}))
    assert not ends.slow
    assert [pair.ends for pair in ends.open] == [("a", "b")]


def test_a_link_between_sound_ends() -> None:
    pairs = dict.fromkeys(combinations("abcd", 2), 20.0) | {("a", "b"): 9.0}
    ends = judge_pairs(compare(pairs))
    assert [pair.ends for pair in ends.links] == [("a", "b")]
    assert not ends.slow and not ends.open


def test_all_pairs_of_an_end_are_slow() -> None:
    pairs = dict.fromkeys(combinations("abcdef", 2), 20.0) | {("a", other): 8.0 for other in "bcdef"}
    ends = judge_pairs(compare(pairs))
    assert list(ends.slow) == ["a"]


def test_no_result_is_not_slow() -> None:
    pairs = dict.fromkeys(combinations("abcd", 2), 20.0) | {("a", "b"): float("nan"), ("c", "d"): 0.0}
    ends = judge_pairs(compare(pairs))
    assert sorted(ends.missing) == [("a", "b"), ("c", "d")]
    assert not ends.slow and not ends.open and not ends.links


def test_small_differences_name_nobody() -> None:
    rng = np.random.default_rng(1)
    pairs = {ends: 20.0 * float(rng.uniform(0.93, 1.07)) for ends in combinations("abcdefgh", 2)}
    made = suspects(("all_reduce", "network", 8), compare(pairs))
    assert [s.verdict for s in made] == ["cleared"]


def test_two_sides_of_a_network() -> None:
    left, right = "abcde", "wxyz"
    pairs = dict.fromkeys(product(left, right), 12.0)
    pairs |= dict.fromkeys([*combinations(left, 2), *combinations(right, 2)], 20.0)
    sides = two_sides(compare(pairs))
    assert sides is not None
    assert sorted(map(sorted, sides)) == [sorted(left), sorted(right)]
    assert suspects(("all_to_all", "network", 8), compare(pairs))[0].verdict == "cleared"


def test_links_with_more_or_the_same_ends_are_passed_over() -> None:
    links = [Link(ends=["a", "b", "c"], busbw_gbps=5.0), Link(ends=["a", "a"], busbw_gbps=5.0), Link(ends=[])]
    assert pair_tables(links) == {}


def test_failed_tests_count_as_missing() -> None:
    links = [Link(ends=["a", "b"], busbw_gbps=20.0), Link(ends=["b", "c"], status="no result")]
    links.append(Link(ends=["a", "c"], busbw_gbps=-1.0))
    (pairs,) = pair_tables(links).values()
    assert sum(np.isfinite(pair.share) for pair in pairs) == 1


@pytest.mark.public_data
@pytest.mark.parametrize(("gpus", "named"), [(4, ["cnode2-003"]), (8, [])])
def test_17_nodes(public_data: Path, gpus: int, named: list[str]) -> None:
    # derived, not the owner's finding: 003 is slow in most of its pairs with 4 GPUs a node, in none with 8
    links: list[Link] = []
    for path in sorted((public_data / "nccl-pairwise" / "cluster00").glob(f"nccl_N2_G{gpus}_*.log")):
        with path.open("rb") as source:
            links += [r for r in import_nccl_tests.read([File(path.name, source)], Options()) if isinstance(r, Link)]
    said = [
        s for setting, pairs in pair_tables(links).items() if setting[0] == "sendrecv" for s in suspects(setting, pairs)
    ]
    assert [s.hosts[0] for s in said if s.what == "host"] == named
    assert not [s for s in said if s.verdict == "attributed"]
    if named:
        assert "suspect, test again" in said[0].text
        assert said[0].evidence["slow_pairs"] == 11
        assert said[0].ratio == pytest.approx(13.9 / 6.0, rel=0.2)
    else:
        assert [s.verdict for s in said] == ["cleared"]
