# SPDX-License-Identifier: Apache-2.0
"""Verdicts over slow transfers: which group, link, host or rank, and whether something else explains them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ghtools.stream.records import OPS, Suspect

from .case import Case
from .compare import Slow, cluster, common_part, slow_groups, timings
from .groups import COLLECTIVE, EDGE
from .lateness import Floats, name_of, nanmedian

CLEARLY = 1.25
NEARLY_ALL = 0.9
EXPLAINS = 0.3  # share of the slow-down that a suspect must account for
BUSY, AS_MUCH = 0.05, 0.3  # excess of a member, as a share of the iteration and of what the slow transfers cost


def slow_transfers(case: Case, named: list[int], over: Floats) -> list[Suspect]:
    """Suspects for slow transfers; `named` are the slow ranks, `over` is everybody's excess (iterations x ranks)."""
    slow = slow_groups(case.window, case.before, case.groups, case.keys, case.iter_ns)
    made = []
    for kind in (COLLECTIVE, EDGE):
        mine = [s for s in slow if case.group_of[s.group].kind == kind]
        why = {s.group: _effect(case, s, named, over) for s in mine}
        sure = [s for s in mine if not why[s.group]]
        if sure:
            made.append(_slow_part(case, sure, kind, named))
        elif mine and kind == COLLECTIVE:
            made.append(_slow_part(case, mine, kind, named, effect=sorted({r for s in mine for r in why[s.group]})))
    if not made and not named and (budget := _budget(case)):
        made.append(budget)
    return made


def _effect(case: Case, slow: Slow, named: list[int], over: Floats) -> list[int]:
    """Members of the group that may be why its transfers are slow.

    Gloo moves data by the CPU that computes: when that is short of time, so are its transfers, by more than its
    compute if a quota stops it at a bad moment. So there a member that works much longer than its peers may be the
    cause before it is certain that it is slow. A pair tells nothing beside a slow end, either, since grouped sends and
    receives end together.
    """
    group = case.group_of[slow.group]
    by_cpu = "gloo" in case.groups.backend
    guilty = set(named) if by_cpu or group.kind == EDGE else set()
    if by_cpu:
        guilty |= set(case.own.ranks[nanmedian(over) >= max(BUSY, AS_MUCH * slow.total)].tolist())
        if slow.how == "past" and all_work_longer(case):
            guilty |= set(group.members)
    return sorted(guilty & set(group.members))


def all_work_longer(case: Case) -> bool:
    """Whether nearly all ranks clearly work longer than before, between their collectives: their CPUs are slower."""
    if case.past is None:
        return False
    _, here, there = np.intersect1d(case.own.ranks, case.past.ranks, return_indices=True)
    ratio = nanmedian(case.own.own)[here] / nanmedian(case.past.own)[there]
    ratio = ratio[np.isfinite(ratio)]
    return len(ratio) > 1 and float(np.mean(ratio >= CLEARLY)) >= NEARLY_ALL


def _slow_part(case: Case, slow: list[Slow], kind: int, named: list[int], effect: Sequence[int] = ()) -> Suspect:
    """What slow groups have in common, as a suspect."""
    seen = [t for t in timings(case.window.transfers, case.groups) if t.whole]
    guilty = {s.group for s in slow}
    alike = {cluster(t, case.groups, case.keys) for t in seen if t.group in guilty}
    healthy = {t.group for t in seen if t.group not in guilty and cluster(t, case.groups, case.keys) in alike}
    what, ranks, hosts = common_part(slow, case.groups, sorted(healthy))
    worst = slow[0]
    key = case.keys[worst.key]
    names = ", ".join(name_of(case.group_of[s.group]) for s in slow[:4]) + (", ..." if len(slow) > 4 else "")
    against = f"of {worst.peers} comparable groups" if worst.how == "peers" else "of its own before"
    all_slow = worst.how == "past" and len(slow) > 1 and not healthy
    evidence = {
        "op": OPS[key.op], "bytes": key.bytes, "transfer_ns": worst.time, "usual_ns": worst.usual, "against": worst.how,
        "loss_share": float(np.mean([s.total for s in slow])), "agree": worst.agree,
        "groups": [{"group": name_of(case.group_of[s.group]), "ratio": s.ratio, "loss": s.total} for s in slow[:16]],
    }  # fmt: skip
    where = {"link": "link", "host": "host", "rank": "links of rank", "group": "group"}[what]
    who = " -> ".join(hosts) if what == "link" and kind == COLLECTIVE and len(hosts) == 2 else ""
    who = who or (hosts[0] if what == "host" else (" -> " if what == "link" else ", ").join(map(str, ranks[:8])))
    text = (
        f"{where} {who}: transfers ({OPS[key.op]}, {key.bytes} bytes) take {worst.ratio:.2f} times those {against}, "
        f"{100 * worst.total:.0f} % of the iteration, in {names}"
    )
    verdict = "attributed"
    if all_slow:
        text += "; all groups are slow alike"
    # Beside a slow rank, which explains the slow-down, a link has to be clearly slow and no more.
    clear = bool(named) and worst.ratio >= CLEARLY
    if case.onset is not None and not clear and max(s.total for s in slow) < EXPLAINS * case.onset.loss:
        verdict = "inconclusive"
        text += f"; it explains {100 * worst.total / case.onset.loss:.0f} % of the slow-down only"
    if effect:
        verdict = "inconclusive"
        text += f"; this may be the effect of rank {', '.join(map(str, effect[:4]))}, whose CPU moves the data"
    comm = case.group_of[worst.group].comm if len(slow) == 1 else 0
    return case.suspect(
        what, "communication", verdict, text, ranks=ranks, hosts=hosts, ratio=worst.ratio, comm=comm, evidence=evidence
    )


def _budget(case: Case) -> Suspect | None:
    """No past and no peers: transfers that take longer now than the whole iteration did before are slow."""
    if case.onset is None or case.before is not None or case.onset.before_ns <= 0:
        return None
    total: dict[int, float] = {}
    for timing in timings(case.window.transfers, case.groups):
        if timing.whole and case.group_of[timing.group].kind == COLLECTIVE:
            total[timing.group] = total.get(timing.group, 0.0) + timing.time * timing.each
    own = float(np.nanmedian(nanmedian(case.own.own)))
    old = case.onset.before_ns
    slow = [number for number, time in total.items() if time > 1.1 * old and own < old]
    if not slow:
        return None
    number = max(slow, key=lambda n: total[n])
    group = case.group_of[number]
    what = "link" if group.size == 2 else "group"
    ratio = total[number] / max(case.onset.before_ns - own, 0.1 * case.onset.before_ns)
    text = (
        f"{what} {name_of(group)}: its transfers take {total[number] / 1e6:.0f} ms an iteration, more than the whole "
        f"iteration did before ({case.onset.before_ns / 1e6:.0f} ms), and no rank works longer"
    )
    return case.suspect(
        what, "communication", "attributed", text, ranks=list(group.members), comm=group.comm, ratio=ratio,
        evidence={"transfer_ns": total[number], "before_ns": case.onset.before_ns, "against": "iteration before"},
    )  # fmt: skip
