# SPDX-License-Identifier: Apache-2.0
"""The period finder's parts again, slow and obvious: Counters and loops over Python objects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise


def levels(symbols: Sequence[Hashable], order: int) -> dict[Hashable, list[tuple[Counter[Hashable], int]]]:
    """For each token of `order` symbols: its pieces' multisets and how often each occurs, most frequent first."""
    at: dict[Hashable, list[int]] = defaultdict(list)
    for i in range(order - 1, len(symbols)):
        at[tuple(symbols[i - order + 1 : i + 1])].append(i)
    out: dict[Hashable, list[tuple[Counter[Hashable], int]]] = {}
    for token, places in at.items():
        bags = [Counter(symbols[a:b]) for a, b in pairwise(places)]
        kinds = Counter(frozenset(bag.items()) for bag in bags)
        out[token] = [(Counter(dict(bag)), n) for bag, n in kinds.most_common()]
    return out


def match_fraction(symbols: Sequence[Hashable], lag: int) -> float:
    """Share of symbols that equal the one `lag` later, of those that have one."""
    pairs = [(symbols[i], symbols[i + lag]) for i in range(len(symbols) - lag)]
    return sum(a == b for a, b in pairs) / len(pairs)


def iterations(
    symbols: Sequence[Hashable], times: Sequence[int], anchor: Hashable, ordinary: Counter[Hashable]
) -> list[tuple[int, int, bool]]:
    """(begin, duration, ordinary) of each piece between successive anchors."""
    places = [i for i, s in enumerate(symbols) if s == anchor]
    return [(times[a], times[b] - times[a], Counter(symbols[a:b]) == ordinary) for a, b in pairwise(places)]


def best_fold(values: Sequence[float], most: int) -> int:
    """The k whose columns explain most of the variance, corrected for their number; 1 if none explains half."""
    mean = sum(values) / len(values)
    total = sum((v - mean) ** 2 for v in values)
    best, found = 0.5, 1
    for k in range(2, most + 1):
        columns = [values[j::k] for j in range(k)]
        within = sum(sum((v - sum(col) / len(col)) ** 2 for v in col) for col in columns)
        explained = 1 - within / total - (k - 1) / (len(values) - 1)
        if explained > best * 1.1:
            best, found = explained, k
    return found
