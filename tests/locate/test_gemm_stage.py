# SPDX-License-Identifier: Apache-2.0
"""The filter form: when a suspect asks for a test, and that a test that fails is told and not raised.

The tests of the device are faked here; tests/system/test_validate_gemm.py runs real ones.
"""

from __future__ import annotations

from threading import Event

from ghtools.job.pause import CouldNotTell
from ghtools.locate.gemm_stage import ValidateStage
from ghtools.stream.records import Change, Finding, Record, Suspect

from .at_once import at_once


class Bench:
    """A stage whose tests are counted and whose clock is set by hand."""

    def __init__(self, every_s: float = 60.0, fails: bool = False) -> None:
        self.asked: list[set[int]] = []
        self.said: list[str] = []
        self.now_s, self.fails = 1000.0, fails
        self.stage = ValidateStage(self._test, every_s, lambda: self.now_s, lambda: 77, self.said.append, at_once)

    def _test(self, suspects: set[int]) -> list[Record]:
        self.asked.append(suspects)
        if self.fails:
            raise CouldNotTell("the job could not be held", "rank 1 has gone")
        return [Finding(ranks=sorted(suspects), verdict="cleared")]

    def feed(self, record: Record) -> list[Record]:
        return list(self.stage.feed(record))


def suspect(*ranks: int, **more: str) -> Suspect:
    return Suspect(**{"what": "rank", "verdict": "attributed", "cause": "compute", **more}, ranks=list(ranks))  # type: ignore[arg-type]


def test_a_suspect_is_tested_once_an_episode() -> None:
    bench = Bench()
    assert [record.kind for record in bench.feed(suspect(2))] == ["finding"]
    bench.now_s += 100
    assert bench.feed(suspect(2)) == []
    assert bench.feed(Change(stage="suspected")) == [] and bench.feed(suspect(2)) == []
    assert len(bench.feed(Change(stage="confirmed"))) == 1  # which it had waited for
    assert bench.feed(suspect(2)) == []
    assert bench.asked == [{2}, {2}]


def test_at_most_one_in_so_many_seconds_and_the_next_one_after() -> None:
    bench = Bench()
    bench.feed(suspect(1))
    bench.now_s += 59
    assert bench.feed(suspect(2)) == []
    bench.now_s += 1
    bench.feed(suspect(2))
    assert bench.asked == [{1}, {2}]


def test_what_no_test_of_a_device_can_tell_is_left_alone() -> None:
    bench = Bench(0)
    for record in (
        suspect(1, verdict="inconclusive"),
        suspect(1, verdict="cleared"),
        suspect(1, what="link"),
        suspect(1, cause="communication"),
        suspect(1, cause="imbalance"),
        suspect(),
        Finding(ranks=[1]),
    ):
        assert bench.feed(record) == []
    assert bench.asked == []
    for cause in ("host pause", "unknown"):
        bench.feed(suspect({"host pause": 3, "unknown": 4}[cause], cause=cause))
    assert bench.asked == [{3}, {4}]


def test_a_test_that_fails_is_a_finding() -> None:
    bench = Bench(fails=True)
    made = bench.feed(suspect(1, cause="unknown"))
    assert len(made) == 1 and isinstance(made[0], Finding)
    assert (made[0].verdict, made[0].ranks, made[0].cause, made[0].t_ns) == ("could not tell", [1], "unknown", 77)
    assert "rank 1 has gone" in made[0].text and bench.said == [str(made[0].text).removeprefix("could not tell: ")]
    assert list(bench.stage.finish()) == []


def test_the_stream_goes_on_while_a_test_runs() -> None:
    go = Event()

    def test(suspects: set[int]) -> list[Record]:
        assert go.wait(20)
        return [Finding(ranks=sorted(suspects), verdict="cleared")]

    stage = ValidateStage(test, 0.0, lambda: 0.0, lambda: 77, lambda text: None)
    assert list(stage.feed(suspect(2))) == []
    assert list(stage.feed(suspect(3))) == []  # one at a time
    go.set()
    made = list(stage.finish())
    assert [record.ranks for record in made if isinstance(record, Finding)] == [[2]]
    assert len([*stage.feed(suspect(3)), *stage.finish()]) == 1
