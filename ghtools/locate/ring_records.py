# SPDX-License-Identifier: Apache-2.0
"""What a test of links says: a `link` record a transfer, and findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ghtools.stream.records import Finding
from ghtools.stream.records import Link as LinkRecord

from .pairs import Ends
from .ring_fabric import Fabric, Plan
from .ring_judge import Alone, Exchanged, First, Link, direction, evidence, middle, name

BY = "gh-validate-ring"
MOST_NAMED = 8


@dataclass
class Told:
    """What a test found out, for `findings`."""

    fabric: Fabric
    how: str  # which links were tested, for people
    passes: int
    judged: First
    results: dict[Link, Alone]
    untold: list[Link]  # looked slow and could not be tested again
    ends: Ends


def link_records(one: Exchanged, fabric: Fabric, plan: Plan, step: int, phase: str) -> Iterator[LinkRecord]:
    """A record for each transfer that was measured; one with the reason if none was."""
    a, b = (fabric.ends[rank] for rank in one.pair)
    facts: dict[str, Any] = {
        "by": fabric.by,
        "phase": phase,
        "hosts": [a.host, b.host],
        "devices": [a.device, b.device],
        "interfaces": [a.interface, b.interface],
        "addresses": [a.address, b.address],
    }
    if np.isfinite(one.latency_ns):
        facts["latency_ns"] = int(one.latency_ns)
    test = "sendrecv" if phase == "pass" else "sendrecv alone"
    common: dict[str, Any] = {"test": test, "type": one.type, "step": step, "t_ns": one.t_ns}
    if not one.ok:
        ends = [f"rank {rank}" for rank in one.pair]
        why = {**facts, "why": one.why or "nothing was measured"}
        yield LinkRecord(ends=ends, ranks=list(one.pair), status="no result", facts=why, **common)
        return
    for way, (sender, receiver) in enumerate((one.pair, one.pair[::-1])):
        order = slice(None, None, -1 if way else 1)
        mine = {key: value[order] if isinstance(value, list) else value for key, value in facts.items()}
        busy = list(one.busy)[order]
        if np.isfinite(busy).all():
            mine["cpu_share"] = [round(value, 3) for value in busy]
        for repeat, row in enumerate(one.gbps[way]):
            for size, gbps in zip(plan.sizes, row.tolist(), strict=True):
                if np.isfinite(gbps):
                    yield LinkRecord(
                        ends=[f"rank {sender}", f"rank {receiver}"],
                        ranks=[sender, receiver],
                        bytes=size,
                        repeat=repeat,
                        dur_ns=round(size / gbps),
                        algbw_gbps=gbps,
                        busbw_gbps=gbps,  # as nccl-tests counts sendrecv: a factor of 1
                        facts=mine,
                        **common,
                    )


def findings(told: Told, seen: Sequence[Exchanged]) -> list[Finding]:
    """What to say in the end: slow ranks or hosts, slow links, what could not be told; else that all is sound."""
    t_ns = max((one.t_ns for one in seen), default=0)
    made = [*_slow_ends(told), *_slow_links(told), *_untold(told)]
    if not made and told.judged.sound:
        made.append(_sound(told, seen))
    for finding in made:
        finding.t_ns, finding.by = t_ns, f"{BY} over {told.fabric.by}"
        finding.evidence = {**finding.evidence, "links": told.how, "passes": told.passes}
    return made


def _finding(
    told: Told, what: str, ranks: Sequence[int], verdict: str, ratio: float, text: str, **more: Any
) -> Finding:
    hosts = list(dict.fromkeys(told.fabric.ends[rank].host for rank in ranks if rank in told.fabric.ends))
    return Finding(
        what=what,
        ranks=list(ranks),
        hosts=[host for host in hosts if host],
        cause="communication",
        verdict=verdict,
        ratio=round(ratio, 3),
        text=text,
        evidence=more,
    )


def _slow_ends(told: Told) -> Iterator[Finding]:
    """Ranks that are slow with whoever they talk to; a host if all its ranks are, over its network."""
    found = {**told.ends.slow, **told.ends.suspect}
    ranks = {int(end): share for end, share in found.items()}
    for host in sorted({told.fabric.ends[rank].host for rank in ranks}):
        here = sorted(rank for rank in ranks if told.fabric.ends[rank].host == host)
        away = _away(told, host)
        if len(here) > 1 and away and away == set(here):
            ratio = 1 / min(ranks[rank] for rank in here)
            rows = {"tested": evidence(_of(told, here), told.judged.shares)}
            text = f"host {host}: links of all its ranks to other hosts are slow, {ratio:.2g} times as slow as others'"
            yield _finding(told, "host", here, "confirmed", ratio, text, **rows)
            continue
        for rank in here:
            mine = _of(told, [rank])
            slow = [link for link, one in mine.items() if one.slow]
            words = direction(rank, mine)
            text = (
                f"rank {rank}{_where(told, rank)}: {ways(words)}{1 / ranks[rank]:.2g} times as slow as others, with "
                f"{len(slow)} of {len(mine)} partners alone, whose other links are sound"
            )
            tested = evidence(mine, told.judged.shares)
            yield _finding(told, "rank", [rank], "confirmed", 1 / ranks[rank], text, tested=tested, direction=words)


def ways(words: str) -> str:
    """The direction as a word before the ratio; nothing if both."""
    return "" if not words or " and " in words else f"{words} "


def _of(told: Told, ranks: Sequence[int]) -> dict[Link, Alone]:
    return {link: one for link, one in told.results.items() if set(link) & set(ranks)}


def _away(told: Told, host: str) -> set[int]:
    """Ranks of a host whose links to other hosts were tested."""
    ends = told.fabric.ends
    links = [link for link in (*told.judged.shares, *told.results) if len({ends[rank].host for rank in link}) == 2]
    return {rank for link in links for rank in link if ends[rank].host == host}


def _where(told: Told, rank: int) -> str:
    end = told.fabric.ends[rank]
    words = [word for word in (f"host {end.host}" if end.host else "", end.interface) if word]
    return f" ({', '.join(words)})" if words else ""


def _slow_links(told: Told) -> Iterator[Finding]:
    """Slow links that no slow end explains."""
    named = {*told.ends.slow, *told.ends.suspect}
    between = {pair.ends for pair in told.ends.links}
    for link, one in sorted(told.results.items(), key=lambda item: item[1].share):
        ends = (name(link[0]), name(link[1]))
        if not one.slow or named & set(ends):
            continue
        kind = told.fabric.type_of(link)
        slow_ways = [index for index, value in enumerate(one.ways) if np.isfinite(value) and value < 0.8]
        arrow = "<->" if len(slow_ways) != 1 else "->" if slow_ways == [0] else "<-"
        text = f"link {link[0]} {arrow} {link[1]} ({kind}): {1 / one.share:.2g} times as slow as others"
        sure = ends in between or ends[::-1] in between
        text += (
            ", both ends are sound with other partners"
            if sure
            else f"; rank {link[0]}, rank {link[1]} or what is between them: it cannot be said which"
        )
        ranks = link[::-1] if arrow == "<-" else link
        tested, which = evidence(_of(told, link), told.judged.shares), "link" if sure else "one of two"
        yield _finding(told, "link", ranks, "confirmed", 1 / one.share, text, tested=tested, which=which)


def _untold(told: Told) -> Iterator[Finding]:
    """Links without a result, without peers, or that could not be tested again."""
    for links, why in (
        (told.judged.missing, "gave no result"),
        (told.judged.alone, "has no other of its type to be compared with"),
        (told.untold, "looked slow, and could not be tested alone beside sound ones"),
        (_one_pair_of_hosts(told), "join the same two hosts, so nothing tells whether they are slow alike"),
    ):
        if links:
            ranks = links[0] if len(links) == 1 else sorted({rank for link in links for rank in link})
            text = f"{listed(links)} {why}: could not tell"
            yield _finding(told, "link", ranks, "could not tell", 0.0, text, pairs=[list(link) for link in links[:64]])


def _one_pair_of_hosts(told: Told) -> list[Link]:
    """Sound links between hosts, if all of their type join the same two: what is between those is in all of them."""
    ends = told.fabric.ends
    found: list[Link] = []
    by_type: dict[str, list[Link]] = {}
    for link in told.judged.shares:
        by_type.setdefault(told.fabric.type_of(link), []).append(link)
    for links in by_type.values():
        joined = {frozenset(ends[rank].host for rank in link) for link in links}
        if len(joined) == 1 and len(next(iter(joined))) == 2:
            found += [link for link in links if link in told.judged.sound]
    return found


def listed(links: Sequence[Link]) -> str:
    """`links 1 - 2, 3 - 0`, the first few of them."""
    words = ", ".join(f"{a} - {b}" for a, b in links[:MOST_NAMED])
    more = f" and {len(links) - MOST_NAMED} more" if len(links) > MOST_NAMED else ""
    return f"link{'s' if len(links) > 1 else ''} {words}{more}"


def _sound(told: Told, seen: Sequence[Exchanged]) -> Finding:
    speeds = [float(value) for one in seen if one.ok for value in middle(one.ways, axis=1) if np.isfinite(value)]
    cleared = [link for link, one in told.results.items() if link in told.judged.slow and not one.slow]
    text = (
        f"no link is slow: {len(told.judged.shares)} links in {told.passes} passes, "
        f"{min(speeds):.3g} to {max(speeds):.3g} GB/s"
    )
    if cleared:
        text += f"; {listed(cleared)} slow among the others but not alone"
    if rest := len([link for link in told.judged.slow if link not in told.results]):
        text += f", and {rest} less slow ones were not tested alone"
    rows = {"tested": evidence(told.results, told.judged.shares)} if told.results else {}
    return _finding(told, "link", [], "cleared", 0.0, text, **rows)
