# SPDX-License-Identifier: Apache-2.0
"""Which links to test and in which passes: the library's own rings and trees, or those it would make. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ghtools.stream.errors import GhError

from .passes import (
    Schedule,
    btree,
    double_tree,
    one_after_the_other,
    renamed,
    ring,
    second_btree,
    tree_links,
    tree_over_hosts,
    union,
)

TOPOLOGIES = ("ring", "tree", "both")
_SIZE = re.compile(r"(\d{1,13})([KMG]?)B?", re.IGNORECASE)
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MAX_SIZE = 1 << 40


class Graph(Protocol):
    """Rings and trees that the library told, by rank."""

    name: str

    def ring_links(self) -> Sequence[tuple[int, int]]:
        """Sender, receiver."""

    def tree_links(self) -> Sequence[tuple[int, int]]:
        """Child, parent."""


def plan(
    ranks: Sequence[int], hosts: Mapping[int, str], topology: str, graph: Graph | None = None
) -> tuple[Schedule, str]:
    """The schedule over `ranks`, and in words what it is. GhError with fewer than two ranks, or a graph of others."""
    if topology not in TOPOLOGIES:
        raise GhError(f"cannot test the topology {topology!r}", "it is not known", ", ".join(TOPOLOGIES))
    if len(ranks) < 2:
        raise GhError("cannot test links", f"{len(ranks)} rank has none", "--ranks with two or more")
    if graph is not None:
        return _told(ranks, topology, graph)
    parts, words = [], []
    if topology in ("ring", "both"):
        parts.append(ring(len(ranks)))
        words.append("a ring in the order of ranks")
    if topology in ("tree", "both"):
        made, how = _double_tree(ranks, hosts)
        parts.append(made)
        words.append(how)
    schedule = parts[0] if len(parts) == 1 else one_after_the_other(parts)
    return renamed(schedule, ranks), " and ".join(words) + ", computed"


def _double_tree(ranks: Sequence[int], hosts: Mapping[int, str]) -> tuple[Schedule, str]:
    """NCCL's double binary tree over hosts, with a chain inside each; over ranks if all are on one host."""
    by_host: dict[str, list[int]] = {}
    for index, rank in enumerate(ranks):
        by_host.setdefault(hosts.get(rank, ""), []).append(index)
    chains = list(by_host.values())
    if len(chains) == 1:
        return double_tree(len(ranks)), "a double binary tree with each rank as a node"
    links = np.concatenate(
        [tree_links(tree_over_hosts(chains, parent(len(chains)), len(ranks))) for parent in (btree, second_btree)]
    )
    return union(links, len(ranks)), f"a double binary tree over {len(chains)} hosts, a chain inside each"


def _told(ranks: Sequence[int], topology: str, graph: Graph) -> tuple[Schedule, str]:
    links: list[tuple[int, int]] = []
    if topology in ("ring", "both"):
        links += graph.ring_links()
    if topology in ("tree", "both"):
        links += graph.tree_links()
    number = {rank: index for index, rank in enumerate(ranks)}
    wanted = [(number[a], number[b]) for a, b in links if a in number and b in number and a != b]
    if not wanted:
        raise GhError(
            f"no links of ranks {ranks[0]}-{ranks[-1]} are in {graph.name}", "", "--ranks as the job had them"
        )
    what = {"ring": "the rings", "tree": "the trees", "both": "the rings and trees"}[topology]
    made = union(np.array(wanted, np.int64), len(ranks))
    return renamed(made, ranks), f"{what} that {graph.name} tells"


def parse_sizes(text: str, most: int) -> tuple[int, ...]:
    """16M,32M,64M as bytes (powers of 1024, as nccl-tests reads them), ascending; GhError says what is wrong."""
    sizes = set()
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        size = int(match[1]) * _UNIT[match[2].upper()] if match else 0
        if not 0 < size <= MAX_SIZE:
            raise GhError(f"cannot read the size {part.strip()[:40]!r}", "", "16M,32M,64M")
        sizes.add(size)
    if len(sizes) > most:
        raise GhError(f"cannot test {len(sizes)} sizes", f"at most {most} are", "fewer")
    return tuple(sorted(sizes))


def parse_where(text: str) -> str | dict[str, str]:
    """IF, or host=IF,host=IF as a table by host."""
    if "=" not in text:
        return text
    made = {}
    for part in text.split(","):
        host, _, name = part.partition("=")
        if not host or not name:
            raise GhError(f"cannot read the interface {part[:60]!r}", "", "eth0, or node1=eth0,node2=eth1")
        made[host] = name
    return made
