# SPDX-License-Identifier: Apache-2.0
"""The judge of links: who is named, and that nobody is for noise, load or the shape of a network."""

from __future__ import annotations

import numpy as np
import pytest

from ghtools.locate.ring_fabric import Plan
from ghtools.locate.ring_judge import Alone, Exchanged, alone, ends_of, first, second_pairs
from ghtools.locate.ring_judge import Link as Link_
from ghtools.locate.ring_plan import plan as plan_links
from ghtools.locate.ring_test import RingTest
from ghtools.stream.errors import Exit
from ghtools.stream.records import Finding, Link

from .ring_sim import Sim, run_test


@pytest.mark.parametrize("n", [4, 5, 15, 16, 64])
@pytest.mark.parametrize("topology", ["ring", "tree", "both"])
def test_healthy(n: int, topology: str) -> None:
    test, found, _ = run_test(Sim(n), topology)
    assert test.code == Exit.OK
    assert [finding.verdict for finding in found] == ["cleared"]


@pytest.mark.parametrize(("topology", "runs"), [("ring", 60), ("both", 20)])
def test_nobody_is_named_on_noise(topology: str, runs: int) -> None:
    """Healthy runs of 16 ranks with the spread of 2 CPUs under 16 processes, less of it alone (600 were tried)."""
    for seed in range(runs):
        test, found, _ = run_test(Sim(16, spread=0.12, crowd=3.0, seed=seed), topology)
        assert test.code != Exit.SLOW, (seed, [finding.text for finding in found])


def test_a_machine_that_slows_from_pass_to_pass_names_nobody_and_costs_nothing() -> None:
    sim = Sim(16, drift=(1.0, 0.4))
    test, _, _ = run_test(sim)
    assert (test.code, len(sim.asked)) == (Exit.OK, 2)


@pytest.mark.parametrize("n", [5, 15, 16, 63])
@pytest.mark.parametrize("topology", ["ring", "tree", "both"])
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_slow_rank(n: int, topology: str, victim: int) -> None:
    for seed in range(3):
        test, found, _ = run_test(Sim(n, ranks={victim: 0.3}, spread=0.08, crowd=2.0, seed=seed), topology)
        assert test.code == Exit.SLOW
        named = [(finding.what, finding.ranks) for finding in found if finding.verdict == "confirmed"]
        assert named == [("rank", [victim])], [finding.text for finding in found]
        assert found[0].ratio == pytest.approx(1 / 0.3, rel=0.25)


@pytest.mark.parametrize("pair", [(0, 1), (7, 8), (15, 0)])
def test_a_slow_link_is_not_blamed_on_its_ends(pair: tuple[int, int]) -> None:
    test, found, _ = run_test(Sim(16, links={frozenset(pair): 0.5}))
    assert test.code == Exit.SLOW
    assert [(one.what, set(one.ranks)) for one in found] == [("link", set(pair))]
    assert "both ends are sound" in found[0].text
    assert found[0].evidence["which"] == "link"


def test_four_ranks() -> None:
    """The fewest with which an end can be told."""
    test, found, _ = run_test(Sim(4, ranks={2: 0.4}))
    assert [(one.what, one.ranks) for one in found if one.verdict == "confirmed"] == [("rank", [2])]
    assert test.code == Exit.SLOW


JOB = Plan().for_job()


@pytest.mark.parametrize("n", [4, 8, 16])
def test_a_slow_rank_and_a_slow_link_in_a_job(n: int) -> None:
    """Where a job waits, the second partners are tested together with what looks slow: it names the same."""
    for seed in range(5):
        sim = Sim(n, ranks={2: 0.3}, spread=0.08, crowd=2.0, seed=seed)
        _, found, _ = run_test(sim, plan=JOB)
        named = [(one.what, one.ranks) for one in found if one.verdict == "confirmed"]
        assert named == [("rank", [2])], [one.text for one in found]
        _, found, _ = run_test(Sim(n, links={frozenset((1, 2)): 0.4}, seed=seed), plan=JOB)
        expected = ["link"] if n > 4 else ["link", "rank"]  # of four, too few are left to clear both ends
        assert found[0].what in expected and set(found[0].ranks) <= {1, 2}
    for seed in range(40):
        test, found, _ = run_test(Sim(n, spread=0.12, crowd=3.0, seed=seed), plan=JOB)
        assert test.code != Exit.SLOW, (seed, [one.text for one in found])


def test_without_time_for_a_second_round_nothing_is_told() -> None:
    sim = Sim(8, ranks={2: 0.3})
    schedule, how = plan_links(range(8), {rank: end.host for rank, end in sim.ends.items()}, "ring")
    test = RingTest(sim, schedule, JOB, how, lambda text: None, lambda text: None, lambda: -1.0)
    found = [record for record in test.run() if isinstance(record, Finding)]
    assert test.code == Exit.UNKNOWN
    assert {one.verdict for one in found} == {"could not tell"}


def test_two_ranks_have_nothing_to_compare_with() -> None:
    test, found, _ = run_test(Sim(2, ranks={1: 0.1}))
    assert test.code == Exit.UNKNOWN
    assert "no other of its type" in found[0].text


def test_who_sends_slowly() -> None:
    """One direction of one rank: tc tbf on its host's NIC."""
    _, found, _ = run_test(Sim(12, sends={4: 0.2}))
    assert [(one.what, one.ranks) for one in found] == [("rank", [4])]
    assert found[0].evidence["direction"] == "sending"
    assert ": sending " in found[0].text
    assert found[0].ratio == pytest.approx(5, rel=0.1)


def test_one_direction_alone() -> None:
    test, found, records = run_test(Sim(16, ranks={6: 0.3}), plan=Plan(both=False))
    assert test.code == Exit.SLOW
    assert [(one.what, one.ranks) for one in found] == [("rank", [6])]
    assert all(record.ranks[1] == (record.ranks[0] + 1) % 16 for record in records
               if isinstance(record, Link) and record.facts["phase"] == "pass")  # fmt: skip


def test_two_slow_ranks_and_a_slow_link() -> None:
    _, found, _ = run_test(Sim(32, ranks={3: 0.3, 20: 0.5}, links={frozenset((10, 11)): 0.4}))
    assert {(one.what, *one.ranks) for one in found} == {("rank", 3), ("rank", 20), ("link", 10, 11)}


def test_slow_in_a_crowd_and_sound_alone_is_not_named() -> None:
    test, found, _ = run_test(Sim(16, crowded={frozenset((4, 5)): 0.3}))
    assert test.code == Exit.OK
    assert "link 4 - 5 slow among the others but not alone" in found[0].text


def test_links_of_different_types_are_not_compared() -> None:
    """Between hosts a third of the bandwidth inside: nobody's fault."""
    for topology in ("ring", "tree", "both"):
        sim = Sim(16, per_host=4)
        test, found, _ = run_test(sim, topology)
        assert (test.code, len(found)) == (Exit.OK, 1), [finding.text for finding in found]


def test_a_slow_host_is_named_as_a_host() -> None:
    """Every rank of a host has a slow network and a sound loopback."""
    sim = Sim(16, per_host=2, links={frozenset((a, b)): 0.3 for a in (4, 5) for b in range(16) if b not in (4, 5)})
    test, found, _ = run_test(sim)
    assert test.code == Exit.SLOW
    assert [(one.what, one.hosts) for one in found] == [("host", ["host2"])]


def test_a_slow_host_of_three_is_told_by_pairs_that_the_passes_did_not_have() -> None:
    # Of the three links between hosts in the ring one alone is sound: it is not enough to compare with.
    for seed, plan in ((seed, plan) for seed in range(5) for plan in (Plan(), JOB)):
        sim = Sim(6, per_host=2, spread=0.1, seed=seed)
        for rank, other in ((1, 2), (3, 4), (0, 2), (0, 3), (1, 3), (2, 4), (2, 5), (3, 5)):
            sim.links[frozenset((rank, other))] = 0.05
        test, found, _ = run_test(sim, plan=plan)
        assert [(f.what, f.ranks, f.verdict) for f in found] == [("host", [2, 3], "confirmed")]
        assert test.code == Exit.SLOW


def test_a_sound_loopback_does_not_clear_a_rank_of_a_slow_network() -> None:
    """Of four hosts; a loopback is tested alone, too, as it looked slow among the others."""
    slow = {frozenset((a, b)): 0.03 for a in (2, 3) for b in range(8) if b not in (2, 3)}
    for seed in range(5):
        sim = Sim(8, per_host=2, spread=0.1, links=slow, crowded={frozenset((0, 1)): 0.5}, seed=seed)
        test, found, _ = run_test(sim, plan=JOB)
        named = [(one.what, one.ranks, one.hosts) for one in found if one.verdict == "confirmed"]
        assert named == [("host", [2, 3], ["host1"])], [one.text for one in found]
        assert test.code == Exit.SLOW


def test_what_is_between_two_hosts_alone_cannot_be_told() -> None:
    test, found, _ = run_test(Sim(4, per_host=2))
    assert [(f.verdict, "same two hosts" in f.text) for f in found] == [("could not tell", True)]
    assert test.code == Exit.UNKNOWN


def test_no_result_is_not_slow() -> None:
    test, found, records = run_test(Sim(16, dead={frozenset((2, 3))}))
    assert test.code == Exit.UNKNOWN
    assert [(one.verdict, one.ranks) for one in found] == [("could not tell", [2, 3])]
    assert [record.status for record in records if isinstance(record, Link) and record.ranks == [2, 3]] == ["no result"]


def test_no_result_does_not_hide_a_slow_rank() -> None:
    test, found, _ = run_test(Sim(16, dead={frozenset((2, 3))}, ranks={9: 0.2}))
    assert test.code == Exit.SLOW
    assert {one.verdict for one in found} == {"confirmed", "could not tell"}


def test_only_the_slowest_are_tested_again() -> None:
    sim = Sim(200, ranks=dict.fromkeys(range(0, 60, 3), 0.3))
    test, found, _ = run_test(sim)
    assert test.code == Exit.SLOW
    assert any("could not be tested alone" in one.text for one in found)
    assert len(sim.asked) <= 2 + 3 * (8 + 3) + 3 * (8 + 16 + 3)


def test_who_names_who() -> None:
    """nccl-tests#106: a slow pair whose one end is sound elsewhere names the other; one with neither names nobody."""

    def one(link: tuple[int, int], share: float) -> Alone:
        return Alone(link, np.full(3, share), (share, share), share < 0.8)

    pairs = {(644, 699): 0.56, (632, 641): 1.0, (284, 678): 0.56, (641, 644): 0.56, (404, 699): 1.0}
    ends = ends_of({link: one(link, share) for link, share in pairs.items()})
    assert [int(end) for end in ends.slow] == [644]
    assert [[int(end) for end in pair.ends] for pair in ends.open] == [[284, 678]]


def test_a_doubtful_link_clears_nobody() -> None:
    """A throttled rank, one of whose links had a lucky round: the others name it."""
    links = {(1, 2): 0.1, (2, 0): 0.1, (0, 1): 1.0, (3, 0): 1.0}
    made = {link: Alone(link, np.full(3, share), (share, share), share < 0.8) for link, share in links.items()}
    made[2, 3] = Alone((2, 3), np.array([0.1, 0.3, 0.9]), (0.3, 0.3), False)
    ends = ends_of(made)
    assert [int(end) for end in ends.slow] == [2]
    assert not ends.links


def test_second_pairs_are_new_and_have_a_partner_each() -> None:
    tested_links = [(a, (a + 1) % 8) for a in range(8)]
    made = second_pairs([(2, 3)], tested_links, [0, 1, 4, 5, 6, 7])
    assert [end for end, _ in made] == [2, 3]
    assert not {frozenset(pair) for pair in made} & {frozenset(pair) for pair in tested_links}
    assert len({partner for _, partner in made}) == 2
    assert second_pairs([(0, 1)], [(0, 1)], []) == []


def exchanged(link: tuple[int, int], gbps: float, step: int = 0) -> Exchanged:
    return Exchanged(link, "network", np.full((2, 3, 2), gbps), step=step)


def test_a_lucky_round_names_nobody() -> None:
    sound = {(a, a + 1): [exchanged((a, a + 1), 10.0)] * 3 for a in (0, 2, 4)}
    now_and_then = [exchanged((6, 7), speed) for speed in (2.0, 2.0, 9.9)]
    always = [exchanged((8, 9), speed) for speed in (2.0, 2.0, 7.0)]
    made = alone({**sound, (6, 7): now_and_then, (8, 9): always}, list(sound))
    assert made is not None
    assert [made[link].slow for link in ((6, 7), (8, 9), (0, 1))] == [False, True, False]
    assert alone({(6, 7): now_and_then, (0, 1): sound[0, 1]}, [(0, 1)]) is None


def test_a_busy_host_names_nobody() -> None:
    """Links that scatter by a third: one at 0.7 of the others is not out of their spread; with little, it is."""
    random = np.random.default_rng(3)
    for spread, wanted in ((0.35, False), (0.02, True)):
        rounds = {
            (a, a + 1): [exchanged((a, a + 1), 10 * float(np.exp(spread * random.standard_normal()))) for _ in range(3)]
            for a in range(0, 20, 2)
        }
        rounds[90, 91] = [exchanged((90, 91), speed) for speed in (5.0, 5.1, 5.2) if not wanted] or [
            exchanged((90, 91), 7.0)
        ] * 3
        made = alone(rounds, [(0, 1), (2, 3), (4, 5)])
        assert made is not None
        assert made[90, 91].slow == wanted


def test_slow_once_and_not_again_names_nobody() -> None:
    """A burst of other load that lasts through the first rounds alone of one link."""

    class Burst(Sim):
        """Link 4 - 5 is slow in everything but its last three exchanges."""

        def _one(self, link: Link_, plan: Plan, drift: float, crowd: bool) -> Exchanged:
            tries = sum(link in asked for asked in self.asked)
            return super()._one(link, plan, 0.4 if set(link) == {4, 5} and tries <= 4 else 1.0, crowd)

    test, found, _ = run_test(Burst(16))
    assert test.code == Exit.OK, [one.text for one in found]


def test_a_quota_that_lets_most_short_transfers_pass() -> None:
    """Two of three transfers at full speed, the third waits for the next period of the quota."""
    throttled = np.full((2, 9, 1), 10.0)
    throttled[:, 2::3] = 0.2
    slow = Exchanged((6, 7), "network", throttled)
    assert slow.slower == pytest.approx([10.0])
    assert slow.whole == pytest.approx([9 / (6 / 10 + 3 / 0.2)])
    sound = {(a, a + 1): [Exchanged((a, a + 1), "network", np.full((2, 9, 1), 10.0))] * 3 for a in (0, 2, 4)}
    made = alone({**sound, (6, 7): [slow] * 3}, list(sound))
    assert made is not None and made[6, 7].slow
    assert made[6, 7].ways == pytest.approx((0.0577, 0.0577), rel=0.01)


def test_a_result_that_is_partly_there_counts() -> None:
    gbps = np.full((2, 3, 2), np.nan)
    gbps[0, 0, 0] = 5.0
    one = Exchanged((0, 1), "network", gbps)
    assert one.ok
    judged = first([one, *[exchanged((a, a + 1), 10.0) for a in (2, 4, 6)]])
    assert judged.slow == [(0, 1)]
    assert judged.shares[0, 1] == pytest.approx(0.5)


def test_link_records() -> None:
    _, _, records = run_test(Sim(4, spread=0.0))
    links = [record for record in records if isinstance(record, Link)]
    assert len(links) == 4 * 2 * 3 * 3
    one = links[0]
    assert one.busbw_gbps == one.algbw_gbps == pytest.approx(10.0)
    assert one.dur_ns == round(one.bytes / 10.0)
    assert {link.step for link in links} == {0, 1}
    assert one.facts["interfaces"] == ["eth0", "eth0"]
    assert one.facts["hosts"] == [f"host{rank}" for rank in one.ranks]
    assert one.facts["latency_ns"] == 5000
