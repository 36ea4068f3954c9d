# SPDX-License-Identifier: Apache-2.0
"""A slow time that grew in two steps is one episode of the job, wherever its ranks see its begin."""

from __future__ import annotations

from ghtools.detect.consensus import Consensus
from ghtools.stream.records import Change

ITER_NS = 300_000_000


def change(rank: int, index: int, said: int, type_: str = "onset", after: int = 600) -> Change:
    verdict = "recovered" if type_ == "relief" else "fail-slow"
    return Change(
        type=type_, stage="confirmed", level="rank", rank=rank, episode=1, verdict=verdict, before_ns=ITER_NS,
        after_ns=after * 1_000_000, onset_index=index, said_index=said, onset_t_ns=index * ITER_NS,
        said_t_ns=said * ITER_NS,
    )  # fmt: skip


def test_two_places_of_one_begin() -> None:
    """As four real ranks said it: other load began at 80, a quota at 99, and both were taken for the begin."""
    job = Consensus()
    for rank in range(4):
        job.saw(rank, 120 * ITER_NS, ITER_NS)
    said = [
        made
        for one in (
            change(0, 99, 107), change(2, 80, 111), change(1, 80, 113), change(2, 101, 114), change(1, 99, 115),
            change(3, 80, 115), change(3, 99, 118),
            *(change(rank, 149, 153, "relief", 250) for rank in range(4)),
        )
        for made in job.feed(one)
    ]  # fmt: skip
    assert [(c.type, c.episode) for c in said] == [("onset", 1), ("relief", 1)]
    assert said[0].onset_index == 99
    assert job.episodes == 1
