# SPDX-License-Identifier: Apache-2.0
"""The verdict over a window of iterations: pure, from tables to suspects (DESIGN section 6, FIELD.md "Verdicts").

Attributed: own time, its steadiness and every group of the rank agree. Cleared: something else explains it, or
nothing stands out. Inconclusive: not enough data, a contradiction, or two explanations that look the same; what is
missing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.records import Suspect

from .case import MIN_ITERS, Case
from .gaps import FIRST
from .groups import COLLECTIVE, EDGE
from .lateness import Late, candidates, excess, nanmedian
from .patterns import Pattern, changing_ranks, everybody, heavier_stage, uneven_inside
from .transfers import EXPLAINS, all_work_longer, slow_transfers

LATE_SHARE = 0.5  # of the waiting in a late rank's groups that must be for it
SMALL, SMALL_LATE_SHARE = 0.10, 0.8  # where executions alone are known, overlap makes small differences look larger
LASTING = 0.4  # without an onset: share of its median excess that each third of the window must show
AS_BEFORE = 1.25  # own time over what it was, under which a rank goes on as it did
CPU_SPAN_S = 10.0  # and for so long where the CPU computes
SECOND, DOUBTFUL = 0.2, 0.5  # share of the worst rank's excess that another one must have
CLUSTERED = 0.7  # arrivals: everybody but the late rank waits this share of the longest wait
MISSING_WAIT = 0.10  # share of the iteration spent waiting for a rank without data
MOST = 0.5  # of the slow-down that a rank must explain where all work longer than they did
ONE_GAP = 0.35  # growth of the rest of own time against that of the longest gap: under it, one gap alone grew
ELSEWHERE = 0.2  # share of what was added to own time that may lie outside the longest gap, for one gap to be the cause
FEW_ITERS, ELSEWHERE_FEW = 10, 0.05  # with fewer iterations a quota may have hit the longest gap alone, by chance
REST = 0.05  # share of own time outside the longest gap, without which input and compute cannot be told apart


@dataclass
class Judgement:
    """Suspects, and the table behind them."""

    suspects: list[Suspect]
    iters: int
    rows: list[list[str]] = field(default_factory=list)  # of `HEADER`, for people


HEADER = ["rank", "own ms", "peers ms", "ratio", "excess", "last to come", "its groups (its wait / longest wait)"]


def judge(case: Case) -> Judgement:
    """All suspects of a window; never empty."""
    made = Judgement([], case.iters)
    if case.iters < MIN_ITERS or not np.isfinite(case.own.own).any():
        why = f"{case.iters} iterations with data are not enough (at least {MIN_ITERS})"
        made.suspects.append(case.suspect("none", "unknown", "inconclusive", f"cannot tell who is slow: {why}"))
        return made
    over = excess(case.own, case.classes, case.past)
    lates = candidates(case.own, over, case.classes, noticed=case.onset is not None)
    for late in lates:
        case.bear_out(late)
    ranked = [_rank(case, late, [other.rank for other in lates]) for late in lates]
    named = [suspect.ranks[0] for suspect in ranked if suspect.verdict == "attributed"]
    most = max((late.excess for late in lates if late.rank in named), default=0.0)
    # What a slow rank does to others can look like small delays of their own; and beside a rank that is certain, a
    # doubtful one is worth a word only if it costs about as much.
    made.suspects += [
        suspect
        for suspect, late in zip(ranked, lates, strict=True)
        if late.excess >= (SECOND if suspect.verdict == "attributed" else DOUBTFUL) * most
    ]
    if case.timed:
        made.suspects += slow_transfers(case, named, over)
    attributed = [suspect for suspect in made.suspects if suspect.verdict == "attributed"]
    if not attributed:
        hidden = _hidden(case, over)
        if any(suspect.cause == "common" for suspect in hidden) and all_work_longer(case):
            # Their transfers are slower for the same reason, where the CPU moves the data.
            made.suspects = [suspect for suspect in made.suspects if suspect.cause != "communication"]
        made.suspects += hidden
    if not made.suspects:
        made.suspects.append(_nothing(case))
    made.rows = _table(case, over, lates)
    return made


def _rank(case: Case, late: Late, lates: Sequence[int]) -> Suspect:
    """Verdict over one late rank."""
    cause, note = _cause(case, late)
    doubts = list(late.against)
    if not late.groups:
        doubts.append("nobody is seen waiting for it")
    elif late.last < (LATE_SHARE if late.excess >= SMALL else SMALL_LATE_SHARE):
        doubts.append(f"only {100 * late.last:.0f} % of the waiting in its groups is for it")
    if case.onset is None and case.past is None:
        if late.lasting < LASTING:
            doubts.append("it comes and goes, as a busy host makes it")
        elif "gloo" in case.groups.backend and (span := case.span_s) < CPU_SPAN_S:
            doubts.append(f"it was seen for {span:.0f} s only, and a busy host makes a rank late for seconds at a time")
    if not case.timed and (why := _spread_arrivals(case, late)):
        doubts.append(why)
    if case.onset is not None and late.excess < EXPLAINS * case.onset.loss:
        doubts.append(f"it explains {100 * late.excess / case.onset.loss:.0f} % of the slow-down only")
    elif case.onset is not None and late.excess < MOST * case.onset.loss and all_work_longer(case):
        doubts.append("all ranks work longer than before, and it explains less than half of the slow-down")
    if waits := _missing_wait(case, late.rank):
        doubts.append(waits)
    if case.timed and (blur := _blurred(case, late.rank, lates)):
        doubts.append(blur)
    ratio, versus = late.ratio, "its peers"
    evidence: dict[str, Any] = {
        "own_ns": late.own_ns, "peers_own_ns": late.peers_ns, "ratio_to_peers": late.ratio, "excess_share": late.excess,
        "excess_error": late.error, "steady": late.steady, "last_share": late.last, "z": late.z,
        "groups": [{"group": name, "wait_of_longest": wait, "share": share} for name, wait, share in late.groups[:16]],
    }  # fmt: skip
    if case.past is not None and late.rank in case.past.ranks:
        old = float(nanmedian(case.past.own)[case.past.ranks == late.rank][0])
        if old > 0:
            evidence["ratio_to_before"] = late.own_ns / old
    if note:
        evidence["note"] = note
    who = f"rank {late.rank}"
    hosts = case.groups.hosts_of([late.rank])
    where = f" (host {hosts[0]})" if hosts else ""
    text = (
        f"{who}{where}: {cause} {ratio:.2f} times that of {versus}, {100 * late.excess:.0f} % of the iteration; "
        f"last to come in {100 * late.last:.0f} % of the waiting of its groups over {late.iters} iterations"
    )
    if note:
        text += f" ({note})"
    if unseen := case.groups.unseen_with(late.rank, set(case.own.ranks.tolist())):
        evidence["stands_for"] = unseen[:64]
        text += f"; it stands for its group, of which ranks {', '.join(map(str, unseen[:8]))} gave no data"
    if doubts:
        evidence["doubts"] = doubts
        text += "; not certain: " + "; ".join(doubts)
    verdict = "inconclusive" if doubts else "attributed"
    return case.suspect("rank", cause, verdict, text, ranks=[late.rank], ratio=ratio, evidence=evidence)


def _cause(case: Case, late: Late) -> tuple[str, str]:
    """Compute, input or host pause, by where in the iteration the excess lies; and a remark."""
    own, peers = case.own, case.peers(late.rank)
    col = int(np.flatnonzero(own.ranks == late.rank)[0])
    others = np.flatnonzero(np.isin(own.ranks, peers) & (own.ranks != late.rank))
    rest = own.own - own.longest
    rest_peers = float(np.nanmedian(nanmedian(rest[:, others])))
    if not np.isfinite(rest_peers):
        return "compute", ""
    if rest_peers < REST * late.peers_ns:
        return "compute", "nearly all own time is one gap, so a late input would look the same"
    few = late.iters < FEW_ITERS
    middles = (nanmedian, _nanmean) if few else (nanmedian,)
    if any(
        _all_gaps(own.longest, rest, col, others, middle, ELSEWHERE_FEW if few else ELSEWHERE) for middle in middles
    ):
        return "compute", ""
    place = _mode(own.place[:, col])
    if place >= FIRST or place == _mode(own.place[:, others].ravel() % FIRST):
        return "input", "only the gap before the first collectives of the iteration grew"
    return "host pause", "only one gap inside the iteration grew"


def _all_gaps(longest: Any, rest: Any, col: int, others: Any, middle: Callable[[Any], Any], elsewhere: float) -> bool:
    """Whether a rank's other gaps grew, too, and not the longest one alone, by some middle over its iterations.

    A slow device stretches all its gaps alike, by ratio; or by as much as a quota stops it each time, which is most
    where they are short. A late input or a pause makes one gap longer and leaves the rest.
    """
    usual, mine = float(np.nanmedian(middle(longest[:, others]))), float(middle(longest)[col])
    rest_peers, rest_mine = float(np.nanmedian(middle(rest[:, others]))), float(middle(rest)[col])
    if not np.isfinite(usual + mine + rest_peers + rest_mine) or usual <= 0:
        return True
    if rest_mine / rest_peers - 1 > ONE_GAP * (mine / usual - 1):
        return True
    return rest_mine - rest_peers > elsewhere * (mine - usual + rest_mine - rest_peers)


def _nanmean(values: Any) -> Any:
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0).sum(axis=0) / np.maximum(count, 1), np.nan)


def _mode(values: Any) -> float:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return -1.0
    found, count = np.unique(finite, return_counts=True)
    return float(found[np.argmax(count)])


def _spread_arrivals(case: Case, late: Late) -> str:
    """Arrivals alone: under a slow link one rank is early and the others are spread late, which is no late rank."""
    members = case.window.members
    seen = False
    for number in np.unique(members.group[members.rank == late.rank]):
        rows = members.group == number
        group = case.group_of[int(number)]
        if group.kind != COLLECTIVE or group.size < 3:
            continue
        who, at = np.unique(members.rank[rows], return_inverse=True)
        wait, spread = np.bincount(at, members.wait[rows]), np.bincount(at, members.spread[rows])
        if spread.max() < 0.02 * case.iters * case.iter_ns:
            continue
        seen = True
        share = (wait / np.maximum(spread, 1))[who != late.rank]
        if len(share) and float(share.min()) < CLUSTERED:
            return "others arrive spread out as well, as under a slow link; durations would tell"
    return "" if seen else "with two members, arrivals alone cannot tell a late rank from a slow link"


def _missing_wait(case: Case, rank: int | None = None) -> str:
    """Ranks without data that others wait for."""
    transfers = case.window.transfers
    for number in np.unique(transfers.group):
        group = case.group_of[int(number)]
        if group.kind != COLLECTIVE or (rank is not None and rank not in group.members):
            continue
        rows = (transfers.group == number) & (transfers.members < group.size)
        if not rows.any():
            continue
        cost = float((transfers.time[rows] * transfers.n[rows]).sum()) / case.iters / case.iter_ns
        if cost >= MISSING_WAIT:
            absent = sorted(set(group.members) - set(case.own.ranks.tolist()))
            names = ", ".join(map(str, absent[:8])) if absent else f"{group.size} members are not all known"
            return f"no data of rank {names}, whose group spends {100 * cost:.0f} % of the iteration together"
    return ""


def _hidden(case: Case, over: Any) -> list[Suspect]:
    """Patterns that are nobody's fault."""
    before_ns = case.onset.before_ns if case.onset is not None else 0.0
    found: list[Pattern] = []
    rotating = changing_ranks(case.own, excess(case.own, case.classes))
    if rotating is not None:
        found.append(rotating)
    uneven = uneven_inside(case.window.members, case.groups, case.iters, case.iter_ns)
    if (common := everybody(case.own, case.past, before_ns)) is not None:
        found.append(common)
    stage = heavier_stage(case.own, case.classes)
    alike = stage is not None and stage.name != "alone" and case.onset is not None
    if stage is not None and not (alike and any(_blurred(case, rank) for rank in stage.ranks)):
        found.append(stage)
    if uneven is not None and not found:
        found.append(uneven)
    return [_pattern(case, pattern) for pattern in found]


def _pattern(case: Case, pattern: Pattern) -> Suspect:
    evidence = {"pattern": pattern.name, "loss_share": pattern.loss, **pattern.evidence}
    ratio = float(pattern.evidence.get("own_time_ratio", 0.0))
    if pattern.name == "alone":
        rank = pattern.ranks[0]
        grown = _grown(case, rank)
        if grown >= 1.1 and (blur := _blurred(case, rank)):
            text = f"rank {rank} takes {grown:.2f} times as long as before between its arrivals: {blur}"
            return case.suspect("rank", "unknown", "inconclusive", text, ranks=[rank], ratio=grown, evidence=evidence)
        if grown >= 1.1:
            text = f"rank {rank}: compute {grown:.2f} times its own before, and others wait for it"
            return case.suspect(
                "rank", "compute", "attributed", text, ranks=[rank], ratio=grown,
                evidence=evidence | {"ratio_to_before": grown},
            )  # fmt: skip
        return case.suspect("none", "unknown", "inconclusive", pattern.text, ratio=ratio, evidence=evidence)
    if pattern.cause == "common" and any(_blurred(case, rank) for rank in case.own.ranks.tolist()):
        text = (
            f"all {len(case.own.ranks)} ranks take {ratio:.2f} times as long as before between what is timed, alike: "
            "everybody's work or everybody's transfers; durations would tell"
        )
        return case.suspect("none", "unknown", "inconclusive", text, ratio=ratio, evidence=evidence)
    return case.suspect(
        "none", pattern.cause, "cleared", pattern.text, ratio=ratio, evidence=evidence | {"ranks": pattern.ranks}
    )


def _blurred(case: Case, rank: int, late: Sequence[int] | None = None) -> str:
    """Why a rank's own time may have transfers in it; empty if it has none.

    With `late` ranks given, a slow link is ruled out where a peer that is not late, and takes no longer than before,
    receives between the same hosts.
    """
    if not case.timed:
        return "slower work or slower transfers, durations would tell"
    transfers, host = case.window.transfers, case.groups.host
    edges = {n: g.members for n, g in case.group_of.items() if g.kind == EDGE}
    peers = set(case.peers(rank)) - set(late) if late is not None else set()
    sound = {peer for peer in peers if 0 < _grown(case, peer) < AS_BEFORE}
    ways = {(host.get(sender), host.get(receiver)) for sender, receiver in edges.values() if receiver in sound}
    for number, (sender, receiver) in edges.items():
        if receiver != rank or case.groups.link((sender, receiver)) == "local":
            continue
        if (host.get(sender), host.get(receiver)) not in ways and not transfers.time[transfers.group == number].any():
            return f"what it receives from rank {sender} is not timed, so a slow link looks the same"
    return ""


def _grown(case: Case, rank: int) -> float:
    """Own time of a rank against its own before; 0 if that is not known."""
    if case.past is None or rank not in case.past.ranks:
        return 0.0
    now = float(nanmedian(case.own.own)[case.own.ranks == rank][0])
    old = float(nanmedian(case.past.own)[case.past.ranks == rank][0])
    return now / old if old > 0 else 0.0


def _nothing(case: Case) -> Suspect:
    """Nobody stands out: healthy, or not to be told."""
    if waits := _missing_wait(case):
        return case.suspect("none", "unknown", "inconclusive", f"cannot tell who is slow: {waits}")
    over = f"over {case.iters} iterations of {len(case.own.ranks)} ranks"
    if case.onset is not None:
        lacks = "" if case.past is not None else ", and there are no durations from before to compare with"
        text = f"the job is slower, but no rank, link or group stands out {over}{lacks}"
        return case.suspect("none", "unknown", "inconclusive", text)
    if all(len(ranks) < 2 for ranks in case.classes):
        text = f"no two ranks do the same work, nothing to compare {over}"
        return case.suspect("none", "unknown", "inconclusive", text)
    return case.suspect("none", "unknown", "cleared", f"no rank, link or group stands out {over}")


def _table(case: Case, over: Any, lates: list[Late]) -> list[list[str]]:
    """Rows of HEADER: the late ranks, then those with the largest excess."""
    rows = []
    middle = nanmedian(over)
    mine = nanmedian(case.own.own)
    known = {late.rank: late for late in lates}
    by_excess = np.argsort(-np.nan_to_num(middle, nan=-np.inf))[:8]
    order = [*known, *(r for r in case.own.ranks[by_excess].tolist() if r not in known)]
    for rank in order[:12]:
        col = int(np.flatnonzero(case.own.ranks == rank)[0])
        late = known.get(rank) or Late(rank, float(middle[col]), 0.0, 0.0, 0.0, 0, float(mine[col]), 0.0, 0.0)
        if rank not in known:
            case.bear_out(late)
        peers = float(mine[col] - middle[col] * case.iter_ns)
        rows.append(
            [
                str(rank), f"{mine[col] / 1e6:.2f}", f"{peers / 1e6:.2f}",
                f"{mine[col] / peers:.2f}" if peers > 0 else "-", f"{100 * middle[col]:.1f} %",
                f"{100 * late.last:.0f} %",
                " ".join(f"{name}:{100 * wait:.0f}%" for name, wait, _ in late.groups[:4]) or "none waits much",
            ]
        )  # fmt: skip
    return rows
