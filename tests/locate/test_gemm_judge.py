# SPDX-License-Identifier: Apache-2.0
"""The judge of GEMM tests on made-up measurements: who is slow, against whom, why, and when it cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ghtools.locate.gemm_judge import judge, sound, unclear_tests
from ghtools.locate.gemm_test import pooled
from ghtools.locate.measured import Measured, Past, Repeat, key_of

WALL = 400_000_000


def one(rank: int, rate: float, spread: float = 0.01, **more: float) -> Measured:
    """A rank at `rate` GFLOP/s; `more`: cpu, waited, throttled as shares of the time, and forced, mhz, quota."""
    cpu = more.get("cpu", 1.0)
    repeats = tuple(
        Repeat(
            number,
            WALL,
            int(cpu * WALL),
            int(rate * 1e9 * (1 + spread * (number - 1)) * WALL / 1e9),
            forced=int(more.get("forced", 0)),
            waited_ns=int(more.get("waited", 0.0) * WALL),
            throttled_ns=int(more.get("throttled", 0.0) * WALL),
            khz=int(more.get("mhz", -1) * 1000),
        )
        for number in range(3)
    )
    return Measured(rank, "a", kind="cpu avx2", size=384, repeats=repeats, quota=more.get("quota", -1.0))


def test_all_alike_are_cleared() -> None:
    findings = judge([one(rank, 100 + rank) for rank in range(4)], {}, 7)
    assert [finding.verdict for finding in findings] == ["cleared"] * 4
    assert all(finding.t_ns == 7 and finding.by == "gemm" and finding.what == "rank" for finding in findings)


def test_a_throttled_rank_is_confirmed_with_its_quota() -> None:
    slow = one(2, 35, cpu=0.18, throttled=0.82, waited=0.82, quota=0.15)
    findings = judge([one(0, 100), one(1, 98), slow, one(3, 99)], {}, 0)
    assert [finding.verdict for finding in findings] == ["confirmed", *["cleared"] * 3]
    assert findings[0].ranks == [2] and findings[0].cause == "compute" and findings[0].hosts == ["a"]
    assert findings[0].ratio == pytest.approx(99 / 35)
    assert findings[0].evidence["why"] == "throttled"
    assert findings[0].text == (
        "rank 2: GEMM 2.8x slower than its peers, throttled by its cgroup (quota 0.15 CPU, throttled 82 % of the time)"
    )


def test_a_contended_rank_is_told_from_a_throttled_one() -> None:
    slow = one(1, 50, cpu=0.5, waited=0.5, forced=40)
    finding = judge([one(0, 100), slow, one(2, 100)], {}, 0)[0]
    assert finding.ranks == [1] and finding.evidence["why"] == "contended"
    assert "waited for a CPU 50 % of the time; 120 involuntary switches" in finding.text


def test_the_wait_that_all_have_is_not_the_cause() -> None:
    """Four ranks on two CPUs: each waits half of the time, and the slow one is throttled beside that."""
    ranks = [one(rank, 50, cpu=0.5, waited=0.5) for rank in range(3)]
    finding = judge([*ranks, one(3, 20, cpu=0.2, waited=0.8, throttled=0.4, quota=0.2)], {}, 0)[0]
    assert finding.ranks == [3] and finding.evidence["why"] == "throttled"


def test_slow_for_each_second_of_cpu() -> None:
    clock = judge([one(0, 100, mhz=3000), one(1, 60, mhz=1800), one(2, 100, mhz=3000)], {}, 0)[0]
    assert clock.evidence["why"] == "slow clock" and "clock 1800 MHz against 3000 MHz" in clock.text
    other = judge([one(0, 100), one(1, 60), one(2, 100)], {}, 0)[0]
    assert other.evidence["why"] == "slow while running"


def test_stopped_without_a_reason_in_sight() -> None:
    assert judge([one(0, 100), one(1, 50, cpu=0.5), one(2, 100)], {}, 0)[0].evidence["why"] == "not running"


@pytest.mark.parametrize(("rate", "verdict"), [(92, "cleared"), (88, "confirmed"), (50, "confirmed")])
def test_the_threshold(rate: float, verdict: str) -> None:
    findings = judge([one(0, 100), one(1, 100), one(2, rate), one(3, 100)], {}, 0)
    assert [finding.verdict for finding in findings if finding.ranks == [2]] == [verdict]


def test_within_its_own_spread_it_cannot_tell() -> None:
    findings = judge([one(0, 100), one(1, 100), one(2, 80, spread=0.4), one(3, 100)], {}, 0)
    assert findings[0].ranks == [2] and findings[0].verdict == "could not tell" and "own spread" in findings[0].text


def test_all_throttled_alike_are_told_so() -> None:
    ranks = [one(rank, 20, cpu=0.2, throttled=0.8, quota=0.2) for rank in range(3)]
    findings = judge(ranks, {}, 0)
    assert {finding.verdict for finding in findings} == {"cleared"}
    assert all(f.text.endswith("; but its cgroup (quota 0.2 CPU) was throttled 80 % of the time") for f in findings)
    assert judge(ranks[:1], {}, 0)[0].text.endswith("was throttled 80 % of the time")


def test_very_slow_and_very_uneven_is_slow() -> None:
    """Rates under a hog, as measured on this project's machine."""
    rates = ([0.37, 1.49, 1.42], [4.35, 4.09, 4.36], [4.76, 4.27, 3.66], [4.60, 4.44, 7.30])
    ranks = [
        replace(one(rank, 1), repeats=tuple(Repeat(0, 10**9, 10**9, int(rate * 1e9)) for rate in some))
        for rank, some in enumerate(rates)
    ]
    finding = judge(ranks, {}, 0)[0]
    assert finding.ranks == [0] and finding.verdict == "confirmed"


def test_ranks_that_differ_widely_blame_nobody() -> None:
    rates = [100, 60, 140, 80, 120, 90]
    assert not [
        f for f in judge([one(rank, rate) for rank, rate in enumerate(rates)], {}, 0) if f.verdict == "confirmed"
    ]


def test_two_are_too_few() -> None:
    findings = judge([one(0, 100), one(1, 50)], {}, 0)
    assert [finding.verdict for finding in findings] == ["could not tell"] * 2
    assert all("under three" in finding.text and finding.ratio == 0 for finding in findings)


def test_one_slow_of_three_does_not_make_the_others_suspect() -> None:
    findings = judge([one(0, 100), one(1, 99), one(2, 40)], {}, 0)
    assert [(finding.ranks, finding.verdict) for finding in findings] == [
        ([2], "confirmed"), ([1], "cleared"), ([0], "cleared"),
    ]  # fmt: skip


def test_a_lone_device_against_its_history() -> None:
    now = one(0, 50)
    history = {key_of(now): Past((100e9, 101e9, 99e9), (1.0, 1.0, 1.0))}
    finding = judge([now], history, 0)[0]
    assert finding.verdict == "confirmed" and finding.ratio == pytest.approx(2.0)
    assert "2x slower than its own history" in finding.text
    assert judge([one(0, 98)], history, 0)[0].verdict == "cleared"


def test_all_slow_alike_are_seen_by_their_history() -> None:
    ranks = [replace(one(rank, 50), together=4) for rank in range(4)]
    history = {key_of(ranks[0]): Past((100e9,), (1.0,))}
    findings = judge(ranks, history, 0)
    assert [finding.verdict for finding in findings] == ["confirmed"] * 4
    assert all("its own history" in finding.text and "its peers are as slow" in finding.text for finding in findings)
    assert sound(ranks, findings) == []


def test_slower_than_its_peers_as_ever() -> None:
    ranks = [one(0, 100), one(1, 100), replace(one(2, 50), host="b")]
    finding = judge(ranks, {key_of(ranks[2]): Past((50e9,), (1.0,))}, 0)[0]
    assert finding.ranks == [2] and "than its peers" in finding.text and "it was so before" in finding.text


def test_other_kinds_and_sizes_are_no_peers() -> None:
    ranks = [one(0, 100), one(1, 100), replace(one(2, 50), kind="cpu plain"), replace(one(3, 50), size=512)]
    assert {finding.verdict for finding in judge(ranks, {}, 0)} == {"could not tell"}


def test_a_test_that_failed_is_not_slow() -> None:
    broken = Measured(2, "a", status="failed", why="no result within 20 s")
    findings = judge([one(0, 100), one(1, 100), one(3, 100), broken], {}, 0)
    assert findings[0].ranks == [2] and findings[0].verdict == "could not tell"
    assert findings[0].text == "rank 2: could not tell: GEMM failed: no result within 20 s"


def test_gemm_fine_and_the_other_test_not_done() -> None:
    more = [Measured(rank, "a", test="bandwidth", status="failed", why="no memory") for rank in range(3)]
    findings = judge([*(one(rank, 100) for rank in range(3)), *more], {}, 0)
    assert {finding.verdict for finding in findings} == {"cleared"}
    assert all("memory bandwidth failed: no memory" in finding.text for finding in findings)


def test_suspects_and_who_else_is_slow() -> None:
    ranks = [one(rank, 40 if rank == 3 else 100) for rank in range(5)]
    assert [finding.ranks for finding in judge(ranks, {}, 0, {1})] == [[3], [1]]


def test_nothing_measured_has_no_findings() -> None:
    assert judge([], {}, 0) == []


def test_what_could_not_tell_is_asked_once_more() -> None:
    noisy = one(2, 80, spread=0.4)
    ranks = [one(0, 100), one(1, 100), noisy, one(3, 100)]
    assert unclear_tests(ranks, {}) == ["gemm"]
    assert unclear_tests([one(rank, 100) for rank in range(4)], {}) == []
    both = pooled(ranks, [one(rank, 50) for rank in (0, 2)])
    assert [len(one.repeats) for one in both] == [6, 3, 6, 3]
    assert both[2].rates == noisy.rates + one(2, 50).rates
    failed = Measured(1, "a", status="failed", why="x")
    assert pooled([failed], [one(1, 50)]) == [failed] and pooled([ranks[1]], [failed]) == [ranks[1]]


def drawn(random: np.random.Generator, noise: float, fault: float) -> list[Measured]:
    """Eight ranks whose repeats vary by `noise`; rank 1 is `fault` times slower."""
    found = []
    for rank in range(8):
        rates = (100 / fault if rank == 1 else 100) * np.maximum(1 + noise * random.standard_normal(3), 0.1)
        found.append(replace(one(rank, 1), repeats=tuple(Repeat(0, 10**9, 10**9, int(rate * 1e9)) for rate in rates)))
    return found


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("fault", [1.0, 1.5, 3.0])
def test_in_noise_the_right_one_is_named_or_none(noise: float, fault: float) -> None:
    random = np.random.default_rng(int(1000 * noise + fault))
    right = wrong = 0
    for _ in range(40):
        ranks = drawn(random, noise, fault)
        if unclear_tests(ranks, {}):
            ranks = pooled(ranks, drawn(random, noise, fault))
        named = {f.ranks[0] for f in judge(ranks, {}, 0) if f.verdict == "confirmed"}
        right += (1 in named) == (fault > 1)
        wrong += bool(named - ({1} if fault > 1 else set()))
    assert wrong <= 1
    assert right >= 39 or (noise > 0.1 and fault == 1.5)
