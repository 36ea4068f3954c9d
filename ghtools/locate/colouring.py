# SPDX-License-Identifier: Apache-2.0
"""Proper colouring of the edges of a graph by exchanging two colours along chains (Kempe).

An edge whose ends have no free colour in common gets one by exchanging two colours along the chain that begins at
one end, unless the chain ends at the other. With as many colours as the largest degree this always succeeds for
trees and other bipartite graphs, and nearly always for the sparse graphs of communication libraries. What it cannot
place after some random exchanges gets a colour more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
T = TypeVar("T")
MANY = 50  # a share of edges without a colour over one in so many is worth the lists
TRIES = 200  # random exchanges before an edge gets a colour of its own


def colour_graph(
    links: Ints, n: int, colours: int, *, make: Callable[[Ints, Ints, bool], T], start: Ints | None = None,
    budget_s: float = 2.0,
) -> T:  # fmt: skip
    """Colour `links` (m, 2) over vertices 0..n-1 with `colours` colours, or a few more where that fails.

    `start` (m,) holds colours to begin with, -1 = none; those in conflict are taken back. No link may be there
    twice. The result is make(links, colour of each, whether no fewer colours would do); after `budget_s` seconds
    edges that do not fit at once get further colours, taken greedily.
    """
    step = np.full(len(links), -1, np.int64) if start is None else start.copy()
    if start is not None:
        _take_back(links, step, n, colours)
    degree = int(np.bincount(links.ravel(), minlength=1).max()) if len(links) else 0
    waiting = np.flatnonzero(step < 0)
    if len(waiting):
        search = _Chains(links, step, n, colours)
        deadline = time.monotonic() + budget_s
        for edge in waiting.tolist():
            search.place(edge, deadline)
        step = search.colours()
    return make(links, step, not len(links) or int(step.max()) + 1 <= degree)


def _take_back(links: Ints, step: Ints, n: int, colours: int) -> None:
    """Uncolour the later of two edges that meet in one colour."""
    known = np.flatnonzero(step >= 0)
    slot = np.concatenate([links[known, 0], links[known, 1]]) * colours + np.tile(step[known], 2)
    owner = np.tile(known, 2)
    order = np.argsort(slot, kind="stable")
    again = np.flatnonzero(slot[order][1:] == slot[order][:-1]) + 1
    step[owner[order][again]] = -1


class _Chains:
    """The neighbour of each vertex by colour, and the exchanges."""

    def __init__(self, links: Ints, step: Ints, n: int, colours: int) -> None:
        self.k = colours
        table = np.full((n, colours), -1, np.int64)
        known = step >= 0
        table[links[known, 0], step[known]] = links[known, 1]
        table[links[known, 1], step[known]] = links[known, 0]
        # Lists are quicker than an array to read one by one, but take a while to make.
        self.at: Any = table.tolist() if (step < 0).sum() * MANY > len(step) else table
        self._random = random.Random(1)
        self._links = links

    def place(self, edge: int, deadline: float) -> None:
        """Give one edge a colour, moving others if need be."""
        pending = [tuple(self._links[edge].tolist())]
        for attempt in range(TRIES):
            u, v = pending[-1]
            if self._fit(u, v):
                pending.pop()
                if not pending:
                    return
                continue
            if time.monotonic() > deadline:
                break
            if attempt % 4 == 3:
                # Where no chain helps, an edge beside this one gives its colour up and looks for another.
                colour = self._random.choice([c for c in range(self.k) if self.at[u][c] >= 0])
                other = self.at[u][colour]
                if self.at[v][colour] < 0:
                    self._set(u, other, colour, False)
                    self._set(u, v, colour, True)
                    pending[-1] = (u, int(other))
            else:
                a, b = self._random.sample(range(self.k), 2) if self.k > 1 else (0, 0)
                self._exchange(self._random.choice((u, v)), a, b)
        for u, v in pending:
            while not self._direct(u, v):
                self.at = [[*row, -1] for row in self.at]
                self.k += 1

    def _direct(self, u: int, v: int) -> bool:
        for colour, (x, y) in enumerate(zip(self.at[u], self.at[v], strict=True)):
            if x < 0 and y < 0:
                self._set(u, v, colour, True)
                return True
        return False

    def _fit(self, u: int, v: int) -> bool:
        """Colour u - v, after one exchange if need be."""
        if self._direct(u, v):
            return True
        mine = [c for c in range(self.k) if self.at[u][c] < 0]
        theirs = [c for c in range(self.k) if self.at[v][c] < 0]
        for a in mine:
            for b in theirs:
                if self._end(v, a, b) != u:
                    self._exchange(v, a, b)
                    self._set(u, v, a, True)
                    return True
        return False

    def _set(self, u: int, v: int, colour: int, there: bool) -> None:
        self.at[u][colour] = v if there else -1
        self.at[v][colour] = u if there else -1

    def _end(self, vertex: int, a: int, b: int) -> int:
        """Where the chain of colours a, b, a, .. from `vertex` ends."""
        while (after := self.at[vertex][a]) >= 0:
            vertex, a, b = after, b, a
        return vertex

    def _exchange(self, vertex: int, a: int, b: int) -> None:
        """Exchange a and b along the chain that begins at `vertex` with a, if it has no b (else it is no end)."""
        if a == b or (self.at[vertex][a] >= 0 and self.at[vertex][b] >= 0):
            return
        if self.at[vertex][a] < 0:
            a, b = b, a
        path = [vertex]
        colour, other = a, b
        while (after := self.at[path[-1]][colour]) >= 0:
            path.append(after)
            colour, other = other, colour
        colour, other = a, b
        for u, v in pairwise(path):
            self._set(u, v, colour, False)
            colour, other = other, colour
        colour, other = b, a
        for u, v in pairwise(path):
            self._set(u, v, colour, True)
            colour, other = other, colour

    def colours(self) -> Ints:
        """Colour of every edge."""
        table = np.array(self.at, np.int64)
        u, v = self._links[:, 0], self._links[:, 1]
        return np.asarray((table[u] == v[:, None]).argmax(axis=1))
