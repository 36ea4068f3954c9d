# SPDX-License-Identifier: Apache-2.0
"""Judge, pure: which rank or GPU is slow in the tests, by how much, against whom, and why.

A device is compared with the median of the other devices of its kind (three in all are needed: of two, one cannot say
which is slow) and with its own history. It is slow if it takes over 1.1 times as long and that is over three standard
errors of the difference of the rates, which come from the spread of its repeats and of the reference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import median, stdev
from typing import Any

from ghtools.stream.records import Finding

from .gemm_cause import Cause, cause_of
from .measured import NAMES, UNITS, Key, Measured, Past, key_of

SLOW_RATIO = 1.1
ERRORS = 3.0
SURE_ERRORS = 6.0  # what is slow by less is measured once more
PEERS = 2  # others
NOTED = 0.05  # of the time
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, normal
MAD_SIGMA = 1.4826
STDEV_MEDIAN = 0.83  # median of the standard deviation of three normal values, over the true one
PEERS_WORD, PAST_WORD = "its peers", "its own history"


@dataclass(frozen=True)
class Reference:
    """What a device is held against: a rate, its relative standard error, the CPU share and clock that went with it.

    `noise` is the relative standard deviation of one repeat as all devices of the test have it, 0 if it is not known.
    """

    name: str
    rate: float
    error: float
    noise: float = 0.0
    share: float = -1.0
    waited: float = -1.0
    mhz: float = -1.0
    count: int = 0


@dataclass(frozen=True)
class Compared:
    """One test of one device against one reference. `verdict`: slow, fine or unclear."""

    measured: Measured
    reference: Reference
    ratio: float  # how many times slower
    error: float  # standard error of the difference of the two rates
    verdict: str

    @property
    def doubtful(self) -> bool:
        """Over 1.1 times slower, and the difference is no multiple of its error that rules out chance."""
        difference = self.reference.rate - self.measured.rate
        return self.verdict != "fine" and difference < SURE_ERRORS * self.error


def _sigma_of(values: Sequence[float]) -> float:
    """Relative standard deviation of some devices' values; robust, since one of them may be the odd one."""
    centre = median(values)
    return MAD_SIGMA * median(abs(value - centre) for value in values) / centre


def _noise_of(group: Sequence[Measured]) -> float:
    """Relative standard deviation of a repeat in a group of devices: three repeats of one alone say little of it."""
    return median(stdev(one.rates) / one.rate for one in group) / STDEV_MEDIAN


def peers_of(one: Measured, all_: Sequence[Measured]) -> Reference | None:
    """The other devices of the same kind in the same test; None if there are under two."""
    mine = (one.kind, one.test, one.dtype, one.size, one.threads)
    others = [
        other
        for other in all_
        if other is not one
        and other.status == "ok"
        and mine == (other.kind, other.test, other.dtype, other.size, other.threads)
    ]
    if len(others) < PEERS:
        return None
    rates, noise = [other.rate for other in others], _noise_of([one, *others])
    own_error = MEDIAN_ERROR * noise / sqrt(len(one.repeats))
    return Reference(
        PEERS_WORD,
        median(rates),
        MEDIAN_ERROR * max(_sigma_of(rates), own_error) / sqrt(len(rates)),
        noise,
        median(other.share("cpu_ns") for other in others),
        median(other.waited for other in others),
        median(other.mhz for other in others),
        len(others),
    )


def past_of(one: Measured, history: Mapping[Key, Past]) -> Reference | None:
    """What this device did in the same test before; None if nothing is stored."""
    past = history.get(key_of(one))
    if past is None or not past.rates:
        return None
    # A new run is one more of its kind: it may differ from their median by as much as they do among themselves.
    error = _sigma_of(past.rates) * sqrt(1 + 1 / len(past.rates))
    return Reference(PAST_WORD, median(past.rates), error, share=median(past.shares), count=len(past.rates))


def compare(one: Measured, reference: Reference) -> Compared:
    """One device against one reference. It must have two repeats, so that there is a spread."""
    ratio = reference.rate / one.rate
    own = MEDIAN_ERROR * max(stdev(one.rates), reference.noise * one.rate) / sqrt(len(one.rates))
    error = hypot(own, reference.error * reference.rate)
    # The rates are compared, not the ratio: what is very slow is very uneven as well, a quotient would hide it.
    significant = reference.rate - one.rate > ERRORS * error
    verdict = "fine" if ratio <= SLOW_RATIO else "slow" if significant else "unclear"
    return Compared(one, reference, ratio, error, verdict)


def judge(
    all_: Sequence[Measured],
    history: Mapping[Key, Past],
    now_ns: int,
    suspects: Collection[int] | None = None,
) -> list[Finding]:
    """A finding for each rank (if `suspects` is given: for those, and for any other that is slow), slow ones first."""
    findings = []
    for rank in sorted({one.rank for one in all_}):
        mine = [one for one in all_ if one.rank == rank]
        finding = _finding(mine, all_, history, now_ns)
        if suspects is None or rank in suspects or finding.verdict == "confirmed":
            findings.append(finding)
    order = {"confirmed": 0, "could not tell": 1, "cleared": 2}
    return sorted(findings, key=lambda finding: (order[finding.verdict], -finding.ratio, finding.ranks))


def any_slow(all_: Sequence[Measured], history: Mapping[Key, Past]) -> bool:
    """Whether some device is slow beyond its spread in one of these measurements."""
    return any(
        compare(one, reference).verdict == "slow"
        for one in all_
        if one.status == "ok"
        for reference in (peers_of(one, all_), past_of(one, history))
        if reference
    )


def unclear_tests(all_: Sequence[Measured], history: Mapping[Key, Past]) -> list[str]:
    """The tests in which some device was slower within the spread, or not far out of it: more repeats may tell."""
    tests = set()
    for one in all_:
        if one.status == "ok":
            references = [made for made in (peers_of(one, all_), past_of(one, history)) if made]
            if any(compare(one, reference).doubtful for reference in references):
                tests.add(one.test)
    return sorted(tests, reverse=True)


def sound(all_: Sequence[Measured], findings: Sequence[Finding]) -> list[Measured]:
    """The measurements that may enter the history: those of ranks that were not found slow."""
    slow = {rank for finding in findings if finding.verdict == "confirmed" for rank in finding.ranks}
    return [one for one in all_ if one.status == "ok" and one.rank not in slow]


def _finding(mine: Sequence[Measured], all_: Sequence[Measured], history: Mapping[Key, Past], now_ns: int) -> Finding:
    compared: list[Compared] = []
    untold: list[str] = []
    for one in mine:
        name = _name(one)
        if one.status != "ok":
            untold.append(f"{name} {one.status}: {one.why}")
            continue
        references = [made for made in (peers_of(one, all_), past_of(one, history)) if made]
        compared += [compare(one, reference) for reference in references]
        if not references:
            untold.append(f"{name} has nothing to be compared with")
    slow = [one for one in compared if one.verdict == "slow"]
    unclear = [one for one in compared if one.verdict == "unclear"]
    who = f"rank {mine[0].rank}"
    evidence: dict[str, Any] = {"tests": [_evidence(one) for one in compared]}
    if untold:
        evidence["not_told"] = untold
    common: dict[str, Any] = {
        "what": max(map(_what, mine), key=["rank", "device"].index),
        "ranks": [mine[0].rank],
        "hosts": [mine[0].host] if mine[0].host else [],
        "by": "gemm",
        "t_ns": now_ns,
        "evidence": evidence,
    }
    if slow:
        worst = max(slow, key=lambda one: one.ratio)
        cause = _cause(worst)
        evidence["why"] = cause.word
        common["what"] = _what(worst.measured)  # of a rank with a GPU either may be slow
        text = f"{who}: {_name(worst.measured)} {worst.ratio:.2g}x slower than {worst.reference.name}, {cause.text}"
        return Finding(
            **common, cause="compute", verdict="confirmed", ratio=worst.ratio, text=text + _besides(worst, compared)
        )
    ratio = max((one.ratio for one in compared), default=0.0)
    if unclear:
        worst = max(unclear, key=lambda one: one.ratio)
        why = f"{_name(worst.measured)} {worst.ratio:.2g}x slower than {worst.reference.name}, within its own spread"
    elif not compared or len(untold) == len(mine):
        why = "; ".join(untold)
        if any("nothing" in line for line in untold):
            why = "under three ranks of its kind, and no history (--baseline) to compare with"
    else:
        told = ", ".join(f"{_name(one.measured)} {1 / one.ratio:.2f} of {one.reference.name}" for one in compared)
        text = "; ".join([f"{who}: as fast as it should be ({told})", *untold, *_notes(mine)])
        return Finding(**common, verdict="cleared", ratio=ratio, text=text)
    text = "; ".join([f"{who}: could not tell: {why}", *_notes(mine)])
    return Finding(**common, verdict="could not tell", ratio=ratio, text=text)


def _notes(mine: Sequence[Measured]) -> list[str]:
    """What held the device back though no comparison shows it: it may hold back all of them alike."""
    notes = []
    throttled = max((one.throttled for one in mine), default=-1.0)
    if throttled > NOTED:
        quotas = [one.quota for one in mine if one.quota > 0]
        quota = f" (quota {quotas[0]:.3g} CPU)" if quotas else ""
        notes.append(f"but its cgroup{quota} was throttled {100 * throttled:.0f} % of the time")
    stolen = max((one.share("steal_ns") for one in mine), default=-1.0)
    if stolen > NOTED:
        notes.append(f"but the host of this virtual machine took {stolen:.2g} CPU from it")
    return notes


def _what(one: Measured) -> str:
    return "rank" if one.device == "cpu" else "device"


def _name(one: Measured) -> str:
    name = NAMES[one.test]
    return name if one.device == "cpu" or one.test != "gemm" else f"{one.dtype} {name}"


def _cause(worst: Compared) -> Cause:
    reference = worst.reference
    return cause_of(worst.measured, worst.ratio, reference.share, reference.waited, reference.mhz)


def _besides(worst: Compared, compared: Sequence[Compared]) -> str:
    """What the other reference says of the same test: slower than its peers, as ever; or all slow alike."""
    for other in compared:
        if other.measured is not worst.measured or other is worst or other.verdict != "fine":
            continue
        if other.reference.name == PAST_WORD:
            return "; it was so before, by its history"
        return "; its peers are as slow"
    return ""


def _evidence(one: Compared) -> dict[str, Any]:
    unit, per = UNITS[one.measured.test]
    return {
        "test": one.measured.test,
        "dtype": one.measured.dtype,
        "against": one.reference.name,
        "of": one.reference.count,
        "ratio": round(one.ratio, 4),
        "error": one.error / per,
        "verdict": one.verdict,
        "rate": one.measured.rate / per,
        "reference_rate": one.reference.rate / per,
        "unit": unit,
        "cpu_share": round(one.measured.share("cpu_ns"), 4),
        "throttled_share": round(one.measured.throttled, 4),
        "waited_share": round(one.measured.waited, 4),
        "quota_cpus": round(one.measured.quota, 4),
    }
