# SPDX-License-Identifier: Apache-2.0
"""The table of links for people: bandwidth both ways, latency, ratio to the median of its type. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .ring_fabric import End, Fabric
from .ring_judge import Exchanged, middle, references, share

MOST = 64  # rows; of more links only the slowest are shown


def lines(seen: Sequence[Exchanged], fabric: Fabric) -> Iterator[str]:
    """Rows in the order of the passes: GB/s is the median over sizes and repeats, `of median` the slower way's.

    The median is that of the links it is compared with (ring_judge.references).
    """
    for kind in sorted({one.type for one in seen}):
        yield from _used(kind, {rank for one in seen if one.type == kind for rank in one.pair}, fabric)
    half = references(seen, 50.0)
    of_median = {one.pair: share(one, half[one.pair]) if one.ok else float("nan") for one in seen}
    shown = sorted(seen, key=lambda one: _rank(of_median[one.pair]))[:MOST]
    yield f"{'pass':>4} {'link':>15} {'type':<9} {'busbw GB/s':>15} {'latency us':>10} {'of median':>9}"
    for one in sorted(shown, key=lambda one: (one.step, one.pair)):
        name = f"{one.pair[0]} - {one.pair[1]}"
        if not one.ok:
            yield f"{one.step:>4} {name:>15} {one.type:<9} no result: {one.why}"
            continue
        there, back = middle(one.ways, axis=1).tolist()
        speed = f"{there:.3g}" + (f" / {back:.3g}" if np.isfinite(back) else "")
        latency = f"{one.latency_ns / 1000:.0f}" if np.isfinite(one.latency_ns) else "-"
        yield f"{one.step:>4} {name:>15} {one.type:<9} {speed:>15} {latency:>10} {of_median[one.pair]:>9.2f}"
    if len(seen) > MOST:
        yield f"the slowest {MOST} of {len(seen)} links"


def _rank(value: float) -> float:
    return value if np.isfinite(value) else -1.0


def _used(kind: str, ranks: set[int], fabric: Fabric) -> Iterator[str]:
    """Which device and NIC the ends used: one line if all alike on a host."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for rank in sorted(ranks):
        end: End = fabric.ends[rank]
        groups.setdefault((end.host, end.device, end.interface, end.address), []).append(rank)
    for (host, device, interface, address), members in list(groups.items())[:MOST]:
        names = _ranks(members)
        where = " ".join(word for word in (host, device, interface, address) if word)
        yield f"{kind} over {fabric.by}: {names} on {where}"
    if len(groups) > MOST:
        yield f"{kind} over {fabric.by}: and {len(groups) - MOST} more places"


def _ranks(members: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in members:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:8])
    return ("rank " if len(members) == 1 else "ranks ") + words + (",..." if len(runs) > 8 else "")
