# SPDX-License-Identifier: Apache-2.0
"""The test of links: passes, then what looks slow alone, then its ends with other partners (ring_judge.py judges)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ghtools.job.task import VALUES
from ghtools.stream.errors import Exit
from ghtools.stream.records import Finding, Record

from .passes import Schedule
from .ring_fabric import FIRST, Fabric, Plan
from .ring_history import History, compare, with_history
from .ring_judge import (
    CONTROLS,
    FEWEST_CONTROLS,
    FEWEST_ROUNDS,
    Alone,
    Exchanged,
    First,
    Link,
    alone,
    controls,
    ends_of,
    first,
    more_controls,
    second_pairs,
)
from .ring_records import BY, Told, findings, link_records
from .ring_table import lines

MAX_REPEATS = 32  # of an exchange alone
SMALLEST = 1 << 20  # bytes of a transfer alone; less tells of latency


class RingTest:
    """One test of all links of a schedule. `run` yields its records; `code` then says how it ended.

    `say` hears sentences, `show` the rows of the table. `left_s` tells how long the test may still take: rounds that do
    not fit are left out, and what they would have told is not told. `history` holds earlier runs: this one is compared
    with them and added to them; whoever keeps it saves it.
    """

    def __init__(
        self,
        fabric: Fabric,
        schedule: Schedule,
        plan: Plan,
        how: str,
        say: Callable[[str], None],
        show: Callable[[str], None],
        left_s: Callable[[], float] = lambda: math.inf,
        history: History | None = None,
    ) -> None:
        self._fabric, self._schedule, self._plan, self._how = fabric, schedule, plan, how
        self._say, self._show, self._left_s = say, show, left_s
        self._history = history
        self._step = schedule.passes
        self.seen: list[Exchanged] = []
        self.code = Exit.UNKNOWN

    def run(self) -> Iterator[Record]:
        """Link records as they are measured, then findings. CouldNotTell if a rank goes away meanwhile."""
        plan, fabric = self._plan, self._fabric
        for step in range(self._schedule.passes):
            for made in fabric.exchange(self._schedule.in_pass(step), plan):
                one = replace(made, step=step)
                self.seen.append(one)
                yield from link_records(one, fabric, plan, step, "pass")
        judged = first(self.seen, in_all=plan.at_once)
        for line in lines(self.seen, fabric):
            self._show(line)
        results: dict[Link, Alone] = {}
        untold: list[Link] = []
        # The slowest first: there may be no time for all.
        for kind in dict.fromkeys(self._type(link) for link in judged.slow):
            yield from self._again(judged, kind, results, untold)
        told = Told(
            fabric, self._how, self._schedule.passes, judged, results, untold, ends_of(results, judged.slow, self._type)
        )
        said = self._with_history(findings(told, self.seen))
        for finding in said:
            self._say(finding.text)
        self.code = code_of(said)
        yield from said

    def _with_history(self, said: list[Finding]) -> list[Finding]:
        """The findings with what earlier runs tell, if there are any; this run is added to them."""
        if self._history is None:
            return said
        compared = compare(self.seen, self._fabric, self._plan.both, self._history.past)
        t_ns = max((one.t_ns for one in self.seen), default=0)
        said = with_history(said, compared, f"{BY} over {self._fabric.by}")
        for finding in said:
            finding.t_ns = finding.t_ns or t_ns
        self._history.add(compared, said, t_ns)
        return said

    def _again(self, judged: First, kind: str, results: dict[Link, Alone], untold: list[Link]) -> Iterator[Record]:
        """Test links of one type alone beside sound ones; then their ends. Adds to `results` or `untold`."""
        types = {one.pair: one.type for one in self.seen}
        sound = controls(judged, types, kind)
        if len(sound) < FEWEST_CONTROLS:
            hosts = {rank: end.host for rank, end in self._fabric.ends.items()}
            sound += more_controls(judged, types, kind, hosts, self._type)[: CONTROLS - len(sound)]
            types = types | dict.fromkeys(sound, kind)
        look_slow = [link for link in judged.slow if types[link] == kind and link not in sound]
        suspects = look_slow[: self._plan.most]
        if not suspects:
            return
        self._say(
            f"{len(look_slow)} {kind} links look slow: "
            + (f"the slowest {len(suspects)} " if len(suspects) < len(look_slow) else "each ")
            + f"alone, in {self._plan.rounds} rounds, beside {len(sound)} that do not"
        )
        rounds: dict[Link, list[Exchanged]] = {}
        plan = self._alone_plan(kind, suspects)
        ranks = sorted({rank for link in (*judged.sound, *sound) if types[link] == kind for rank in link})
        others = second_pairs(suspects, types, ranks, lambda link: self._type(link) == kind) if plan.at_once else []
        yield from self._rounds([*suspects, *others, *sound], "alone", plan, rounds)
        made = alone(rounds, sound) if min(map(len, rounds.values()), default=0) >= FEWEST_ROUNDS else None
        if made is None:
            untold += suspects
            return
        results.update(made)
        untold += [link for link in suspects if link not in made]
        slow = [link for link in suspects if link in made and made[link].slow]
        if not slow:
            return  # and those that were less slow in their pass are no worse alone
        if plan.at_once:
            untold += look_slow[self._plan.most :]
            return
        second = second_pairs(slow, types, ranks, lambda link: self._type(link) == kind)
        self._say(f"{len(slow)} slow: once more, and both ends with other partners, {len(second)} pairs")
        again: dict[Link, list[Exchanged]] = {}
        yield from self._rounds([*slow, *second, *sound], "second pairing", plan, again)
        for link, one in (alone(again, sound) or {}).items():
            if link in second or (link in slow and not one.slow):
                results[link] = one
        if any(results[link].slow for link in slow):
            untold += look_slow[self._plan.most :]

    def _rounds(
        self, links: Sequence[Link], phase: str, plan: Plan, made: dict[Link, list[Exchanged]]
    ) -> Iterator[Record]:
        """Each link alone, in turn, several times over, as long as there is time for a round."""
        took_s = 0.0
        for done in range(plan.rounds):
            if self._left_s() < took_s:
                self._say(f"{done} of {plan.rounds} rounds: there was no time for more")
                break
            began = time.monotonic()
            for link in links:
                for one in self._fabric.exchange([link], plan):
                    made.setdefault(link, []).append(one)
                    yield from link_records(one, self._fabric, plan, self._step, phase)
            took_s = time.monotonic() - began
        self._step += 1

    def _alone_plan(self, kind: str, suspects: Sequence[Link]) -> Plan:
        """Sizes that the slowest suspect can move in about `alone_s`, and so many repeats that the others take as long.

        All links are tested with the same sizes. Among others on a host with few CPUs a link is some times slower than
        alone, so that this is more than enough.
        """
        plan = self._plan
        speeds = {one.pair: float(np.nanmedian(one.slower)) for one in self.seen if one.ok and one.type == kind}
        slowest = min(speeds[link] for link in suspects)
        most = max(SMALLEST, int(2 * plan.alone_s * slowest * 1e9))
        sizes = tuple(size for size in plan.sizes if size <= most) or (most,)
        usual = float(np.median(list(speeds.values())))
        repeats = math.ceil(plan.alone_s * usual * 1e9 / sum(sizes))
        repeats = min(max(1, repeats), MAX_REPEATS, (VALUES - FIRST) // len(sizes))
        longest_s = (2 if plan.at_once else 4) * plan.alone_s
        return replace(plan, sizes=sizes, repeats=repeats, soft_s=min(plan.soft_s, longest_s))

    def _type(self, link: Link) -> str:
        return self._fabric.type_of(link)


def code_of(made: Sequence[Finding]) -> Exit:
    """1 if something slow was confirmed, else 5 if something could not be told, else 0."""
    verdicts = {finding.verdict for finding in made}
    if "confirmed" in verdicts:
        return Exit.SLOW
    return Exit.UNKNOWN if "could not tell" in verdicts or not made else Exit.OK
