# SPDX-License-Identifier: Apache-2.0
"""Which ranks do the same work: from a stated layout, or from who talks with whom.

Ranks of one pipeline stage do the same work, whatever their tensor or data parallel place; so a rank is compared
with the others of its stage. Stages show by their send and receive: two ranks that exchange activations are in
different stages, and so no communicator that holds such a pair (the world, the tied embeddings) joins peers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ghtools.stream.errors import GhError

from .groups import COLLECTIVE, EDGE, Group

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True)
class Layout:
    """Sizes in the order in which ranks are numbered, the fastest first."""

    order: tuple[str, ...]
    sizes: dict[str, int]

    @property
    def ranks(self) -> int:
        total = 1
        for name in self.order:
            total *= self.sizes.get(name, 1)
        return total

    def place(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank."""
        made = {}
        for name in self.order:
            size = self.sizes.get(name, 1)
            made[name], rank = rank % size, rank // size
        return made


def parse(text: str) -> Layout:
    """tp=2,dp=4,pp=2,order=tp-dp-pp as a layout; raises GhError."""
    sizes: dict[str, int] = {}
    order: tuple[str, ...] = ("tp", "cp", "dp", "pp")
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        if name == "order":
            order = tuple(value.split("-"))
        elif name in DIMENSIONS and value.isascii() and value.isdigit() and 0 < int(value[:9]) <= 1 << 20:
            sizes[name] = int(value[:9])
        else:
            raise GhError(f"cannot read {part!r}", "it is no size of a layout", "tp=2,dp=4,pp=2,order=tp-dp-pp")
    if len(set(order)) != len(order) or set(order) - set(DIMENSIONS) or set(sizes) - set(order):
        raise GhError(f"cannot use the order {'-'.join(order)}", "it must name each size once", "order=tp-dp-pp")
    if not sizes:
        raise GhError("cannot read the layout", "it names no size", "tp=2,dp=4,pp=2")
    return Layout(order, sizes)


def known(sizes: dict[str, int], world: int) -> Layout | None:
    """The layout a job record states, if it fits the number of ranks (Megatron's order)."""
    chosen = {name: size for name, size in sizes.items() if name in ("tp", "cp", "dp", "pp") and size > 0}
    made = Layout(("tp", "cp", "dp", "pp"), chosen)
    return made if chosen and (not world or made.ranks == world) else None


def stages(ranks: Iterable[int], groups: Iterable[Group], layout: Layout | None = None) -> list[list[int]]:
    """Ranks by stage: lists of ranks that do the same work, each sorted, first ranks first.

    With a layout, by its pp coordinate. Else ranks are joined by collectives, except by those that hold a
    pair which exchanges activations, and by those whose members are already of stages so joined.
    """
    all_ranks = sorted(set(ranks))
    if layout is not None and (not all_ranks or all_ranks[-1] < layout.ranks):
        by: dict[int, list[int]] = {}
        for rank in all_ranks:
            by.setdefault(layout.place(rank).get("pp", 0), []).append(rank)
        return [by[stage] for stage in sorted(by)]
    parent = {rank: rank for rank in all_ranks}

    def find(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    known_groups = list(groups)
    talks: dict[int, set[int]] = {}
    for group in known_groups:
        if group.kind == EDGE:
            talks.setdefault(group.members[0], set()).add(group.members[1])
            talks.setdefault(group.members[1], set()).add(group.members[0])
    distance = _distances(talks)
    for group in known_groups:
        if group.kind == COLLECTIVE:
            inside = [rank for rank in group.members if rank in parent]
            if len({distance.get(rank) for rank in inside}) > 1 or _crosses(inside, talks):
                continue
            for rank in inside[1:]:
                parent[find(rank)] = find(inside[0])
    made: dict[int, list[int]] = {}
    for rank in all_ranks:
        made.setdefault(find(rank), []).append(rank)
    return sorted(made.values())


def _crosses(inside: list[int], talks: dict[int, set[int]]) -> bool:
    """Whether two members exchange activations."""
    members = set(inside)
    return any(not members.isdisjoint(talks.get(rank, ())) for rank in inside)


def _distances(talks: dict[int, set[int]]) -> dict[int, tuple[int, int]]:
    """Place of a rank on its pipeline: (neighbours, steps from the pipeline's end with the lowest rank).

    The first and the last stage of a pipeline do not talk with each other, yet are different stages; the tied
    embeddings join just those two.
    """
    made: dict[int, tuple[int, int]] = {}
    for start in sorted(talks):
        if start in made:
            continue
        seen, queue = {start}, [start]
        for rank in queue:
            for other in sorted(talks[rank]):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        ends = [rank for rank in queue if len(talks[rank]) == 1]
        first = min(ends or queue)
        steps, level = {first: 0}, [first]
        for rank in level:
            for other in sorted(talks[rank]):
                if other not in steps:
                    steps[other] = steps[rank] + 1
                    level.append(other)
        for rank in queue:
            made[rank] = (len(ends), steps[rank])
    return made
