# SPDX-License-Identifier: Apache-2.0
"""Who keeps a stalled job waiting, from what each rank last asked of its groups (pure).

A stall is not slowness: nothing here is measured. Two things can be seen in the records of a job that stands still.

- A rank has not called a collective that its peers wait in. If it waits itself for somebody else it is a victim; the
  one at the end of such a chain, with nothing of its own pending, is outside communication: its host code stands.
- A rank has not finished a collective that its peers have finished. Nobody can finish an all-reduce without the
  others, so its part was done and the rank does not see it: its device, or the thread that watches it, has stopped.

Where everybody has called and nobody has finished, the records cannot tell who it is. A rank without a record is
missing, and may be the one; it is named as missing. Sends and receives have numbers of their own on each side, so
that only "waits for that peer" is taken from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
MAX_LISTED = 256


@dataclass(frozen=True)
class Pending:
    """A call that has not finished."""

    group: int
    seq: int  # number of the collective in its group
    op: str
    peer: int = -1  # send and receive: global rank of the other side; a collective has -1
    t_ns: int = 0  # when it was called
    where: str = ""  # line of the user's code


@dataclass
class Dump:
    """What one rank says. `called` and `done` hold the last collective of a group, where that is known."""

    rank: int
    pending: list[Pending] = field(default_factory=list)  # oldest first
    called: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """A process group."""

    name: str
    ranks: Sequence[int]


@dataclass
class Stall:
    """One finding. `verdict` is attributed (the records show that it is these ranks) or inconclusive."""

    ranks: list[int]
    group: int
    verdict: str
    text: str
    what: str = "rank"
    evidence: dict[str, object] = field(default_factory=dict)


def judge(dumps: Mapping[int, Dump], groups: Mapping[int, Group]) -> list[Stall]:
    """Findings, those that name a rank first; [] if nothing is pending."""
    if not any(dump.pending for dump in dumps.values()):
        return []
    missing = sorted({rank for group in groups.values() for rank in group.ranks} - dumps.keys())
    stopped = {rank: seen for rank, dump in dumps.items() if (seen := _unfinished(dump, dumps, groups))}
    waits = {rank: [] if rank in stopped else _waits_for(dump, dumps, groups) for rank, dump in sorted(dumps.items())}
    found = [_stopped(rank, seen, dumps, groups) for rank, seen in sorted(stopped.items())]
    unheard: list[int] = []
    for ring in _ends(waits):
        if len(ring) > 1:
            found.append(_circle(ring, dumps, groups))
        elif ring[0] not in dumps:
            unheard += ring
        elif ring[0] not in stopped and not dumps[ring[0]].pending:
            found.append(_outside(ring, waits, dumps, groups))
    if unheard:
        found.append(_outside(unheard, waits, dumps, groups))
    if not found:
        found = _undecided(dumps, groups, missing)
    found += _disagreements(dumps, groups)
    for stall in found:
        if missing:
            stall.evidence["missing"] = missing[:MAX_LISTED]
    return sorted(found, key=lambda stall: stall.verdict != "attributed")


def _unfinished(dump: Dump, dumps: Mapping[int, Dump], groups: Mapping[int, Group]) -> tuple[Pending, list[int]] | None:
    """The first collective that is pending here and finished on a peer, and those peers."""
    for pending in dump.pending:
        if pending.peer < 0 and pending.op in SYNCHRONISING and pending.group in groups:
            done = [
                rank
                for rank in groups[pending.group].ranks
                if rank in dumps and dumps[rank].done.get(pending.group, -1) >= pending.seq
            ]
            if done and dump.rank not in done:
                return pending, done
    return None


def _waits_for(dump: Dump, dumps: Mapping[int, Dump], groups: Mapping[int, Group]) -> list[int]:
    """Ranks that keep this one waiting in its oldest pending call; ranks without a dump where no other explains it."""
    if not dump.pending:
        return []
    oldest = dump.pending[0]
    if oldest.peer >= 0:
        return [oldest.peer] if oldest.peer != dump.rank else []
    members = groups[oldest.group].ranks if oldest.group in groups else ()
    late = [q for q in members if q in dumps and dumps[q].called.get(oldest.group, oldest.seq) < oldest.seq]
    return late or [q for q in members if q not in dumps]


def _ends(waits: Mapping[int, list[int]]) -> list[list[int]]:
    """Where the chains of waiting end: ranks that somebody waits for and that wait for nobody outside their circle.

    Strongly connected components (Tarjan) without an edge out, in order of their lowest rank.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    component: dict[int, int] = {}
    members: list[list[int]] = []
    for root in waits:
        work: list[tuple[int, int]] = [(root, 0)] if root not in index else []
        while work:
            node, step = work.pop()
            if step == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            targets = waits.get(node, [])
            if step > 0 and targets[step - 1] in on_stack:
                low[node] = min(low[node], low[targets[step - 1]])
            while step < len(targets) and targets[step] in index:
                if targets[step] in on_stack:
                    low[node] = min(low[node], index[targets[step]])
                step += 1
            if step < len(targets):
                work += [(node, step + 1), (targets[step], 0)]
            elif low[node] == index[node]:
                ring: list[int] = []
                while not ring or ring[-1] != node:
                    ring.append(stack.pop())
                    on_stack.discard(ring[-1])
                    component[ring[-1]] = len(members)
                members.append(sorted(ring))
    waited = {component[q] for node, targets in waits.items() for q in targets if component[q] != component[node]}
    leaves = {component[node] for node, targets in waits.items() for q in targets if component[q] != component[node]}
    ends = [ring for number, ring in enumerate(members) if number not in leaves]
    return sorted(ring for ring in ends if len(ring) > 1 or component[ring[0]] in waited)


def _last(
    group: int, dumps: Mapping[int, Dump], groups: Mapping[int, Group], first: Iterable[int]
) -> dict[str, object]:
    """The last number called and finished in a group, per rank; `first` are the ranks that must be among them."""
    members = groups[group].ranks if group in groups else ()
    shown = list(dict.fromkeys([*first, *members]))[:MAX_LISTED]
    called = {str(r): dumps[r].called[group] for r in sorted(shown) if r in dumps and group in dumps[r].called}
    done = {str(r): dumps[r].done[group] for r in sorted(shown) if r in dumps and group in dumps[r].done}
    return {"group": _name(group, groups), "last_called": called, "last_done": done}


def _name(group: int, groups: Mapping[int, Group]) -> str:
    return groups[group].name if group in groups else "an unknown group"


def _stopped(
    rank: int, seen: tuple[Pending, list[int]], dumps: Mapping[int, Dump], groups: Mapping[int, Group]
) -> Stall:
    pending, done = seen
    name = _name(pending.group, groups)
    text = (
        f"rank {rank} has stopped: {_ranks(done)} finished {pending.op} {pending.seq} of {name}, it has not; "
        f"{len(dumps[rank].pending)} calls are pending on it (its device, or the thread that watches it)"
    )
    evidence = _last(pending.group, dumps, groups, [rank, *done])
    evidence |= {"sign": "not finished", "op": pending.op, "seq": pending.seq, "where": pending.where}
    evidence["pending"], evidence["since_ns"] = len(dumps[rank].pending), pending.t_ns
    return Stall([rank], pending.group, "attributed", text, evidence=evidence)


def _outside(
    ranks: list[int], waits: Mapping[int, list[int]], dumps: Mapping[int, Dump], groups: Mapping[int, Group]
) -> Stall:
    """One rank that has not called what others wait in, or all those that have no dump."""
    waiting = [other for other, targets in waits.items() if not set(ranks).isdisjoint(targets)]
    first = min((dumps[other].pending[0] for other in waiting), key=lambda p: (p.peer >= 0, p.t_ns))
    name = _name(first.group, groups)
    what = f"{first.op} {first.seq} of {name}" if first.peer < 0 else f"its side of a {first.op} in {name}"
    known = ranks[0] in dumps
    if known:
        text = f"{_ranks(ranks)} has not called {what}, in which {_ranks(waiting)} wait; "
        text += "nothing is pending on it (host code)"
    else:
        text = (
            f"{_ranks(ranks)} gave no dump; {_ranks(waiting)} wait in {first.op} of {name}, and nobody else explains it"
        )
    evidence = _last(first.group, dumps, groups, [*ranks, *waiting])
    evidence |= {"sign": "not called" if known else "missing", "op": first.op, "seq": first.seq, "where": first.where}
    evidence |= {"waiting": waiting[:MAX_LISTED], "pending": 0, "since_ns": first.t_ns}
    return Stall(ranks[:MAX_LISTED], first.group, "attributed" if known else "inconclusive", text, evidence=evidence)


def _circle(ring: list[int], dumps: Mapping[int, Dump], groups: Mapping[int, Group]) -> Stall:
    calls = {r: dumps[r].pending[0] for r in ring if r in dumps and dumps[r].pending}
    listed = "; ".join(f"{r} in {p.op} of {_name(p.group, groups)}" for r, p in list(calls.items())[:4])
    text = f"{_ranks(ring)} wait for each other ({listed}): the order of their calls differs, or the network stands"
    evidence: dict[str, object] = {"sign": "circle", "since_ns": min(p.t_ns for p in calls.values())}
    return Stall(ring, next(iter(calls.values())).group, "inconclusive", text, what="group", evidence=evidence)


def _undecided(dumps: Mapping[int, Dump], groups: Mapping[int, Group], missing: list[int]) -> list[Stall]:
    """Everybody who is known has called: say so, for the group whose call is oldest."""
    oldest = min((d.pending[0] for d in dumps.values() if d.pending), key=lambda p: p.t_ns)
    name = _name(oldest.group, groups)
    known = sorted(groups[oldest.group].ranks) if oldest.group in groups else []
    known = known or sorted(r for r, d in dumps.items() if any(p.group == oldest.group for p in d.pending))
    text = (
        f"{oldest.op} {oldest.seq} of {name} has not finished, and no rank is seen that has not called it: the records "
    )
    text += "cannot tell which device or link stands" + (f"; {_ranks(missing)} have no dump" if missing else "")
    evidence = _last(oldest.group, dumps, groups, known) | {"sign": "all called", "op": oldest.op, "seq": oldest.seq}
    evidence |= {"since_ns": oldest.t_ns, "where": oldest.where}
    return [Stall(known[:MAX_LISTED], oldest.group, "inconclusive", text, what="group", evidence=evidence)]


def _disagreements(dumps: Mapping[int, Dump], groups: Mapping[int, Group]) -> list[Stall]:
    """Groups whose ranks gave the same number to different operations; the first number of each."""
    told: dict[tuple[int, int], dict[str, list[int]]] = {}
    for rank, dump in dumps.items():
        for pending in dump.pending:
            if pending.peer < 0:
                told.setdefault((pending.group, pending.seq), {}).setdefault(pending.op, []).append(rank)
    found: dict[int, Stall] = {}
    for (group, seq), ops in sorted(told.items()):
        if len(ops) > 1 and group not in found:
            fewest = min(ops.values(), key=len)
            odd = sorted(fewest) if 2 * len(fewest) < sum(map(len, ops.values())) else []
            listed = ", ".join(f"{op} on {_ranks(ranks)}" for op, ranks in sorted(ops.items()))
            text = f"call {seq} of {_name(group, groups)} is not the same on all ranks: {listed}"
            evidence: dict[str, object] = {"sign": "different calls", "seq": seq}
            evidence["ops"] = {op: sorted(ranks)[:MAX_LISTED] for op, ranks in ops.items()}
            members = odd or sorted(r for ranks in ops.values() for r in ranks)[:MAX_LISTED]
            found[group] = Stall(members, group, "inconclusive", text, "rank" if odd else "group", evidence)
    return list(found.values())


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks for people: rank 3; ranks 0-2, 5."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    begin = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[begin], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            begin = end
    shown = ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")
    return f"rank{'s' if len(ordered) != 1 else ''} {shown}"
