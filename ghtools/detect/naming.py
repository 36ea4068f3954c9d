# SPDX-License-Identifier: Apache-2.0
"""Which part is slow: suspects and the findings of tests, in the words of an alert (issue 4, "The chain").

A part is named once an episode, when it is attributed, and once more when a test confirms it; what takes it back is
said, too. Where nobody could be named, the reason is said once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ghtools.stream.records import Finding, Job, Suspect

MAX_PARTS = 32  # of one episode
MAX_TEXT = 400
MAX_RANKS = 8  # listed in a sentence
TESTS = {"gemm": "GEMM", "gh-validate-ring": "the ring test"}  # by how what is in `by` begins
WORK = {"compute": "compute", "input": "input", "communication": "transfer"}

Key = tuple[str, tuple[int, ...], bool]


@dataclass
class Part:
    """A part that was named, and how sure it is."""

    what: str
    ranks: list[int]
    hosts: list[str]
    cause: str
    ratio: float = 0.0
    since: int = -1  # first slow iteration
    verdict: str = ""  # attributed, confirmed, or empty: only a test has found it
    by: str = ""  # the test that confirmed it
    why: str = ""  # what it says the reason is, in a word
    test_ratio: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Its fields, for a machine."""
        return dict(vars(self))


class Places:
    """Where ranks run, as the job's records tell."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[str, str]] = {}

    def job(self, job: Job) -> None:
        """Learn the ranks' hosts and devices."""
        nccl = "nccl" in job.backend
        for item in job.ranks:
            rank, host, device, local = (item.get(name) for name in ("rank", "host", "device", "local_rank"))
            if type(rank) is int:
                where = f"GPU {device}" if device and isinstance(device, str) else ""
                where = where or (f"local rank {local}" if nccl and type(local) is int else "")
                self._at[rank] = (host if isinstance(host, str) else "", where)

    def rank(self, rank: int, hosts: list[str]) -> str:
        """`rank 2 (host b, GPU 3)`, as far as it is known."""
        host, device = self._at.get(rank, ("", ""))
        host = hosts[0] if len(hosts) == 1 else host
        where = ", ".join(part for part in (f"host {host}" if host else "", device) if part)
        return f"rank {rank}" + (f" ({where})" if where else "")


@dataclass
class Parts:
    """The parts of one episode."""

    since: int = -1
    named: dict[Key, Part] = field(default_factory=dict)
    explained: bool = False  # it was said why nobody can be named

    def take(self, record: Suspect | Finding, places: Places) -> tuple[str, str] | None:
        """(state of the alert, sentence) if there is something to say that was not said."""
        key = key_of(record)
        if record.verdict == "attributed" and isinstance(record, Suspect):
            if key in self.named or len(self.named) >= MAX_PARTS:
                return None
            self.named[key] = part = _part(record, self.since, "attributed")
            return "named", sentence(part, places)
        if record.verdict == "confirmed" and isinstance(record, Finding):
            return self._confirmed(key, record, places)
        if record.verdict == "cleared" and key in self.named:
            part = self.named.pop(key)
            by = f"cleared by {_test(record.by)}" if isinstance(record, Finding) and record.by else "cleared"
            return "cleared", _cut(f"{subject(part, places)}: no longer suspected, {by}" + _why(record.text))
        if isinstance(record, Suspect) and not self.named and not self.explained:
            self.explained = True
            if record.verdict == "cleared":
                return "unnamed", _cut(f"nobody is to blame{_why(record.text)}")
            return "unnamed", _cut(f"cannot tell who is slow: {_tail(record.text)}")
        return None

    def _confirmed(self, key: Key, record: Finding, places: Places) -> tuple[str, str] | None:
        part = self.named.get(key)
        if part is not None and part.by:
            return None
        if part is None:
            if len(self.named) >= MAX_PARTS or not self._bears(key):
                return None
            part = self.named[key] = _part(record, self.since, "")
            part.ratio = 0.0  # what the test measured is said as the test's
        part.verdict, part.by, part.test_ratio = part.verdict and "confirmed", record.by or "a test", record.ratio
        why = record.evidence.get("why")
        part.why = why if isinstance(why, str) else ""
        return "named", sentence(part, places)

    def _bears(self, key: Key) -> bool:
        """Whether a part that nobody suspected is worth a name: a piece of one that is, or the first of its kind.

        Beside a part that was named, a small difference that a test finds elsewhere is not what the episode is about.
        """
        alike = [named for named in self.named if named[2] == key[2]]
        return not alike or any(set(key[1]) <= set(named[1]) for named in alike)

    def plain(self) -> list[dict[str, Any]]:
        """All parts, for a machine."""
        return [part.plain() for part in self.named.values()]


def key_of(record: Suspect | Finding) -> Key:
    """What makes two records speak of the same part. A link has no direction here, and a rank's device is the rank."""
    ranks = sorted(record.ranks) if record.what in ("link", "group", "host") else record.ranks
    what = "rank" if record.what == "device" and record.ranks else record.what
    return what, tuple(ranks), record.cause == "communication"


def subject(part: Part, places: Places) -> str:
    """The part by name: a rank with its place, a link by its hosts where it joins two."""
    ranks = ", ".join(map(str, part.ranks[:MAX_RANKS])) + (", ..." if len(part.ranks) > MAX_RANKS else "")
    comm = part.cause == "communication"
    if part.what in ("rank", "device") and part.ranks:
        return ("links of " if comm else "") + places.rank(part.ranks[0], part.hosts)
    if part.what == "link" and len(part.hosts) == 2:
        return f"link host {part.hosts[0]} <-> host {part.hosts[1]}"
    if part.what == "link" and len(part.ranks) == 2:
        return f"link rank {part.ranks[0]} <-> rank {part.ranks[1]}"
    if part.what == "host" and part.hosts:
        return ("links of " if comm else "") + f"host {part.hosts[0]}"
    return f"{part.what} of ranks {ranks}" if ranks else part.what


def short(part: Part, places: Places) -> str:
    """`rank 2 (host b): compute 2.9x slower`."""
    work = WORK.get(part.cause, part.cause)
    slower = f"{work} {part.ratio:.1f}x slower" if part.ratio > 0 else f"{work} slower"
    return _cut(f"{subject(part, places)}: {work if part.cause == 'host pause' else slower}")


def sentence(part: Part, places: Places) -> str:
    """All that is known of a part; what is not known is left out."""
    text = short(part, places)
    if part.since >= 0:
        text += f" since iteration {part.since}"
    if part.verdict:
        text += ", attributed"
    if part.by:
        text += f", confirmed by {_test(part.by)}" + (f" {part.test_ratio:.1f}x" if part.test_ratio > 0 else "")
        text += f" ({part.why})" if part.why else ""
    return _cut(text)


def _part(record: Suspect | Finding, since: int, verdict: str) -> Part:
    told = record.evidence.get("onset_index")
    since = told if type(told) is int and told >= 0 else since
    return Part(record.what, list(record.ranks), list(record.hosts), record.cause, record.ratio, since, verdict)


def _test(by: str) -> str:
    return next((name for test, name in TESTS.items() if by.lower().startswith(test)), by)


def _why(text: str) -> str:
    return f": {text}" if text else ""


def _tail(text: str) -> str:
    return text.removeprefix("cannot tell who is slow: ") or "no reason is given"


def _cut(text: str) -> str:
    """One printable line of bounded length: names and reasons come from the stream."""
    text = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
