# SPDX-License-Identifier: Apache-2.0
"""Changes against labelled episodes: what was found, missed, false and how late (gh-score)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from ghtools.stream.records import Change, Finding, Suspect

from .labels import FAR, NAMED, Label

Z = 1.959964  # two-sided 95 %
Interval = tuple[float, float]


@dataclass(frozen=True)
class Tolerance:
    """When a change still counts as a label's: said not more than `early` before it, nor `within` after it is whole."""

    early: int = 2
    within: int = 60


@dataclass
class Scored:
    """One series (a job, or one rank of it) against its labels. Delays are in iterations."""

    iters: int = 0  # 0 = not known
    wanted: int = 0  # episodes that should have been found
    quiet: bool = True  # nothing was to be found in it
    missed: list[Label] = field(default_factory=list)
    false: list[Change] = field(default_factory=list)  # episodes where there is no label
    misnamed: list[Change] = field(default_factory=list)  # a planned change, warm-up, ... called fail-slow
    repeated: int = 0  # further episodes inside one label
    delay: list[int] = field(default_factory=list)  # onset to confirmed
    suspected: list[int] = field(default_factory=list)  # onset to suspected
    relief_delay: list[int] = field(default_factory=list)
    relief_wanted: int = 0
    off: list[int] = field(default_factory=list)  # distance of the onset that was said from the true one
    ratio_error: list[float] = field(default_factory=list)  # ratio said / ratio labelled - 1
    doubts: int = 0  # suspicions where there is no label

    @property
    def right(self) -> bool:
        """All found, nothing false."""
        return not (self.missed or self.false)


def score(labels: Sequence[Label], changes: Iterable[Change], iters: int = 0, near: Tolerance | None = None) -> Scored:
    """Match one series' changes, in the order they were said, with its labels."""
    near = near or Tolerance()
    told = list(changes)
    out = Scored(iters=iters)
    slow = [label for label in labels if label.kind in ("slow", "drift")]
    confirmed = [c for c in told if c.stage == "confirmed" and c.type != "relief" and c.verdict != "planned"]
    reliefs = [c for c in told if c.stage == "confirmed" and c.type == "relief"]
    taken: set[int] = set()
    for number, label in enumerate(slow):
        out.wanted += 1
        until = min(_until(label, near), slow[number + 1].onset - 1 if number + 1 < len(slow) else FAR)
        fits = (c for c in confirmed if id(c) not in taken and _is_said(c, label, near.early, until, label.last))
        hit = next(fits, None)
        if hit is None:
            out.missed.append(label)
            continue
        taken.add(id(hit))
        out.delay.append(hit.said_index - label.onset)
        out.off.append(abs(hit.onset_index - label.onset))
        if label.ratio:
            out.ratio_error.append(hit.ratio / label.ratio - 1)
        if label.end >= 0:
            out.relief_wanted += 1
            back = [c for c in reliefs if label.end - near.early <= c.said_index <= label.end + _within(label, near)]
            out.relief_delay += [c.said_index - label.end for c in back[:1]]
    for label in labels:
        if label.kind == "faster":
            out.wanted += 1
            hit = next((c for c in reliefs if _is_said(c, label, near.early, _until(label, near), label.last)), None)
            if hit is None:
                out.missed.append(label)
            else:
                out.delay.append(hit.said_index - label.onset)
                out.off.append(abs(hit.onset_index - label.onset))
    out.quiet = out.wanted == 0
    out.suspected = [delay for label in slow for delay in _doubted(told, label, near)]
    _leftovers(out, labels, confirmed, taken, near)
    doubts = [c for c in told if c.stage == "suspected"]
    out.doubts = sum(not any(_covers(label, c, near) for label in labels) for c in doubts)
    return out


def _within(label: Label, near: Tolerance) -> int:
    return label.within if label.within >= 0 else near.within


def _until(label: Label, near: Tolerance) -> int:
    return label.whole + _within(label, near)


def _is_said(change: Change, label: Label, early: int, until: int, last: int) -> bool:
    return label.onset - early <= change.said_index <= until and change.onset_index < last


def _covers(label: Label, change: Change, near: Tolerance) -> bool:
    """Is the change about this label, or about a time in it?"""
    last = label.last
    if label.end < 0 and label.kind in NAMED:  # a moment, not a phase
        last = label.onset + 1
    inside = label.onset - near.early <= change.onset_index < last + near.early
    return inside and change.said_index >= label.onset - near.early and change.said_index <= last + _within(label, near)


def _doubted(told: list[Change], label: Label, near: Tolerance) -> list[int]:
    until = _until(label, near)
    said = [c.said_index for c in told if c.stage == "suspected" and _is_said(c, label, near.early, until, label.last)]
    return [said[0] - label.onset] if said else []


def _leftovers(out: Scored, labels: Sequence[Label], confirmed: list[Change], taken: set[int], near: Tolerance) -> None:
    """What no label accounts for: only the begin of an episode counts, not that it got worse."""
    begun: set[int] = set()
    for change in confirmed:
        update = change.episode > 0 and change.episode in begun
        begun.add(change.episode)
        if id(change) in taken or update:
            continue
        about = [label for label in labels if _covers(label, change, near)]
        if any(label.kind in ("slow", "drift") for label in about):
            out.repeated += 1
        elif any(label.kind == "planned" for label in about):
            if change.verdict == "fail-slow":
                out.misnamed.append(change)
        elif change.verdict not in {label.kind for label in about}:
            out.false.append(change)


# -- who -------------------------------------------------------------------------------------------


@dataclass
class Named:
    """Whether the slow part was named: labels with ranks against suspects and findings."""

    right: int = 0
    wrong: int = 0  # named a part that is not labelled
    none: int = 0  # labelled, and nobody was named
    cause_right: int = 0
    cause_known: int = 0


def named(labels: Sequence[Label], records: Iterable[Suspect | Finding]) -> Named:
    """Score the parts that were accused. A label counts once, and so does each wrong part."""
    out = Named()
    accused = [r for r in records if r.verdict in ("attributed", "confirmed") and r.ranks]
    parts = {label.ranks: label for label in labels if label.ranks and label.kind in ("slow", "drift")}
    for ranks, label in parts.items():
        mine = [r for r in accused if set(r.ranks) == set(ranks)]
        out.right += bool(mine)
        out.none += not mine
        if mine and label.cause:
            out.cause_known += 1
            out.cause_right += mine[-1].cause == label.cause
    out.wrong = len({tuple(sorted(r.ranks)) for r in accused} - {tuple(sorted(ranks)) for ranks in parts})
    return out


# -- statistics ------------------------------------------------------------------------------------


def wilson(hits: int, n: int) -> Interval:
    """95 % interval of a share (Wilson); (0, 1) of nothing."""
    if n <= 0:
        return 0.0, 1.0
    share, z2 = hits / n, Z * Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return (0.0 if hits == 0 else max(0.0, middle - half)), (1.0 if hits == n else min(1.0, middle + half))


def rate(events: int, exposure: float) -> Interval:
    """95 % interval of a Poisson rate (exact, from the gamma distribution); exposure > 0."""
    from scipy.special import gammaincinv

    low = float(gammaincinv(events, 0.025)) if events else 0.0
    return low / exposure, float(gammaincinv(events + 1, 0.975)) / exposure


def quantile(values: Sequence[float], q: float) -> tuple[float, float, float]:
    """A quantile and its 95 % interval from order statistics; NaN of nothing."""
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    ordered = np.sort(np.asarray(values, float))
    n = len(ordered)
    half = Z * sqrt(q * (1 - q) / n)
    places = [min(n - 1, max(0, round((q + off) * n - 0.5))) for off in (-half, half)]
    return float(np.quantile(ordered, q, method="inverted_cdf")), float(ordered[places[0]]), float(ordered[places[1]])


@dataclass
class Report:
    """Many series together."""

    series: list[Scored] = field(default_factory=list)
    parts: Named = field(default_factory=Named)

    def add(self, one: Scored) -> None:
        """One more series."""
        self.series.append(one)

    def add_named(self, one: Named) -> None:
        """One more section's accusations."""
        for name in ("right", "wrong", "none", "cause_right", "cause_known"):
            setattr(self.parts, name, getattr(self.parts, name) + getattr(one, name))

    def shares(self) -> dict[str, tuple[int, int]]:
        """Name -> (how many, of how many)."""
        quiet = [s for s in self.series if s.quiet]
        wanted, missed = sum(s.wanted for s in self.series), sum(len(s.missed) for s in self.series)
        reliefs = sum(s.relief_wanted for s in self.series)
        made = {
            "series right": (sum(s.right for s in self.series), len(self.series)),
            "quiet series with a false episode": (sum(bool(s.false) for s in quiet), len(quiet)),
            "episodes missed": (missed, wanted),
            "ends missed": (reliefs - sum(len(s.relief_delay) for s in self.series), reliefs),
        }
        parts = self.parts
        if parts.right + parts.none:
            made["parts named"] = (parts.right, parts.right + parts.none)
        if parts.cause_known:
            made["causes right"] = (parts.cause_right, parts.cause_known)
        return made

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON; an interval is a list of two."""
        out: dict[str, Any] = {}
        for name, (hits, n) in self.shares().items():
            share = hits / n if n else None
            out[name.replace(" ", "_")] = {"count": hits, "of": n, "share": share, "interval": list(wilson(hits, n))}
        false = sum(len(s.false) for s in self.series)
        out["false_episodes"] = false
        out["misnamed"] = sum(len(s.misnamed) for s in self.series)
        out["repeated"] = sum(s.repeated for s in self.series)
        out["wrong_parts"] = self.parts.wrong
        iters = sum(s.iters for s in self.series)
        out["iterations"] = iters if all(s.iters for s in self.series) else None
        for name, events in (("false_alarms", false), ("false_suspicions", sum(s.doubts for s in self.series))):
            known = out["iterations"]
            low, high = rate(events, iters / 1e4) if known else (None, None)
            value = events / iters * 1e4 if known else None
            out[f"{name}_per_10000_iters"] = {"value": value, "interval": [low, high]}
        for name in ("delay", "suspected", "relief_delay", "off", "ratio_error"):
            values = [float(v) for s in self.series for v in getattr(s, name)]
            out[name] = {"n": len(values)}
            for label, q in (("median", 0.5), ("p95", 0.95)) if values else ():
                middle, low, high = quantile(values, q)
                out[name][label] = {"value": middle, "interval": [low, high]}
        return out
