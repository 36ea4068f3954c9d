# SPDX-License-Identifier: Apache-2.0
"""One run of gh-validate-gemm: measure, judge, remember. The command gives it ranks that are held, in whatever way."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ghtools.job.budget import left_s
from ghtools.job.pause import Held
from ghtools.stream.errors import Exit, GhError
from ghtools.stream.records import Finding, Record

from . import gemm_baseline
from .gemm_judge import any_slow, judge, sound, unclear_tests
from .gemm_test import Plan, measure, pooled, records_of
from .measured import Measured


class Session:
    """Keeps the plan and the history between tests. `baseline` None: no history is read or written."""

    def __init__(self, plan: Plan, baseline: Path | None = None) -> None:
        self.plan, self._baseline = plan, baseline
        self._history = gemm_baseline.load(baseline) if baseline else {}
        self.worst = Exit.OK

    def test(self, held: Held, ranks: Sequence[int] | None = None) -> list[Measured]:
        """Measure on the ranks that are held (or those given of them), once more where that could not tell.

        In a job, which waits meanwhile, no further test is made once one has shown beyond doubt who is slow, and none
        is begun for which there is no time. GhError for a rank that is not there.
        """
        if missing := sorted(set(ranks or ()) - set(held.ranks)):
            raise GhError(f"cannot test rank {missing[0]}", f"there are ranks {held.ranks[0]} to {held.ranks[-1]}")
        chosen = ranks if ranks is not None else held.ranks
        measured: list[Measured] = []
        for test in self.plan.tests:
            made = self._one(held, chosen, replace(self.plan, tests=(test,)))
            measured += made
            if math.isfinite(left_s(held)) and any_slow(made, self._history):
                break
        return measured

    def _one(self, held: Held, ranks: Sequence[int], plan: Plan) -> list[Measured]:
        """One test of those of the plan, twice if the first was not clear and there is time for a second."""
        began = time.monotonic()
        measured = measure(held, ranks, plan)
        took_s = time.monotonic() - began
        if unclear_tests(measured, self._history) and left_s(held) > took_s:
            measured = pooled(measured, measure(held, ranks, plan))
        return measured

    def judged(self, measured: Sequence[Measured], suspects: Collection[int] | None = None) -> list[Record]:
        """The records of what was measured and found; the history has it then, if it is kept. Slow ones come first."""
        now_ns = time.time_ns()
        findings = judge(measured, self._history, now_ns, suspects)
        if self._baseline:
            self._history = gemm_baseline.updated(self._history, sound(measured, findings))
            gemm_baseline.save(self._baseline, self._history)
        self.worst = max(self.worst, _exit_of(findings), key=_BADNESS.index)
        gemms: list[Record] = [record for one in measured for record in records_of(one, now_ns)]
        return [*gemms, *findings]


_BADNESS = [Exit.OK, Exit.UNKNOWN, Exit.SLOW]


def _exit_of(findings: Sequence[Finding]) -> Exit:
    """1 if anything is slow, 5 if anything could not be told (or nothing was), else 0."""
    verdicts = {finding.verdict for finding in findings}
    if "confirmed" in verdicts:
        return Exit.SLOW
    return Exit.UNKNOWN if "could not tell" in verdicts or not verdicts else Exit.OK


def summary(records: Sequence[Record]) -> str:
    """One sentence under the findings: the slow ones, or that nothing is slow."""
    findings = [record for record in records if isinstance(record, Finding)]
    slow = [finding for finding in findings if finding.verdict == "confirmed"]
    unknown = [finding for finding in findings if finding.verdict == "could not tell"]
    if slow:
        more = f" (and {len(slow) - 1} more)" if len(slow) > 1 else ""
        return slow[0].text + more
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        return unknown[0].text + more
    return f"nothing is slow: {len(findings)} tested" if findings else "nothing was tested"
