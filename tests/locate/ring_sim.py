# SPDX-License-Identifier: Apache-2.0
"""A fabric with planted slowness, for what no machine here can have: hundreds of hosts, slow NICs, wide spreads.

The real fabrics are tried in tests/locate/test_ring_real.py and tests/system/test_validate_ring.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ghtools.locate.ring_fabric import End, Plan
from ghtools.locate.ring_history import History
from ghtools.locate.ring_judge import Exchanged, Link
from ghtools.locate.ring_plan import plan as plan_links
from ghtools.locate.ring_test import RingTest
from ghtools.stream.records import Finding, Record


@dataclass
class Sim:
    """Links of `gbps`; a transfer's share of it is the least of what is planted, times noise of `spread` (log).

    `crowd` is how much wider the noise is while other pairs exchange at the same time.
    """

    n: int
    per_host: int = 1
    gbps: float = 10.0
    spread: float = 0.03
    crowd: float = 1.0
    ranks: dict[int, float] = field(default_factory=dict)  # share of what the rank sends and receives
    sends: dict[int, float] = field(default_factory=dict)
    links: dict[frozenset[int], float] = field(default_factory=dict)
    crowded: dict[frozenset[int], float] = field(default_factory=dict)  # only while others exchange
    dead: set[frozenset[int]] = field(default_factory=set)
    drift: tuple[float, ...] = ()  # speed of everything in each pass
    seed: int = 0
    by: str = "a simulation"

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.asked: list[list[Link]] = []

    @property
    def ends(self) -> Mapping[int, End]:
        return {
            r: End(r, f"host{r // self.per_host}", "cpu", "eth0", f"10.0.0.{r // self.per_host}") for r in range(self.n)
        }

    def type_of(self, link: Link) -> str:
        return "loopback" if link[0] // self.per_host == link[1] // self.per_host else "network"

    def exchange(self, links: Sequence[Link], plan: Plan) -> list[Exchanged]:
        assert len({rank for link in links for rank in link}) == 2 * len(links), "pairs of a pass are disjoint"
        at = len(self.asked)
        self.asked.append(list(links))
        drift = self.drift[at] if at < len(self.drift) else 1.0
        return [self._one(link, plan, drift, len(links) > 1) for link in links]

    def _one(self, link: Link, plan: Plan, drift: float, crowd: bool) -> Exchanged:
        kind, key = self.type_of(link), frozenset(link)
        if key in self.dead:
            return Exchanged(link, kind, np.full((2, 0, len(plan.sizes)), np.nan), why="rank gave no result in time")
        base = self.gbps * drift * (1 if kind == "network" else 3)
        base *= min([self.links.get(key, 1.0), *(self.ranks.get(r, 1.0) for r in link)])
        base *= self.crowded.get(key, 1.0) if crowd else 1.0
        ways = np.array([self.sends.get(link[0], 1.0), self.sends.get(link[1], 1.0)])
        spread = self.spread * (self.crowd if crowd else 1.0)
        noise = np.exp(spread * self.random.standard_normal((2, plan.repeats, len(plan.sizes))))
        gbps = base * ways[:, None, None] * noise
        if not plan.both:
            gbps[1] = np.nan
        return Exchanged(link, kind, gbps, 5000.0, sizes=plan.sizes)


def run_test(
    sim: Sim, topology: str = "ring", plan: Plan | None = None, history: Path | None = None
) -> tuple[RingTest, list[Finding], list[Record]]:
    """The test over a simulation: itself, its findings, all records."""
    said: list[str] = []
    schedule, how = plan_links(range(sim.n), {r: e.host for r, e in sim.ends.items()}, topology)
    kept = History(history) if history else None
    test = RingTest(sim, schedule, plan or Plan(), how, said.append, said.append, history=kept)
    records = list(test.run())
    if kept:
        kept.save()
    return test, [record for record in records if isinstance(record, Finding)], records
