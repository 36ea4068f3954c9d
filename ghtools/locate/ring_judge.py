# SPDX-License-Identifier: Apache-2.0
"""Judge: which link is slow, and which end of it, from exchanges of pairs. Pure; ring_test.py measures.

Three stages, since a link that was slow once among many that ran at the same time is no proof:

1. all links in their passes: those under 0.8 of the upper quartile of their type (pairs.py) look slow. Links are
   compared with those of the same pass where there are enough: what else the hosts do changes from pass to pass;
2. those, each alone, in turn with links that looked sound, in rounds: a link is slow if over all transfers of a round
   it is under 0.8 of the sound ones in every round, its best round is under the worst round of each of them, and it is
   out of three standard deviations of all ordinary ones;
3. those once more, and both their ends with other partners: the end that is slow with a sound partner is slow, and if
   neither is, the link is (nccl-tests#106).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pairs import REFERENCE, SLOW, Ends, Pair, judge_pairs

Link = tuple[int, int]
Array = NDArray[np.float64]
MOST_RANKS = 64  # among which further controls are looked for
CONTROLS = 3  # sound links that are tested beside those that look slow
FEWEST_CONTROLS = 2
SIGMAS = 3.0  # robust standard deviations of one round of ordinary links
NEARLY = 0.5  # of the upper quartile: may stand in where sound links are too few
FEW = 4  # links of a type in one pass, so that they are compared among themselves
ALL = -1
FEWEST_ROUNDS = 2  # one could be chance
FEWEST = 2  # links of a type that can be compared at all


@dataclass(frozen=True)
class Exchanged:
    """What one exchange of a pair gave.

    `gbps` is (2, repeats, sizes): GB/s from the first to the second rank and back, NaN where there was no transfer.
    Empty in the second dimension = no result, and `why` says why.
    """

    pair: Link
    type: str
    gbps: Array
    latency_ns: float = float("nan")
    busy: tuple[float, float] = (float("nan"), float("nan"))  # share of a CPU that each end's thread had
    t_ns: int = 0
    why: str = ""
    step: int = 0  # its pass
    sizes: tuple[int, ...] = ()  # bytes of a transfer, by size; empty: all count alike

    @cached_property
    def ways(self) -> Array:
        """GB/s by direction and size, (2, sizes): median over repeats; NaN where nothing was measured."""
        return middle(self.gbps, axis=1)

    @cached_property
    def slower(self) -> Array:
        """GB/s by size, (sizes,): of each transfer the slower direction, then the median over repeats.

        Of two directions at once on a busy CPU one is often done long before the other, by chance; the later one tells
        how long the exchange took.
        """
        if not self.gbps.shape[1]:
            return np.full(self.gbps.shape[2], np.nan)
        return middle(np.fmin(*self.gbps), axis=0)

    @cached_property
    def whole(self) -> Array:
        """As `slower`, but all repeats as one long transfer. A CPU quota lets short ones pass and stops every few."""
        return pace(np.fmin(*self.gbps), axis=0) if self.gbps.shape[1] else self.slower

    def share_in_all(self, reference: Array) -> float:
        """Bandwidth over a reference (by size) of all transfers as one long one, the slower direction of each.

        A CPU quota lets short transfers pass and stops every few, so that their median tells nothing of it. NaN where
        nothing was measured.
        """
        slower = np.fmin(*self.gbps)
        known = np.isfinite(slower) & (slower > 0) & np.isfinite(reference)
        weight = np.array(self.sizes or [1.0] * slower.shape[1]) * np.ones_like(slower)
        took = (weight[known] / slower[known]).sum()
        return float((weight / reference)[known].sum() / took) if took > 0 else float("nan")

    @property
    def ok(self) -> bool:
        """Whether any transfer came about."""
        return bool(np.isfinite(self.gbps).any())


def middle(values: Array, axis: int) -> Array:
    """Median along an axis without the NaNs; NaN where all are."""
    if values.size and np.isfinite(values).all():
        return np.asarray(np.median(values, axis=axis))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis))


def pace(values: Array, axis: int) -> Array:
    """Bandwidth over all transfers along an axis, without the NaNs: their harmonic mean; NaN where all are."""
    known = np.isfinite(values) & (values > 0)
    time = np.where(known, 1 / np.where(known, values, 1), 0).sum(axis=axis)
    return np.asarray(np.where(time > 0, known.sum(axis=axis) / np.where(time > 0, time, 1), np.nan))


def references(seen: Sequence[Exchanged], percentile: float) -> dict[Link, Array]:
    """By link, GB/s for each size: that percentile of the slower directions of the links it is compared with.

    Those are the links of its type in its pass, or with too few of these, in all passes.
    """
    good = [one for one in seen if one.ok]
    by_step = Counter((one.type, one.step) for one in good)
    made: dict[tuple[str, int], Array] = {}
    found = {}
    for one in good:
        key = (one.type, one.step if by_step[one.type, one.step] >= FEW else ALL)
        if key not in made:
            same = [other for other in good if other.type == one.type and key[1] in (ALL, other.step)]
            columns = [column[np.isfinite(column)] for column in np.stack([other.slower for other in same]).T]
            made[key] = np.array([np.percentile(c, percentile) if len(c) else np.nan for c in columns])
        found[one.pair] = made[key]
    return found


def share(one: Exchanged, reference: Array) -> float:
    """Bandwidth over the reference, the slower direction: median over sizes; NaN where nothing was measured."""
    return float(middle(one.slower / reference, axis=0)) if one.ok and len(reference) else float("nan")


@dataclass
class First:
    """What the passes say. Shares are of the upper quartile of the same type, the slower direction."""

    shares: dict[Link, float] = field(default_factory=dict)
    slow: list[Link] = field(default_factory=list)  # look slow, the slowest first
    sound: list[Link] = field(default_factory=list)
    missing: list[Link] = field(default_factory=list)
    alone: list[Link] = field(default_factory=list)  # the only one of its type: nothing to compare it with


def first(seen: Sequence[Exchanged], in_all: bool = False) -> First:
    """Judge what was measured in the passes: by the median of a link's transfers, and with `in_all` by their sum, too.

    The sum tells of a rank that is stopped now and then, and on a busy host of many that are not slow.
    """
    made = First()
    reference = references(seen, REFERENCE)
    count = Counter(one.type for one in seen if one.ok)
    for one in seen:
        if not one.ok:
            made.missing.append(one.pair)
            continue
        value = share(one, reference[one.pair])
        if in_all:
            value = min(value, one.share_in_all(reference[one.pair]))
        made.shares[one.pair] = value
        if count[one.type] < FEWEST:
            made.alone.append(one.pair)
        else:
            (made.slow if value < SLOW else made.sound).append(one.pair)
    made.slow.sort(key=lambda pair: made.shares[pair])
    return made


def controls(judged: First, types: Mapping[Link, str], kind: str) -> list[Link]:
    """Links of a type to compare with: sound ones, best without the ranks of slow ones and without ranks in common.

    With too few of them, those of the slow ones that are nearest to sound.
    """
    avoided = {rank for link in judged.slow for rank in link}
    chosen: list[Link] = []
    same = [link for link in judged.sound if types[link] == kind]
    usual = sorted(same, key=lambda link: abs(judged.shares[link] - 1))
    for strict in (True, False):
        for link in usual:
            if len(chosen) < CONTROLS and link not in chosen and not (strict and avoided & set(link)):
                chosen.append(link)
                avoided |= set(link)
    nearly = [link for link in judged.slow[::-1] if types[link] == kind and judged.shares[link] >= NEARLY]
    return chosen + nearly[: max(0, FEWEST_CONTROLS - len(chosen))]


def more_controls(
    judged: First, types: Mapping[Link, str], kind: str, host_of: Mapping[int, str], type_of: Callable[[Link], str]
) -> list[Link]:
    """Pairs that the passes did not have, between hosts of sound links of a type: controls where there are too few.

    Those with the fewest ranks of slow links come first; one that turns out to be slow itself is no control (`alone`).
    """
    places = {host_of[rank] for link in judged.sound if types[link] == kind for rank in link}
    ranks = [rank for rank in sorted(host_of) if host_of[rank] in places][:MOST_RANKS]
    doubtful = {rank for link in judged.slow for rank in link}
    tested = {frozenset(link) for link in types}
    pairs = [(a, b) for n, a in enumerate(ranks) for b in ranks[n + 1 :] if frozenset((a, b)) not in tested]
    fits = [pair for pair in pairs if type_of(pair) == kind]
    return sorted(fits, key=lambda pair: len(doubtful & set(pair)))


@dataclass(frozen=True)
class Alone:
    """A link tested alone: shares of the sound links' median by round, (rounds,), and of each direction, (2,)."""

    link: Link
    shares: Array
    ways: tuple[float, float]
    slow: bool

    @property
    def share(self) -> float:
        """Median over rounds."""
        return float(np.median(self.shares))


def alone(rounds: Mapping[Link, Sequence[Exchanged]], sound: Sequence[Link]) -> dict[Link, Alone] | None:
    """Judge links that were tested alone in rounds, against the `sound` ones among them; None with too few of those."""
    good = {link: [one for one in seen if one.ok] for link, seen in rounds.items()}
    known = [link for link in sound if good.get(link)]
    if len(known) < FEWEST_CONTROLS:
        return None
    reference = middle(np.stack([one.whole for link in known for one in good[link]]), axis=0)
    speeds = {link: float(np.median([one.share_in_all(reference) for one in good[link]])) for link in known}
    known = [link for link in known if speeds[link] >= NEARLY * max(speeds.values())]
    if len(known) < FEWEST_CONTROLS:
        return None
    reference = middle(np.stack([one.whole for link in known for one in good[link]]), axis=0)
    shares = {link: np.array([one.share_in_all(reference) for one in seen]) for link, seen in good.items() if seen}
    least = min(float(shares[link].min()) for link in known)
    near = [values for values in shares.values() if np.median(values) >= SLOW] or [shares[link] for link in known]
    ordinary = np.log(np.concatenate(near))
    spread = float(1.4826 * np.median(np.abs(ordinary - np.median(ordinary))))
    limit = min(SLOW, float(np.exp(-SIGMAS * spread)))
    made = {}
    for link, values in shares.items():
        # Under the least of the sound ones in its best round, and far out of the spread of all that are ordinary: so
        # no luck of a round, and no busy host, names anybody.
        far = bool((values < SLOW).all() and values.max() < least and np.median(values) < limit)
        slow = far and link not in known and len(values) >= FEWEST_ROUNDS
        ways = np.stack([middle(pace(one.gbps, axis=1) / reference, axis=1) for one in good[link]])
        there, back = middle(ways, axis=0).tolist()
        made[link] = Alone(link, values, (there, back), slow)
    return made


def second_pairs(
    slow: Sequence[Link],
    tested: Iterable[Link],
    sound: Sequence[int],
    suits: Callable[[Link], bool] = lambda link: True,
) -> list[Link]:
    """Another partner for each end of each slow link: a pair (end, partner) each, never a pair tested before.

    Partners are ranks that are part of a sound link; no two ends share one while there are enough.
    """
    seen = {frozenset(link) for link in tested}
    ends = sorted({end for link in slow for end in link})
    fresh = [rank for rank in sound if rank not in ends]
    used: set[int] = set()
    made = []
    for end in ends:
        options = [rank for rank in fresh if frozenset((end, rank)) not in seen and suits((end, rank))]
        if options:
            partner = min(options, key=lambda rank: (rank in used, abs(rank - end)))
            used.add(partner)
            made.append((end, partner))
    return made


def name(rank: int) -> str:
    """An end as pairs.py has it."""
    return f"{rank:07d}"


def ends_of(
    results: Mapping[Link, Alone],
    looked_slow: Collection[Link] = (),
    type_of: Callable[[Link], str] = lambda link: "",
) -> Ends:
    """Which end is slow, by pairs.judge_pairs, over all that was tested alone; links of each type by themselves.

    A loopback that is sound says nothing of a rank's network. `looked_slow`: links that were slow in their pass. What
    is under 0.8 and was not found slow beyond doubt, or was slow once and not again, neither accuses its ends nor
    clears them: a CPU quota is like that.
    """
    by_type: dict[str, list[Pair]] = {}
    for link, one in results.items():
        sound = one.share >= SLOW and link not in looked_slow
        value = one.share if one.slow or sound else float("nan")
        by_type.setdefault(type_of(link), []).append(Pair((name(link[0]), name(link[1])), value, float("nan")))
    made = Ends()
    for pairs in by_type.values():
        found = judge_pairs(pairs)
        for end, value in found.slow.items():
            made.slow[end] = min(value, made.slow.get(end, value))
        for end, value in found.suspect.items():
            made.suspect[end] = min(value, made.suspect.get(end, value))
        made.links += found.links
        made.open += found.open
        made.missing += found.missing
        made.healthy |= found.healthy
    return made


def direction(end: int, results: Mapping[Link, Alone]) -> str:
    """Whether an end is slow in sending, in receiving or in both, from its slow links."""
    out, back = [], []
    for link, one in results.items():
        if not one.slow or end not in link:
            continue
        there, home = one.ways if link[0] == end else one.ways[::-1]
        out.append(there)
        back.append(home)
    slow = [words for words, values in (("sending", out), ("receiving", back)) if values and np.nanmin(values) < SLOW]
    return " and ".join(slow)


def evidence(results: Mapping[Link, Alone], first_shares: Mapping[Link, float]) -> list[dict[str, Any]]:
    """What was measured alone, for a record: links with their shares, the slowest first."""
    rows = []
    for link, one in sorted(results.items(), key=lambda item: item[1].share):
        there, back = (round(value, 3) if np.isfinite(value) else None for value in one.ways)
        row = {"link": list(link), "share": there, "share_back": back, "rounds": len(one.shares), "slow": one.slow}
        if link in first_shares:
            row["in_pass"] = round(first_shares[link], 3)
        rows.append(row)
    return rows
