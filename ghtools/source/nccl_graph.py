# SPDX-License-Identifier: Apache-2.0
"""The rings and trees that NCCL says it uses, from its log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH).

    Channel 00/02 :    0   1   2   3      one rank prints the whole ring; long ones are cut at some 25 ranks
    Ring 00 : 3 -> 0 -> 1                 each rank its neighbours (GRAPH)
    Trees [0] 1/-1/-1->0->-1 [1] ..       each rank: children, itself, parent; before NCCL 2.8 the other way round
    Tree 0 : -1 -> 0 -> 1/2/-1            each rank: parent, itself, children (GRAPH)

Ranks are numbers inside a communicator; the communicator wanted is told by its size. Two of one size look alike, and
their links are joined. Lines that make no sense are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ghtools.stream.errors import InputError
from ghtools.stream.framing import Source

from .lines import lines
from .logtext import NCCL_INFO, Told, plain

MAX_RANK = (1 << 17) - 1
MAX_LINKS = 1 << 21
_CHANNEL = re.compile(r"Channel \d{1,4}/\d{1,4} :((?:\s{1,8}\d{1,7}){1,4096})")
_RING = re.compile(r"Ring \d{1,4} : (\d{1,7}) -> (\d{1,7}) -> (\d{1,7})(?!\d|\[)")
_TREE = re.compile(r"Tree \d{1,4} : (-?\d{1,7}) -> (\d{1,7}) -> (-?\d{1,7}/-?\d{1,7}/-?\d{1,7})")
_TREES = re.compile(
    r"\[\d{1,4}\] (-?\d{1,7}(?:/-?\d{1,7}/-?\d{1,7})?)->(\d{1,7})->(-?\d{1,7}(?:/-?\d{1,7}/-?\d{1,7})?)"
)
_SIZE = re.compile(r"\bnranks (\d{1,7})\b", re.IGNORECASE)

Pair = tuple[int, int]


@dataclass
class NcclGraph:
    """Links of rings (sender, receiver) and of trees (child, parent), each once, in order of appearance."""

    name: str
    size: int
    rings: dict[Pair, None] = field(default_factory=dict)
    trees: dict[Pair, None] = field(default_factory=dict)
    bad: int = 0

    def ring_links(self) -> list[Pair]:
        """Sender, receiver; InputError if some rank has no place in a ring."""
        return self._whole(self.rings, "rings", "Ring c : a -> b -> c")

    def tree_links(self) -> list[Pair]:
        """Child, parent; InputError if some rank has no place in a tree."""
        return self._whole(self.trees, "trees", "Trees [c]")

    def _whole(self, links: dict[Pair, None], what: str, line: str) -> list[Pair]:
        if missing := self.size - len({rank for link in links for rank in link}):
            raise InputError(
                f"cannot take the {what} from {self.name}",
                f"lines {line!r} of {missing} of {self.size} ranks are not there",
                "the logs of all ranks, with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH",
            )
        return list(links)


def read_graph(source: Source, name: str, size: int, warn: Callable[[str], None]) -> NcclGraph:
    """The graph of communicators of `size` ranks, 0 = the largest. InputError where none is told."""
    log = _Log()
    for item in lines(Told(source, name, warn), name):
        if item is not None:
            log.line(plain(item[1]))
    if not (log.whole or log.ring or log.tree):
        raise InputError(f"no rings or trees in {name}", "", "a log with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH")
    made = NcclGraph(name, size or log.largest(), bad=log.bad)
    rings = [ring for ring in log.whole if len(ring) == made.size and sorted(ring) == list(range(made.size))]
    if rings:
        made.rings = {link: None for ring in rings for link in zip(ring, [*ring[1:], ring[0]], strict=True)}
    else:
        made.rings = _inside(log.ring, made.size)
    made.trees = _inside(log.tree, made.size)
    if made.size == 2:
        made.rings = {link: None for link in made.rings if link[0] < link[1]}
    if not made.rings and not made.trees:
        raise InputError(f"no rings or trees of {made.size} ranks are in {name}", "", "--ranks as the job had them")
    if log.bad:
        warn(f"{name}: {log.bad} lines of rings or trees make no sense and were left out")
    return made


def _inside(links: Iterable[Pair], size: int) -> dict[Pair, None]:
    return {link: None for link in links if max(link) < size}


class _Log:
    """What the lines said, whatever communicator they are about."""

    def __init__(self) -> None:
        self.whole: list[list[int]] = []
        self.ring: dict[Pair, None] = {}
        self.tree: dict[Pair, None] = {}
        self.sizes: set[int] = set()
        self.bad = 0

    def largest(self) -> int:
        """Ranks of the largest communicator: as told, else the highest rank seen and one."""
        seen = [rank for links in (self.ring, self.tree) for link in links for rank in link]
        seen += [rank for ring in self.whole for rank in ring]
        return max([*self.sizes, *(rank + 1 for rank in seen)])

    def line(self, text: str) -> None:
        """Take what one line says; lines may be glued together."""
        for mark in NCCL_INFO.finditer(text):
            at = mark.end()
            if match := _CHANNEL.match(text, at):
                self._ring([int(word) for word in match[1].split()])
            elif match := _RING.match(text, at):
                before, rank, after = (int(word) for word in match.groups())
                self._add(self.ring, [(before, rank), (rank, after)])
            elif match := _TREE.match(text, at):
                self._node(int(match[1]), int(match[2]), match[3])
            elif text.startswith("Trees [", at):
                end = NCCL_INFO.search(text, at)
                for match in _TREES.finditer(text, at, end.start() if end else len(text)):
                    self._trees(*match.groups())
            elif (match := _SIZE.search(text, at, at + 200)) and int(match[1]) <= MAX_RANK + 1:
                self.sizes.add(int(match[1]))

    def _ring(self, ring: list[int]) -> None:
        if len(ring) < 2:
            return
        if max(ring) > MAX_RANK or len(set(ring)) != len(ring) or len(self.whole) >= MAX_LINKS // len(ring):
            self.bad += 1
        else:
            self.whole.append(ring)

    def _trees(self, first: str, rank: str, last: str) -> None:
        """children->rank->parent, or parent->rank->children before NCCL 2.8: the children have slashes."""
        if "/" in first and "/" not in last:
            self._node(int(last), int(rank), first)
        elif "/" in last and "/" not in first:
            self._node(int(first), int(rank), last)
        else:
            self.bad += 1

    def _node(self, parent: int, rank: int, children: str) -> None:
        found = [(rank, parent)] if parent >= 0 else []
        found += [(int(word), rank) for word in children.split("/") if int(word) >= 0]
        self._add(self.tree, found)

    def _add(self, links: dict[Pair, None], found: list[Pair]) -> None:
        if any(max(link) > MAX_RANK or link[0] == link[1] for link in found) or len(links) >= MAX_LINKS:
            # A communicator of one or two ranks has rings from a rank to itself.
            self.bad += any(max(link) > MAX_RANK for link in found)
            found = [link for link in found if max(link) <= MAX_RANK and link[0] != link[1]]
        if len(links) < MAX_LINKS:
            links.update(dict.fromkeys(found))
