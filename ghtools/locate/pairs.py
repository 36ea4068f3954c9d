# SPDX-License-Identifier: Apache-2.0
"""Which end is slow, from tests of pairs: one pair tells that one of two is slow, several can tell which.

A pair is slow if its bandwidth is well under that of comparable pairs. An end is cleared by a pair that is not slow. So
a slow pair with one cleared end names the other, one with both ends cleared names the link between them, and one
with neither names nobody: "a or b, it cannot be said which" (nccl-tests#106, dlrover#1138).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.records import Link, Suspect

SLOW = 0.8  # a pair under this share of the reference is slow
REFERENCE = 75.0  # percentile of the pairs that is taken as healthy: fewer than three quarters may be slow
MANY, MOST = (
    4,
    0.5,
)  # an end that is slow in this many pairs, and this share of them, stands out though some are healthy
REST = 0.25  # if its partners are slow elsewhere in less than this share of their pairs
SIDE = 3  # ends that make a side of a network; fewer that are slow with all others are slow themselves
SETTLED = 0.9  # of its pairs slow: named; fewer: a suspect that must be tested again


@dataclass(frozen=True)
class Pair:
    """A tested pair; `share` is its bandwidth over the reference of comparable pairs, NaN = no result."""

    ends: tuple[str, str]
    share: float
    gbps: float


@dataclass
class Ends:
    """What the pairs say."""

    slow: dict[str, float] = field(default_factory=dict)  # end -> share of the reference, median over its slow pairs
    suspect: dict[str, float] = field(default_factory=dict)  # slow in many pairs and healthy in others: test again
    links: list[Pair] = field(default_factory=list)  # both ends are sound elsewhere
    open: list[Pair] = field(default_factory=list)  # one of two, it cannot be said which
    healthy: set[str] = field(default_factory=set)
    tested: dict[str, tuple[int, int]] = field(default_factory=dict)  # end -> slow pairs, pairs with a result
    missing: list[tuple[str, str]] = field(default_factory=list)  # pairs without a result: that is not "slow"


def compare(values: dict[tuple[str, str], float]) -> list[Pair]:
    """Pairs with their share of the reference. `values` is bandwidth by pair, GB/s; NaN or <= 0 = no result."""
    good = [value for value in values.values() if np.isfinite(value) and value > 0]
    reference = float(np.percentile(good, REFERENCE)) if good else float("nan")
    made = []
    for (a, b), value in values.items():
        known = np.isfinite(value) and value > 0
        made.append(Pair((a, b), value / reference if known else float("nan"), value if known else float("nan")))
    return made


def judge_pairs(pairs: Iterable[Pair]) -> Ends:
    """Sort the ends: slow, suspect, cleared or open."""
    made = Ends()
    slow: list[Pair] = []
    count: dict[str, list[int]] = {}
    for pair in pairs:
        if not np.isfinite(pair.share):
            made.missing.append(pair.ends)
            continue
        is_slow = pair.share < SLOW
        for end in pair.ends:
            tally = count.setdefault(end, [0, 0])
            tally[0] += is_slow
            tally[1] += 1
        if is_slow:
            slow.append(pair)
        else:
            made.healthy |= set(pair.ends)
    made.tested = {end: (tally[0], tally[1]) for end, tally in count.items()}
    guilty = _standing_out(slow, made)
    for pair in slow:
        unexplained = [end for end in pair.ends if end not in made.healthy and end not in guilty]
        if any(end in guilty for end in pair.ends):
            continue
        if len(unexplained) == 1:
            guilty.add(unexplained[0])
    for end in sorted(guilty):
        share = float(np.median([pair.share for pair in slow if end in pair.ends]))
        slow_pairs, all_pairs = made.tested[end]
        (made.slow if slow_pairs >= SETTLED * all_pairs else made.suspect)[end] = share
    for pair in slow:
        if any(end in guilty for end in pair.ends):
            continue
        (made.links if set(pair.ends) <= made.healthy else made.open).append(pair)
    return made


def _standing_out(slow: list[Pair], made: Ends) -> set[str]:
    """Ends that are slow in most of many pairs, though not in all, while their partners are sound elsewhere."""
    found: set[str] = set()
    for end, (bad, tests) in sorted(made.tested.items(), key=lambda item: -item[1][0] / item[1][1]):
        if bad < MANY or bad < MOST * tests:
            continue
        partners = {other for pair in slow if end in pair.ends for other in pair.ends if other != end}
        elsewhere = [made.tested[other] for other in partners if other not in found]
        worse = [sum(1 for pair in slow if other in pair.ends and not found & set(pair.ends)) for other in partners]
        tests_elsewhere = sum(n for _, n in elsewhere) - len(elsewhere)
        bad_elsewhere = sum(max(0, n - 1) for n in worse)
        if tests_elsewhere <= 0 or bad_elsewhere <= REST * tests_elsewhere:
            found.add(end)
    return found


def pair_tables(links: Iterable[Link]) -> dict[tuple[Any, ...], list[Pair]]:
    """Link records of two ends by comparable setting (test, kind of link, devices a host), one pair each.

    A pair's share is the median over sizes and repeats of its bandwidth against the reference for that size.
    """
    cells: dict[tuple[Any, ...], dict[int, dict[tuple[str, str], list[float]]]] = {}
    for link in links:
        if len(link.ends) != 2 or link.ends[0] == link.ends[1]:
            continue
        setting = (link.test, link.type, link.facts.get("gpus_per_host", 0))
        a, b = sorted(link.ends)
        good = link.status == "ok" and np.isfinite(link.busbw_gbps) and link.busbw_gbps > 0
        size = cells.setdefault(setting, {}).setdefault(link.bytes, {})
        size.setdefault((a, b), []).append(link.busbw_gbps if good else float("nan"))
    tables = {}
    for setting, sizes in cells.items():
        shares: dict[tuple[str, str], list[float]] = {}
        speeds: dict[tuple[str, str], list[float]] = {}
        for by_pair in sizes.values():
            middle = {ends: _median(values) for ends, values in by_pair.items()}
            for pair in compare(middle):
                shares.setdefault(pair.ends, []).append(pair.share)
                speeds.setdefault(pair.ends, []).append(pair.gbps)
        tables[setting] = [Pair(ends, _median(shares[ends]), _median(speeds[ends])) for ends in sorted(shares)]
    return tables


def _median(values: list[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.median(finite)) if finite else float("nan")


def two_sides(pairs: list[Pair]) -> tuple[list[str], list[str]] | None:
    """Two groups of ends such that pairs across are slow and pairs inside are not: a topology, nobody's fault.

    The sides are the signs of the leading eigenvector of the centred matrix of shares.
    """
    names = sorted({end for pair in pairs for end in pair.ends})
    if len(names) < 2 * SIDE:
        return None
    number = {name: i for i, name in enumerate(names)}
    good = [pair for pair in pairs if np.isfinite(pair.share)]
    middle = float(np.mean([pair.share for pair in good]))
    matrix = np.zeros((len(names), len(names)))
    for pair in good:
        a, b = (number[end] for end in pair.ends)
        matrix[a, b] = matrix[b, a] = pair.share - middle
    side = np.linalg.eigh(matrix)[1][:, -1] >= 0
    across = [pair for pair in good if side[number[pair.ends[0]]] != side[number[pair.ends[1]]]]
    inside = [pair for pair in good if side[number[pair.ends[0]]] == side[number[pair.ends[1]]]]
    sides = [[name for name in names if side[number[name]] == which] for which in (True, False)]
    if min(len(sides[0]), len(sides[1])) < SIDE or not across or not inside:
        return None
    if np.mean([pair.share < SLOW for pair in across]) < 0.8 or np.mean([pair.share < SLOW for pair in inside]) > 0.1:
        return None
    return sides[0], sides[1]


def suspects(setting: tuple[Any, ...], pairs: list[Pair], t_ns: int = 0) -> list[Suspect]:
    """The verdict of one table as records; empty if there are fewer than two pairs to compare."""
    ends = judge_pairs(pairs)
    good = [pair for pair in pairs if np.isfinite(pair.share)]
    if len(good) < 2:
        return []
    test, kind, devices = setting
    under = f"{test}, {kind}" + (f", {devices} devices a host" if devices else "")
    evidence: dict[str, Any] = {"test": test, "type": kind, "gpus_per_host": devices, "pairs": len(good)}
    if ends.missing:
        evidence["pairs_without_result"] = len(ends.missing)

    def say(what: str, names: list[str], verdict: str, share: float, text: str, **more: Any) -> Suspect:
        return Suspect(
            what=what, hosts=names, cause="communication", verdict=verdict, ratio=1 / share if share > 0 else 0.0,
            t_ns=t_ns, text=f"{text} ({under})", evidence={**evidence, **more},
        )  # fmt: skip

    if sides := two_sides(pairs):
        text = (
            f"pairs between {len(sides[0])} and {len(sides[1])} ends are slower than pairs inside either group: "
            f"the network's shape, no end is to blame ({under})"
        )
        return [
            Suspect(
                what="none",
                cause="common",
                verdict="cleared",
                t_ns=t_ns,
                text=text,
                evidence={**evidence, "sides": list(sides)},
            )
        ]
    made = []
    for end, share in ends.slow.items():
        bad, tests = ends.tested[end]
        text = f"{end} is slow in {bad} of {tests} pairs, at {100 * share:.0f} % of what others reach"
        made.append(say("host", [end], "attributed", share, text, slow_pairs=bad, tested_pairs=tests))
    for end, share in ends.suspect.items():
        bad, tests = ends.tested[end]
        text = (
            f"{end} is slow in {bad} of {tests} pairs, at {100 * share:.0f} %, and sound in others: suspect, test again"
        )
        made.append(say("host", [end], "inconclusive", share, text, slow_pairs=bad, tested_pairs=tests))
    if ends.links:
        worst = min(ends.links, key=lambda pair: pair.share)
        names = ", ".join(f"{pair.ends[0]} - {pair.ends[1]}" for pair in ends.links[:4])
        names += f" and {len(ends.links) - 4} more" if len(ends.links) > 4 else ""
        text = f"{names}: slow (down to {100 * worst.share:.0f} %) though both ends are sound elsewhere: test again"
        every = [[*pair.ends, round(pair.share, 3)] for pair in ends.links[:64]]
        only = list(worst.ends) if len(ends.links) == 1 else []
        made.append(say("link", only, "inconclusive", worst.share, text, slow_pairs=every))
    for pair in ends.open[:16]:
        text = f"{pair.ends[0]} or {pair.ends[1]} is slow ({100 * pair.share:.0f} %); these pairs cannot say which"
        made.append(say("link", list(pair.ends), "inconclusive", pair.share, text))
    if not made:
        made.append(
            Suspect(
                what="none", verdict="cleared", t_ns=t_ns, evidence=evidence,
                text=f"no end stands out in {len(good)} pairs ({under})",
            )
        )  # fmt: skip
    return made
