# SPDX-License-Identifier: Apache-2.0
"""In which order the links of a ring or a tree are tested so that no test disturbs another.

A pass is a set of disjoint pairs: all of them are tested at once, each rank in at most one. The passes of a topology
are a proper edge colouring of it, so their number depends on how many links a rank has and not on how many ranks
there are: an even ring takes 2, an odd one 3, a binary tree 3, both trees of NCCL's double tree 4 (a paired
exchange, both ends sending at once, covers both directions of a link in one pass). GREYHOUND's paper (section 5)
gives 2 and 4 without the odd ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .colouring import colour_graph

Ints = NDArray[np.int64]
NO_PARENT = -1
SMALL = 8  # under so many ranks the double tree may do with fewer than 4 passes
PATTERNS = ("balanced", "tree", "split")  # at which GPU of a host NCCL hangs the two child hosts


@dataclass(frozen=True)
class Schedule:
    """Links and the pass in which each is tested.

    `links` has a row a link, (n, 2) ranks; for a ring the first sends to the second in the library's own direction,
    for a tree the first is the child. `step` (n,) is the pass of each, from 0.
    """

    links: Ints
    step: Ints
    minimal: bool = True  # fewer passes are not possible

    @property
    def passes(self) -> int:
        """Number of passes."""
        return int(self.step.max()) + 1 if len(self.step) else 0

    def in_pass(self, number: int) -> list[tuple[int, int]]:
        """Links of one pass."""
        return [(int(a), int(b)) for a, b in self.links[self.step == number]]


def check(schedule: Schedule, links: Ints) -> None:
    """AssertionError unless each pass is a set of disjoint pairs and all passes cover each of `links` exactly once.

    `links` is (n, 2), in any order, either end first, repeats meaning the same link.
    """
    got, step = schedule.links, schedule.step
    if not len(got) and not len(links):
        return
    assert got.shape == (len(step), 2) and (step >= 0).all(), "a link without a pass"
    assert (got[:, 0] != got[:, 1]).all(), "a rank is linked to itself"
    ranks = int(max(got.max(), links.max())) + 1
    ends = np.bincount(np.concatenate([step * ranks + got[:, 0], step * ranks + got[:, 1]]))
    assert ends.max() == 1, "a rank is in two pairs of one pass"
    mine, wanted = np.sort(_codes(got, ranks)), np.unique(_codes(links, ranks))
    assert len(mine) == len(wanted) and (mine == wanted).all(), "a link is left out, or tested twice"


def distinct(links: Ints) -> Ints:
    """Links without those that come again, either way round; the first of each stays, in order."""
    if not len(links):
        return links
    _, first = np.unique(_codes(links, int(links.max()) + 1), return_index=True)
    return np.asarray(links[np.sort(first)])


def _codes(links: Ints, ranks: int) -> Ints:
    low, high = links.min(axis=1), links.max(axis=1)
    return np.asarray(low * ranks + high)


def ring(n: int) -> Schedule:
    """The ring 0, 1, .. n-1: link j goes from j to j+1; passes by parity, an odd ring's last link alone."""
    if n < 2:
        return Schedule(_empty(), np.empty(0, np.int64))
    count = n if n > 2 else 1
    at = np.arange(count, dtype=np.int64)
    step = at & 1
    if n & 1:
        step[-1] = 2
    return Schedule(np.stack([at, (at + 1) % n], axis=1), step)


def chain(n: int) -> Schedule:
    """The chain 0 - 1 - .. - n-1: two passes."""
    at = np.arange(max(n - 1, 0), dtype=np.int64)
    return Schedule(np.stack([at, at + 1], axis=1), at & 1)


def btree(n: int) -> Ints:
    """parent[] of NCCL's binary tree over n ranks (its trees.cc): (n,), -1 at rank 0, the root."""
    rank = np.arange(n, dtype=np.int64)
    low = rank & -rank
    up = (rank ^ low) | (low << 1)
    up = np.where(up >= n, rank ^ low, up)
    if n:
        up[0] = NO_PARENT
    return np.asarray(up)


def second_btree(n: int) -> Ints:
    """parent[] of the other tree of the double tree: mirrored for even n, shifted by one for odd n."""
    first = btree(n)
    if n % 2 == 0:
        return np.asarray(np.where(first < 0, NO_PARENT, n - 1 - first)[::-1])
    return np.asarray(np.roll(np.where(first < 0, NO_PARENT, (first + 1) % n), 1))


def tree_links(parent: Ints) -> Ints:
    """Links child - parent, (n, 2), of a tree or forest given as parent[] (-1 = a root)."""
    child = np.flatnonzero(parent >= 0).astype(np.int64)
    return np.stack([child, parent[child]], axis=1)


def tree(parent: Ints) -> Schedule:
    """Passes of any tree given as parent[], (n,), -1 = root: as many as the most links that a rank has.

    Roots first; the children of a rank get 0, 1, 2, .. without the pass of its own link upward. ValueError if it
    is no tree.
    """
    step = _tree_steps(np.asarray(parent, np.int64))
    child = np.flatnonzero(step >= 0)
    return Schedule(np.stack([child, np.asarray(parent)[child]], axis=1), step[child])


def _tree_steps(parent: Ints) -> Ints:
    """Pass of the link between each rank and its parent, -1 at roots."""
    n = len(parent)
    step = np.full(n, -1, np.int64)
    if ((parent >= n) | (parent < NO_PARENT)).any():
        raise ValueError("a parent is no rank of the tree")
    child = np.flatnonzero(parent >= 0)
    order = child[np.argsort(parent[child], kind="stable")]  # siblings side by side, the lower first
    first = np.searchsorted(parent[order], np.arange(n + 1))
    place = np.empty(n, np.int64)
    place[order] = np.arange(len(order)) - first[parent[order]]
    level = np.flatnonzero(parent < 0)
    done = 0
    while len(level):
        count = first[level + 1] - first[level]
        if not count.any():
            break
        begin = np.repeat(first[level] - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
        level = order[begin + np.arange(len(begin))]
        taken = step[parent[level]]
        step[level] = place[level] + ((place[level] >= taken) & (taken >= 0))
        done += len(level)
    if done != len(child):
        raise ValueError("the parents make a cycle")
    return step


def double_tree(n: int) -> Schedule:
    """Both trees of NCCL's double binary tree over n ranks, links that they share tested once: 4 passes at most.

    Even ranks are inside one tree and leaves of the other, odd ranks the reverse; so the links that touch a leaf
    make paths of three, 4k+1 - 4k+2 - 4k+3 - 4k+4 or one rank lower, whose middle is shared. Inner links of each tree
    take passes 0 to 2, the outer links of the paths pass 3, the middle what is left. Only at the ends of the rank
    order does that not fit; those few links are put in by exchanging two passes along a chain.
    """
    first, second = btree(n), second_btree(n)
    if n < SMALL:
        return union(np.concatenate([tree_links(first), tree_links(second)]), n)
    rank = np.arange(n, dtype=np.int64)
    leaf_of_first = np.ones(n, bool)
    leaf_of_first[first[first >= 0]] = False
    leaf_of_second = np.ones(n, bool)
    leaf_of_second[second[second >= 0]] = False
    parts = []
    for parent, leaf in ((first, leaf_of_first), (second, leaf_of_second)):
        step = _tree_steps(parent)
        inner = (parent >= 0) & ~leaf
        parts.append((rank[inner], parent[inner], step[inner]))
        outer = (parent >= 0) & leaf
        parts.append((rank[outer], parent[outer], np.full(int(outer.sum()), 3, np.int64)))
    links = np.stack([np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])], axis=1)
    step = np.concatenate([part[2] for part in parts])
    code = _codes(links, n)
    _, at, times = np.unique(code, return_index=True, return_counts=True)
    step[at[times > 1]] = -1  # shared: to be filled with what is left
    links, step = links[at], step[at]
    _fill_free(links, step, n)
    return colour_graph(links, n, 4, start=step, make=Schedule)


def _fill_free(links: Ints, step: Ints, n: int) -> None:
    """Give each link without a pass one of 0, 1, 2 that neither end has, where there is one.

    Such links have no end in common, so all can be filled at once.
    """
    used = np.zeros((n, 4), bool)
    known = step >= 0
    used[links[known, 0], step[known]] = True
    used[links[known, 1], step[known]] = True
    open_ = np.flatnonzero(~known)
    free = ~(used[links[open_, 0]] | used[links[open_, 1]])[:, :3]
    some = free.any(axis=1)
    step[open_[some]] = free[some].argmax(axis=1)


def tree_over_hosts(hosts: Sequence[Sequence[int]], parent: Ints, ranks: int, pattern: str = "balanced") -> Ints:
    """parent[] over ranks of a tree over hosts: `hosts` has the ranks of each host in the order of its chain.

    Inside a host each GPU's parent is the one before it in the chain, and the first one's is in the parent host:
    "balanced" (NCCL's default) hangs the child host with the lower number at GPU 1 and the other at GPU 0, "tree"
    both at 0, "split" both at 1. A host with one GPU takes all at 0.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"no pattern {pattern}")
    made = np.full(ranks, NO_PARENT, np.int64)
    for host, members in enumerate(hosts):
        made[list(members[1:])] = list(members[:-1])
        above = int(parent[host])
        if above >= 0:
            lower = host < above
            at = {"balanced": int(lower), "tree": 0, "split": 1}[pattern]
            made[members[0]] = hosts[above][min(at, len(hosts[above]) - 1)]
    return made


def union(links: Ints, n: int, budget_s: float = 2.0) -> Schedule:
    """Passes for any set of links over ranks 0..n-1, as few as a search within `budget_s` seconds finds.

    No set takes fewer passes than the most links of one rank, and one more always does for a graph without double
    links (Vizing); what the search cannot place goes into passes of its own.
    """
    links = distinct(links)
    if not len(links):
        return Schedule(_empty(), np.empty(0, np.int64))
    degree = int(np.bincount(links.ravel(), minlength=n).max())
    return colour_graph(links, n, degree, budget_s=budget_s, make=Schedule)


def one_after_the_other(schedules: Sequence[Schedule]) -> Schedule:
    """Schedules in a row; a link that an earlier one has is not tested again."""
    links: list[Any] = [_empty()]
    steps: list[Any] = [np.empty(0, np.int64)]
    seen: set[tuple[int, int]] = set()
    base = 0
    for schedule in schedules:
        keep = [i for i, (a, b) in enumerate(schedule.links.tolist()) if (min(a, b), max(a, b)) not in seen]
        if not keep:
            continue
        seen.update((min(a, b), max(a, b)) for a, b in schedule.links[keep].tolist())
        used, step = np.unique(schedule.step[keep], return_inverse=True)
        links.append(schedule.links[keep])
        steps.append(step + base)
        base += len(used)
    return Schedule(np.concatenate(links), np.concatenate(steps), minimal=False)


def renamed(schedule: Schedule, names: Sequence[int]) -> Schedule:
    """The schedule with rank i called names[i]."""
    table = np.asarray(names, np.int64)
    links = table[schedule.links] if len(schedule.links) else schedule.links
    return Schedule(links, schedule.step, schedule.minimal)


def _empty() -> Ints:
    return np.empty((0, 2), np.int64)
