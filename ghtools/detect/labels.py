# SPDX-License-Identifier: Apache-2.0
"""Labelled episodes for gh-score: a small JSON or CSV, or what gh-synth has planted.

CSV has a header line; JSON is a list of maps, or a map with the key `episodes` and, beside it, `early_iters`,
`within_iters` and `iters`. Of each episode only `onset` must be given:

    onset   first iteration that differs
    end     first iteration that is as before again; empty or -1 = it lasts to the end
    kind    slow (default), drift, faster: must be found; planned, warm-up, restart, blip: must not be called fail-slow
    full    the iteration at which a gradual change is whole; default: onset
    ratio   iteration time in it / before; 0 = not known
    rank    the rank that is slow (one, or a list such as 0-3,8); -1 or empty = the job, or not known
    cause   as in a suspect (compute, communication, ...)
    series  the job id of the section it is about, or the section's number from 1; empty = all
    within  iterations in which it must be found; default: the option --within-iters
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ghtools.stream.errors import InputError

WANTED = ("slow", "drift", "faster")  # kinds that must be found
NAMED = ("planned", "warm-up", "restart", "blip")  # kinds that must not be called fail-slow
KEYS = ("onset", "end", "kind", "full", "ratio", "rank", "cause", "series", "within")
MOST = 100_000  # labels in one file
FAR = 1 << 62


@dataclass(frozen=True)
class Label:
    """One labelled episode; iterations are indices of the stream."""

    onset: int
    end: int = -1
    kind: str = "slow"
    full: int = -1
    ratio: float = 0.0
    ranks: tuple[int, ...] = ()
    cause: str = ""
    series: str = ""
    within: int = -1

    @property
    def last(self) -> int:
        """First iteration after it; very large if it lasts."""
        return self.end if self.end >= 0 else FAR

    @property
    def whole(self) -> int:
        return self.full if self.full >= 0 else self.onset


@dataclass
class Labels:
    """A labels file. `early` and `within` are None where it says nothing of them; `iters` is 0 then."""

    episodes: list[Label] = field(default_factory=list)
    early: int | None = None
    within: int | None = None
    iters: int = 0

    def of(self, job: str, number: int) -> list[Label]:
        """Those of one section, the `number`th (from 1) of the input."""
        return [label for label in self.episodes if label.series in ("", job, str(number))]


def parse(text: str, name: str) -> Labels:
    """A labels file. Raises InputError, with the line or the episode's number, for what cannot be one."""
    where = f"cannot read the labels {name}"
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        return _json(text.lstrip("\ufeff"), where)
    lines = text.lstrip("\ufeff").splitlines()
    kept = [
        (number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")
    ]
    if not kept:
        raise InputError(where, "it is empty", "a CSV with the columns onset,end or a JSON list")
    try:
        rows = list(csv.reader([line for _, line in kept], skipinitialspace=True))
    except csv.Error as error:
        raise InputError(where, str(error)) from None
    header = [word.strip().lower() for word in rows[0]]
    if "onset" not in header:
        raise InputError(where, f"line {kept[0][0]} has no column onset", "a header line onset,end,kind,ratio,rank")
    made = []
    for (number, _), row in zip(kept[1:], rows[1:], strict=False):
        made.append(_label(dict(zip(header, (word.strip() for word in row), strict=False)), f"{where}: line {number}"))
    return Labels(_bounded(made, where))


def _json(text: str, where: str) -> Labels:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(where, str(error) if isinstance(error, ValueError) else "it is nested too deeply") from None
    extras: Mapping[str, Any] = {}
    if isinstance(data, dict):
        extras, data = data, data.get("episodes")
    if not isinstance(data, list):
        raise InputError(where, "there is no list of episodes in it", '{"episodes": [{"onset": 120, "end": 200}]}')
    made = []
    for number, item in enumerate(data, 1):
        if not isinstance(item, dict):
            raise InputError(f"{where}: episode {number}", "it is not a map")
        made.append(_label(item, f"{where}: episode {number}"))
    early, within = (_extra(extras, key, where) for key in ("early_iters", "within_iters"))
    return Labels(_bounded(made, where), early, within, _extra(extras, "iters", where) or 0)


def _extra(extras: Mapping[str, Any], key: str, where: str) -> int | None:
    if extras.get(key) is None:
        return None
    value = _whole(extras[key], key, where)
    if value < 0:
        raise InputError(where, f"{key} is {value}")
    return value


def _bounded(made: list[Label], where: str) -> list[Label]:
    if len(made) > MOST:
        raise InputError(where, f"it has {len(made)} episodes, more than {MOST}")
    return sorted(made, key=lambda label: label.onset)


def _whole(value: object, key: str, where: str) -> int:
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")  # type: ignore[arg-type]
        if number != int(number) or abs(number) > 2**53:
            raise ValueError
        return int(number)
    except (TypeError, ValueError, OverflowError):
        raise InputError(where, f"{key} {str(value)[:40]!r} is not a whole number") from None


def _label(item: Mapping[str, Any], where: str) -> Label:
    def whole(key: str, default: int = -1) -> int:
        value = item.get(key)
        return default if value is None or value == "" else _whole(value, key, where)

    if item.get("onset") in (None, ""):
        raise InputError(where, "it has no onset")
    kind = str(item.get("kind") or "slow").strip().lower()
    if kind not in WANTED + NAMED:
        raise InputError(where, f"kind {kind[:40]!r} is not known", ", ".join(WANTED + NAMED))
    try:
        ratio = float(item.get("ratio") or 0)
    except (TypeError, ValueError):
        ratio = -1.0
    if not 0 <= ratio < 1e9:
        raise InputError(where, f"ratio {str(item.get('ratio'))[:40]!r} is not a number above 0")
    label = Label(
        onset=whole("onset"),
        end=whole("end"),
        kind=kind,
        full=whole("full"),
        ratio=ratio,
        ranks=_ranks(item.get("rank", item.get("ranks")), where),
        cause=str(item.get("cause") or "")[:80],
        series=str(item.get("series") or "")[:200],
        within=whole("within"),
    )
    if label.onset < 0 or -1 < label.end <= label.onset or -1 < label.full < label.onset:
        raise InputError(where, "it ends before it begins" if label.onset >= 0 else "its onset is negative")
    return label


def _ranks(value: object, where: str) -> tuple[int, ...]:
    if value is None or value in ("", -1, "-1"):
        return ()
    words: Iterable[object] = value if isinstance(value, list) else str(value).replace(";", ",").split(",")
    found: set[int] = set()
    for word in words:
        low, _, high = str(word).strip().partition("-") if not str(word).strip().startswith("-") else ("x", "", "")
        first = _whole(low, "rank", where)
        last = _whole(high, "rank", where) if high else first
        if last < first or last - first > MOST:
            raise InputError(where, f"rank {str(word)[:40]!r} is no range of ranks")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def of_truth(truth: Mapping[str, Any]) -> Labels:
    """What the head of a gh-synth stream says was planted; InputError where it says nothing or cannot be one."""
    where = "cannot score against the stream's truth"
    if truth.get("what") == "profile":
        return Labels(_fault(truth, where))
    changes = truth.get("changes")
    if not isinstance(changes, list):
        raise InputError(where, "its head holds none", "a stream of gh-synth, or a LABELS file")
    made = []
    for number, item in enumerate(changes, 1):
        if not isinstance(item, dict):
            raise InputError(f"{where}: change {number}", "it is not a map")
        at, ratio, one = item.get("at"), item.get("ratio"), item.get("type") == "blip"
        kind = "blip" if one else "drift" if item.get("type") == "ramp" else "slow"
        if kind != "blip" and isinstance(ratio, int | float) and ratio < 1:
            kind = "faster"
        fields = {**item, "onset": at, "kind": kind, "end": at + 1 if one and isinstance(at, int) else item.get("end")}
        made.append(_label(fields, f"{where}: change {number}"))
    restarts = truth.get("restarts")
    for at in restarts if isinstance(restarts, list) else ():
        made.append(Label(_whole(at, "restarts", where), kind="restart"))
    if truth.get("warmup"):
        made.append(Label(0, max(1, _whole(truth["warmup"], "warmup", where)), kind="warm-up"))
    return Labels(_bounded(made, where), iters=_whole(truth.get("iters") or 0, "iters", where))


def _fault(truth: Mapping[str, Any], where: str) -> list[Label]:
    """The planted fault of a `gh-synth profile` stream: who should be named."""
    fault = truth.get("fault")
    if fault in ("none", "imbalance", "uneven", "pauses", "common"):  # nobody's fault
        return []
    if fault not in ("compute", "input"):
        raise InputError(where, f"a fault of kind {str(fault)[:40]} is of several ranks", "a LABELS file")
    return [_label({"onset": truth.get("at"), "rank": truth.get("rank"), "cause": fault}, where)]
