# SPDX-License-Identifier: Apache-2.0
"""How many iterations a live stream has had since a moment."""

from __future__ import annotations

import numpy as np

from ghtools.detect.count_iters import IterationCount
from ghtools.source.synth_calls import CallStream, call_stream
from ghtools.stream.records import Job


def ranks(iters: int) -> list[CallStream]:
    """Two ranks that begin alike; the second does a quarter less."""
    sizes = {"buckets": 3}
    return [call_stream("ddp", n, np.random.default_rng(1), sizes=dict(sizes)) for n in (iters, iters * 3 // 4)]


def fed(count: IterationCount, iters: int) -> list[int]:
    """Counts after each batch, both ranks fed as they go."""
    said = []
    first, second = (list(stream.batches(16)) for stream in ranks(iters))
    for n, batch in enumerate(first):
        count.feed(batch)
        if n < len(second):
            second[n].rank = 1
            count.feed(second[n])
        said.append(count.done)
    return said


def test_the_rank_that_has_done_fewest_counts() -> None:
    said = fed(IterationCount(0), 80)
    assert said[0] == 0, "it is not known yet what an iteration is"
    assert said == sorted(said)
    assert 55 <= said[-1] <= 60


def test_iterations_from_before_do_not_count() -> None:
    calls = next(iter(ranks(80)[0].batches(1 << 20)))
    middle = int(calls.t_ns[len(calls.t_ns) // 2])
    count = IterationCount(middle)
    count.feed(calls)
    assert 36 <= count.done <= 41


def test_a_rank_that_has_ended_holds_nothing_up() -> None:
    count = IterationCount(0)
    fed(count, 80)
    count.feed(Job(ranks=[{"rank": 0, "state": "running"}, {"rank": 1, "state": "died"}]))
    assert 75 <= count.done <= 80


def test_nothing_was_seen() -> None:
    assert IterationCount(0).done == 0
