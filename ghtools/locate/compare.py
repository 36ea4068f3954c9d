# SPDX-License-Identifier: Apache-2.0
"""Which group's transfers are slow: against comparable groups, and against the same group before.

Comparable means equal operation, size, number of members and kind of link (ALGORITHMS.md section 5): flagged if
the time is over 1.1 of the lower median of the other groups and the excess is over three standard errors. One group
alone, or all slow alike, can only be told by its own past.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .groups import EDGE, Group, Groups, Key
from .history import Window
from .lateness import others_low_median
from .match import Transfers

Floats = NDArray[np.float64]

OVER = 1.1
SIGMAS = 3.0
LEAST_ITERS = 3
MATERIAL = 0.02  # a loss under this share of the iteration is not worth a name
AGREE = 0.6  # share of a group's transfer time that must be flagged


@dataclass
class Timing:
    """Transfers of one group and key: medians over iterations, ns."""

    group: int
    key: int
    time: float
    error: float
    n: int  # iterations
    each: float  # how many an iteration
    whole: bool  # all members are in the data


@dataclass
class Slow:
    """A group with slow transfers."""

    group: int
    key: int
    ratio: float
    loss: float  # share of the iteration lost by it
    time: float
    usual: float
    how: str  # peers or past
    peers: int  # groups it was compared with
    total: float = 0.0  # share of the iteration lost by all keys of the group
    agree: float = 1.0  # share of the group's transfer time that is slow too


def timings(transfers: Transfers, groups: Groups) -> list[Timing]:
    """Medians by group and key."""
    if not len(transfers.it):
        return []
    order = np.lexsort((transfers.it, transfers.key, transfers.group))
    group, key = transfers.group[order], transfers.key[order]
    heads = np.flatnonzero(np.concatenate(([True], (group[1:] != group[:-1]) | (key[1:] != key[:-1]))))
    made = []
    for rows in np.split(order, heads[1:]):
        time = transfers.time[rows]
        middle = float(np.median(time))
        mad = float(np.median(np.abs(time - middle)))
        number = int(transfers.group[rows[0]])
        made.append(
            Timing(
                number, int(transfers.key[rows[0]]), middle, 1.2533 * 1.4826 * mad / len(time) ** 0.5, len(time),
                float(np.median(transfers.n[rows])), bool(transfers.members[rows].min() >= groups.group(number).size),
            )
        )  # fmt: skip
    return made


def slow_groups(window: Window, before: Window | None, groups: Groups, keys: list[Key], iter_ns: float) -> list[Slow]:
    """Groups whose transfers are slow, each once, the largest loss first."""
    now = [t for t in timings(window.transfers, groups) if t.whole and t.n >= LEAST_ITERS]
    found = _against_peers(now, groups, keys, iter_ns)
    if before is not None:
        past = {(t.group, t.key): t for t in timings(before.transfers, groups) if t.whole and t.n >= LEAST_ITERS}
        found += _against_past(now, past, iter_ns)
    total: dict[int, float] = {}
    flagged: dict[int, dict[int, float]] = {}
    for timing in now:
        total[timing.group] = total.get(timing.group, 0.0) + timing.time * timing.each
    weight = {(t.group, t.key): t.time * t.each for t in now}
    for slow in found:
        flagged.setdefault(slow.group, {})[slow.key] = weight[slow.group, slow.key]
    best: dict[int, Slow] = {}
    for slow in found:
        slow.agree = sum(flagged[slow.group].values()) / total[slow.group]
        if slow.group not in best or slow.loss > best[slow.group].loss:
            best[slow.group] = slow
    for number, slow in best.items():
        # A key can be found slow both against peers and against the past: it is one loss.
        by_key: dict[int, float] = {}
        for other in found:
            if other.group == number:
                by_key[other.key] = max(by_key.get(other.key, 0.0), other.loss)
        slow.total = min(1.0, sum(by_key.values()))  # transfers that overlap cost their time once
    return sorted((s for s in best.values() if s.agree >= AGREE and s.total >= MATERIAL), key=lambda s: -s.total)


def cluster(timing: Timing, groups: Groups, keys: list[Key]) -> tuple[int, int, int, int, str]:
    """What comparable transfers have in common: operation, size, members, kind of group, kind of link."""
    group: Group = groups.group(timing.group)
    key = keys[timing.key]
    return key.op, key.bytes, group.size, group.kind, groups.link(group.members)


def _against_peers(now: list[Timing], groups: Groups, keys: list[Key], iter_ns: float) -> list[Slow]:
    clusters: dict[tuple[int, int, int, int, str], list[Timing]] = {}
    for timing in now:
        clusters.setdefault(cluster(timing, groups, keys), []).append(timing)
    found = []
    for members in clusters.values():
        if len(members) < 2:
            continue
        time = np.array([t.time for t in members])
        usual = others_low_median(time[None, :])[0]
        noise = float(np.median([t.error for t in members]))
        for timing, low in zip(members, usual, strict=True):
            excess, error = timing.time - low, np.hypot(max(timing.error, noise), noise)
            loss = excess * timing.each / iter_ns
            if low > 0 and timing.time > OVER * low and excess > SIGMAS * error:
                found.append(
                    Slow(timing.group, timing.key, timing.time / low, loss, timing.time, low, "peers", len(members) - 1)
                )
    return found


def _against_past(now: list[Timing], past: dict[tuple[int, int], Timing], iter_ns: float) -> list[Slow]:
    found = []
    for timing in now:
        old = past.get((timing.group, timing.key))
        if old is None or old.time <= 0:
            continue
        # A few iterations tell little of their own noise; what it was before is the least to reckon with.
        noise = max(timing.error, old.error * (old.n / timing.n) ** 0.5)
        excess, error = timing.time - old.time, np.hypot(noise, old.error)
        loss = excess * timing.each / iter_ns
        if timing.time > OVER * old.time and excess > SIGMAS * error:
            found.append(Slow(timing.group, timing.key, timing.time / old.time, loss, timing.time, old.time, "past", 0))
    return found


def common_part(slow: list[Slow], groups: Groups, healthy: list[int]) -> tuple[str, list[int], list[str]]:
    """What slow groups have in common: (what, ranks, hosts).

    One group: itself, or the link if it has two ends. Several: the one host, else the one rank, that is in all of
    them and in no healthy group of the same kind; else the ranks they share.
    """
    members = [groups.group(s.group) for s in slow]
    if len(members) == 1:
        group = members[0]
        what = "link" if group.kind == EDGE or group.size == 2 else "group"
        return what, list(group.members), groups.hosts_of(group.members)
    sound = [groups.group(number).members for number in healthy]
    if all(group.kind == EDGE for group in members):
        for side in (0, 1):  # all that one rank sends, or receives
            end = members[0].members[side]
            if all(g.members[side] == end for g in members) and not any(other[side] == end for other in sound):
                return _rank_or_host(end, members, groups)
    ranks = sorted(set(members[0].members).intersection(*(g.members for g in members[1:])))
    guilty = [rank for rank in ranks if not any(rank in other for other in sound)]
    if len(guilty) == 1:
        return _rank_or_host(guilty[0], members, groups)
    if all(rank in groups.host for group in members for rank in group.members):
        hosts = [set(groups.hosts_of(group.members)) for group in members]
        crossing = [set(groups.hosts_of(other)) for other in sound]
        shared = set.intersection(*hosts)
        alone = sorted(h for h in shared if not any(h in c and len(c) > 1 for c in crossing))
        if len(alone) == 1 and all(len(h) > 1 for h in hosts):
            inside = sorted(r for g in members for r in g.members if groups.host[r] == alone[0])
            return "host", sorted(set(inside)), alone
        if len(shared) == 2 and all(h == shared for h in hosts):
            return "link", sorted({r for g in members for r in g.members}), sorted(shared)
    every = sorted({rank for group in members for rank in group.members})
    return "group", every, groups.hosts_of(every)


def _rank_or_host(rank: int, members: list[Group], groups: Groups) -> tuple[str, list[int], list[str]]:
    """A rank whose links are slow; where it is alone on its host and they cross the network, the host."""
    hosts = groups.hosts_of([rank])
    alone = hosts and list(groups.host.values()).count(hosts[0]) == 1
    crosses = all(groups.link(group.members) == "network" for group in members)
    return "host" if alone and crosses else "rank", [rank], hosts
