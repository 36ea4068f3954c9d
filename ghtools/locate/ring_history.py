# SPDX-License-Identifier: Apache-2.0
"""Links against their own history: what tells of two hosts alone, or of links that are all slow alike.

One value a run stands for all links that join the same two hosts by the same means: the median over them of their
bandwidth in the passes, the slower direction. A run is compared with the median of those before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ghtools.stream.records import Finding

from . import history_file
from .history_file import KEEP
from .ring_fabric import Fabric
from .ring_judge import Exchanged, Link, middle
from .ring_records import listed

VERSION = 1
SLOW = 0.8  # as for links among themselves
ENOUGH = 3  # runs before, to have a spread; with fewer only what is under HALF is slow
HALF = 0.5
LEAST_SPREAD = 0.05  # relative: a few runs may agree by chance
SIGMAS = 3.0
MAD_SIGMA = 1.4826


class Key(NamedTuple):
    """What must be the same for two runs to be compared. `a` and `b` are hosts in order, `pairs` how many at once."""

    a: str
    b: str
    type: str
    by: str
    both: int
    pairs: int


@dataclass(frozen=True)
class Past:
    """Bandwidth in the runs before, GB/s, and when the last was."""

    gbps: tuple[float, ...]
    t_ns: int = 0


@dataclass(frozen=True)
class Compared:
    """The links of one key in this run."""

    key: Key
    links: tuple[Link, ...]
    gbps: float
    past: Past | None

    @property
    def share(self) -> float:
        """Of the median of its history; NaN without one."""
        return self.gbps / median(self.past.gbps) if self.past else float("nan")

    @property
    def verdict(self) -> str:
        """slow, fine or unknown."""
        if self.past is None:
            return "unknown"
        if self.share >= SLOW:
            return "fine"
        past = self.past.gbps
        if len(past) < ENOUGH:
            return "slow" if self.share < HALF else "unknown"
        centre = median(past)
        spread = max(LEAST_SPREAD, MAD_SIGMA * median(abs(value - centre) for value in past) / centre)
        far = self.share < 1 - SIGMAS * spread * sqrt(1 + 1 / len(past))
        return "slow" if far and self.gbps < min(past) else "unknown"


def compare(seen: Sequence[Exchanged], fabric: Fabric, both: bool, history: Mapping[Key, Past]) -> list[Compared]:
    """What was measured in the passes, by key."""
    at_once = Counter(one.step for one in seen)
    groups: dict[Key, dict[Link, float]] = {}
    for one in seen:
        if one.ok:
            a, b = sorted(fabric.ends[rank].host for rank in one.pair)
            key = Key(a, b, one.type, fabric.by, int(both), at_once[one.step])
            groups.setdefault(key, {})[one.pair] = float(middle(one.slower, axis=0))
    return [Compared(key, tuple(links), median(links.values()), history.get(key)) for key, links in groups.items()]


def with_history(found: Sequence[Finding], compared: Sequence[Compared], by: str) -> list[Finding]:
    """The findings of a test with what the history adds: what could not be told may be slow or sound by it."""
    confirmed = {rank for one in found if one.verdict == "confirmed" for rank in one.ranks}
    slow = [one for one in compared if one.verdict == "slow" and not _explained(one, confirmed)]
    of_link = {link: one for one in compared for link in one.links}
    made = [_slow(one, by) for one in slow]
    for finding in found:
        pairs = [tuple(pair) for pair in finding.evidence.get("pairs", [])]
        known = [of_link.get((pair[0], pair[1])) for pair in pairs]
        verdicts = {one.verdict if one else "unknown" for one in known}
        if finding.verdict == "could not tell" and pairs and verdicts <= {"slow", "fine"}:
            if verdicts == {"fine"}:
                made.append(_fine(finding, [one for one in known if one]))
        elif not (finding.verdict == "cleared" and slow):
            made.append(finding)
    return made


def _explained(one: Compared, confirmed: Collection[int]) -> bool:
    """Whether a part that was found slow is in all of these links."""
    return all(set(link) & set(confirmed) for link in one.links)


def _slow(one: Compared, by: str) -> Finding:
    assert one.past is not None
    key, ranks = one.key, sorted({rank for link in one.links for rank in link})
    where = f"in host {key.a}" if key.a == key.b else f"between host {key.a} and host {key.b}"
    text = (
        f"{listed(one.links)} {where} ({key.type}): {1 / one.share:.2g} times as slow as in the history, "
        f"{one.gbps:.3g} GB/s against {median(one.past.gbps):.3g} in {_runs(one.past)}"
    )
    return Finding(
        what="host" if key.a == key.b else "link",
        ranks=list(one.links[0]) if len(one.links) == 1 else ranks,
        hosts=[key.a] if key.a == key.b else [key.a, key.b],
        cause="communication",
        verdict="confirmed",
        ratio=round(1 / one.share, 3),
        by=by,
        text=text,
        evidence={"history_gbps": list(one.past.gbps), "gbps": one.gbps, "pairs": [list(link) for link in one.links]},
    )


def _fine(finding: Finding, known: Sequence[Compared]) -> Finding:
    least = min(known, key=lambda one: one.share)
    assert least.past is not None
    finding.verdict = "cleared"
    finding.text = finding.text.removesuffix(": could not tell")
    finding.text += f"; but as fast as in the history, {least.share:.2f} of {_runs(least.past)}"
    return finding


def _runs(past: Past) -> str:
    return "1 run" if len(past.gbps) == 1 else f"{len(past.gbps)} runs"


def updated(
    history: Mapping[Key, Past], compared: Iterable[Compared], found: Iterable[Finding], t_ns: int
) -> dict[Key, Past]:
    """The history with this run, but for what was found slow in it, or may be."""
    bad = {rank for one in found if one.verdict == "confirmed" for rank in one.ranks}
    new = dict(history)
    for one in compared:
        spoilt = one.past is not None and one.verdict != "fine"
        if not spoilt and not any(set(link) & bad for link in one.links):
            before = one.past.gbps if one.past else ()
            new[one.key] = Past((*before, one.gbps)[-KEEP:], t_ns)
    return new


class History:
    """The history in a file: read when it is made, so before a job is held, and written by `save`, so after that."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.past = load(path)

    def add(self, compared: Sequence[Compared], found: Sequence[Finding], t_ns: int) -> None:
        """Add a run, but for what was found slow in it, or may be."""
        self.past = updated(self.past, compared, found, t_ns)

    def save(self) -> None:
        """Replace the file; only the owner may read it. MissingError if that cannot be."""
        lines = ({**key._asdict(), "gbps": past.gbps, "t_ns": past.t_ns} for key, past in sorted(self.past.items()))
        history_file.save(self._path, VERSION, lines)


def load(path: Path) -> dict[Key, Past]:
    """The history in a file; empty if there is no file. InputError names the line that is no good."""
    return history_file.load(path, VERSION, _decode)


def _decode(item: dict[str, Any]) -> tuple[Key, Past]:
    parts: dict[str, Any] = {name: history_file.text(item, name) for name in ("a", "b", "type", "by")}
    parts |= {name: history_file.count(item, name) for name in ("both", "pairs")}
    gbps = history_file.numbers(item, "gbps")
    if not gbps or min(gbps) <= 0:
        raise ValueError("its bandwidth makes no sense")
    return Key(**parts), Past(gbps, history_file.count(item, "t_ns"))
