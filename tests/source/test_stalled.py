# SPDX-License-Identifier: Apache-2.0
"""Who keeps a stalled job waiting: the judgement alone, on hand-made cases."""

from __future__ import annotations

import random

import pytest

from ghtools.source.stalled import Dump, Group, Pending, judge

WORLD, PAIR = 1, 2
GROUPS = {WORLD: Group("world", range(4)), PAIR: Group("pair", [2, 3])}


def waiting(
    rank: int, seq: int, *, group: int = WORLD, op: str = "all_reduce", done: int | None = None, peer: int = -1
) -> Dump:
    """A rank that has called `seq` and not finished it."""
    pending = [Pending(group, seq, op, peer, t_ns=seq)]
    called = {} if peer >= 0 else {group: seq}
    return Dump(rank, pending, called, {group: seq - 1 if done is None else done})


def idle(rank: int, seq: int, group: int = WORLD) -> Dump:
    """A rank that has finished `seq` and called nothing since."""
    return Dump(rank, [], {group: seq}, {group: seq})


def dumps(*all_: Dump) -> dict[int, Dump]:
    return {dump.rank: dump for dump in all_}


def test_nothing_pending_is_no_stall() -> None:
    assert judge(dumps(*(idle(rank, 5) for rank in range(4))), GROUPS) == []
    assert judge({}, GROUPS) == []


def test_the_rank_that_has_not_called() -> None:
    [stall] = judge(dumps(waiting(0, 6), waiting(1, 6), idle(2, 5), waiting(3, 6)), GROUPS)
    assert (stall.ranks, stall.verdict, stall.group) == ([2], "attributed", WORLD)
    assert stall.evidence["last_called"] == {"0": 6, "1": 6, "2": 5, "3": 6}
    assert stall.evidence["waiting"] == [0, 1, 3] and "host code" in stall.text


def test_a_victim_in_between_is_not_named() -> None:
    """0 and 1 wait for 2 and 3; 2 is late only because it waits for 3 in the pair."""
    two = waiting(2, 9, group=PAIR)
    two.called[WORLD] = 5
    three = idle(3, 8, group=PAIR)
    three.called[WORLD] = 5
    [stall] = judge(dumps(waiting(0, 6), waiting(1, 6), two, three), GROUPS)
    assert stall.ranks == [3] and stall.verdict == "attributed"
    assert stall.evidence["waiting"] == [0, 1, 2]


def test_two_culprits_are_both_named() -> None:
    found = judge(dumps(waiting(0, 6), idle(1, 5), idle(2, 4), waiting(3, 6)), GROUPS)
    assert sorted(stall.ranks for stall in found) == [[1], [2]]


def test_a_rank_that_does_not_see_what_its_peers_have_finished() -> None:
    one = Dump(1, [Pending(WORLD, n, "all_reduce", t_ns=n) for n in (5, 6)], {WORLD: 6}, {WORLD: 4})
    found = judge(dumps(waiting(0, 7), one, waiting(2, 7), waiting(3, 7)), GROUPS)
    assert [stall.ranks for stall in found] == [[1]] and "has stopped" in found[0].text
    assert found[0].evidence["last_done"] == {"0": 6, "1": 4, "2": 6, "3": 6}
    # A broadcast may end on its root long before the others have it: no sign of anything.
    root = Dump(1, [Pending(WORLD, 5, "broadcast", t_ns=5)], {WORLD: 5}, {WORLD: 4})
    [stall] = judge(dumps(idle(0, 5), root, idle(2, 5), idle(3, 5)), GROUPS)
    assert stall.verdict == "inconclusive"


def test_all_called_names_nobody() -> None:
    [stall] = judge(dumps(*(waiting(rank, 6) for rank in range(4))), GROUPS)
    assert (stall.what, stall.verdict, stall.ranks) == ("group", "inconclusive", [0, 1, 2, 3])
    assert stall.evidence["sign"] == "all called" and "missing" not in stall.evidence


def test_a_missing_dump_is_missing() -> None:
    found = judge(dumps(waiting(0, 6), waiting(1, 6), waiting(3, 6)), GROUPS)
    assert [(stall.ranks, stall.verdict) for stall in found] == [([2], "inconclusive")]
    assert found[0].evidence["missing"] == [2] and "no dump" in found[0].text
    [stall] = judge(dumps(waiting(0, 6), waiting(1, 6)), GROUPS)
    assert stall.ranks == [2, 3] and stall.verdict == "inconclusive" and stall.evidence["sign"] == "missing"
    # A known culprit explains the stall; the missing one is only mentioned.
    [stall] = judge(dumps(waiting(0, 6), idle(1, 5), waiting(3, 6)), GROUPS)
    assert stall.ranks == [1] and stall.verdict == "attributed" and stall.evidence["missing"] == [2]


def test_a_pipeline_is_followed_to_its_end() -> None:
    chain = [waiting(rank, 3, op="recv", peer=rank + 1) for rank in range(3)]
    [stall] = judge(dumps(*chain, Dump(3)), GROUPS)
    assert stall.ranks == [3] and stall.evidence["waiting"] == [2]


def test_ranks_that_wait_for_each_other() -> None:
    [stall] = judge(
        dumps(waiting(0, 3, op="send", peer=1), waiting(1, 3, op="send", peer=0)), {WORLD: Group("w", [0, 1])}
    )
    assert (stall.what, stall.ranks, stall.verdict) == ("group", [0, 1], "inconclusive")


def test_different_calls_under_one_number() -> None:
    found = judge(dumps(waiting(0, 6), waiting(1, 6), waiting(2, 6, op="all_gather"), waiting(3, 6)), GROUPS)
    odd = [stall for stall in found if stall.evidence["sign"] == "different calls"]
    assert [stall.ranks for stall in odd] == [[2]] and odd[0].evidence["ops"] == {
        "all_gather": [2],
        "all_reduce": [0, 1, 3],
    }


@pytest.mark.parametrize("seed", range(60))
def test_any_input_ends_with_a_judgement(seed: int) -> None:
    """Random states: never an exception, never a rank named that waits for a known other rank."""
    rng = random.Random(seed)
    groups = {n: Group(f"g{n}", rng.sample(range(8), rng.randint(1, 8))) for n in range(4)}
    made = {}
    for rank in rng.sample(range(8), rng.randint(1, 8)):
        pending = [
            Pending(
                rng.randrange(5),
                rng.randrange(4),
                rng.choice(["all_reduce", "broadcast"]),
                rng.choice([-1, -1, rng.randrange(9)]),
                n,
            )
            for n in range(rng.randrange(4))
        ]
        made[rank] = Dump(
            rank, pending, {n: rng.randrange(4) for n in range(3)}, {n: rng.randrange(4) for n in range(2)}
        )
    for stall in judge(made, groups):
        assert stall.ranks and stall.text and stall.verdict in ("attributed", "inconclusive")
        if stall.evidence["sign"] == "not called":
            assert not made[stall.ranks[0]].pending
    assert bool(judge(made, groups)) == any(dump.pending for dump in made.values())
