# SPDX-License-Identifier: Apache-2.0
"""gh-synth calls: ranks in step, communicators with their members, planted times, losses and restarts."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from ghtools.source import synth, synth_job
from ghtools.source.synth_templates import FAMILIES
from ghtools.stream.errors import GhError
from ghtools.stream.framing import encode
from ghtools.stream.records import OP_CODE, Calls, Comm, Head, Job, Record

SMALL = {"layers": 2, "micro": 2}


def made(job: synth_job.JobSpec, **given: object) -> list[Record]:
    ranks = synth_job.ranks_of(job.layout) if job.layout else 2
    return list(synth_job.job_calls(synth.Spec(**{"ranks": ranks, **given}), job, Head()))  # type: ignore[arg-type]


def of_rank(records: list[Record], rank: int, incarnation: int = 0) -> list[Calls]:
    return [r for r in records if isinstance(r, Calls) and (r.rank, r.incarnation) == (rank, incarnation)]


def column(batches: list[Calls], name: str) -> np.ndarray:  # type: ignore[type-arg]
    return np.concatenate([getattr(b, name) for b in batches])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_counts_its_calls(family: str) -> None:
    sizes = {k: v for k, v in SMALL.items() if k == "layers" or family in ("megatron", "moe", "pipeline")}
    sizes = {k: v for k, v in sizes.items() if not (family == "pipeline" and k == "layers")}
    layout = {"pp": 2, "dp": 2} if family in ("megatron", "moe", "pipeline") else {"dp": 2}
    records = made(synth_job.JobSpec(family=family, layout=layout, sizes=sizes), iters=7, batch=3)
    head = records[0]
    assert isinstance(head, Head)
    for rank, count in enumerate(head.truth["calls_an_iteration"]):
        seq = column(of_rank(records, rank), "seq")
        assert seq.tolist() == list(range(7 * count))
        assert (np.diff(column(of_rank(records, rank), "t_ns")) >= 0).all()


def test_communicators_have_the_members_of_the_layout() -> None:
    records = made(synth_job.JobSpec(family="megatron", layout={"tp": 2, "dp": 2, "pp": 2}, sizes=SMALL), iters=2)
    comms = [r for r in records if isinstance(r, Comm)]
    members: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    seen: dict[int, set[int]] = defaultdict(set)
    for comm in comms:
        members[comm.comm].add(tuple(comm.ranks))
        seen[comm.comm].add(comm.rank)
        assert comm.ranks[comm.comm_rank] == comm.rank and comm.size == len(comm.ranks)
    for comm_id, groups in members.items():
        [group] = groups  # all members say the same of it
        assert seen[comm_id] == set(group)
    names = {c.name: c.ranks for c in comms if c.rank == 5}
    assert names["tp"] == [4, 5] and names["dp"] == [5, 7] and names["pp"] == [1, 5]
    used = set(column([r for r in records if isinstance(r, Calls)], "comm").tolist())
    assert used <= members.keys()


def test_sends_and_receives_of_a_pipeline_match() -> None:
    records = made(synth_job.JobSpec(family="megatron", layout={"pp": 3}, sizes=SMALL), iters=4)
    moved: dict[tuple[int, int, str], int] = defaultdict(int)
    for batch in (r for r in records if isinstance(r, Calls)):
        for name in ("send", "recv"):
            for peer in batch.peer[batch.op == OP_CODE[name]].tolist():
                pair = (batch.rank, peer) if name == "send" else (peer, batch.rank)
                moved[(*pair, name)] += 1
    for a, b in ((0, 1), (1, 2), (1, 0), (2, 1)):
        assert moved[a, b, "send"] == moved[a, b, "recv"] == 4 * 2


def test_ranks_stay_in_step_and_slow_down_together() -> None:
    job = synth_job.JobSpec(family="ddp", layout={"dp": 3}, sizes={"buckets": 4})
    records = made(job, iters=200, batch=16, iter_ns=10**8, changes=synth.parse(["100:2:1"], [], []))
    starts = []
    for rank in range(3):
        batches = of_rank(records, rank)
        count = records[0].truth["calls_an_iteration"][rank]  # type: ignore[attr-defined]
        starts.append(column(batches, "t_ns")[::count])
    apart = np.max(starts, axis=0) - np.min(starts, axis=0)
    assert apart.max() < 0.5 * 10**8, "no drift over 200 iterations"
    assert np.median(apart[150:]) < 3 * np.median(apart[:50])
    steps = np.diff(starts[0])
    assert np.median(steps[:95]) == pytest.approx(1e8, rel=0.02)
    assert np.median(steps[105:]) == pytest.approx(2e8, rel=0.02)


def test_losses_are_counted() -> None:
    job = synth_job.JobSpec(family="ddp", layout={"dp": 1}, sizes={"buckets": 5}, lost_pct=10.0)
    batches = of_rank(made(job, ranks=1, iters=100, batch=8), 0)
    seq = column(batches, "seq")
    inside = sum(len(b.seq) and int(b.seq[-1]) - int(b.seq[0]) + 1 - len(b.seq) for b in batches)
    assert 0.05 < 1 - len(seq) / (seq[-1] + 1) < 0.15
    assert (np.diff(seq) > 0).all()
    assert batches[0].lost == int(batches[0].seq[0])
    for one, two in pairwise(batches):
        assert two.lost == int(two.seq[0]) - int(one.seq[-1]) - 1
    assert inside > 0


def test_extras_and_restarts() -> None:
    job = synth_job.JobSpec(family="ddp", layout={"dp": 2}, sizes={"buckets": 3}, log_every=5)
    records = made(job, iters=40, ckpt_every=10, restarts=(20,), batch=64)
    assert [r.ranks[0]["incarnation"] for r in records if isinstance(r, Job)] == [0, 1]
    first, second = of_rank(records, 0), of_rank(records, 0, 1)
    assert int(second[0].seq[0]) == 0 and int(second[0].t_ns[0]) > int(first[-1].t_ns[-1]) + synth.RESTART_PAUSE_NS
    assert np.count_nonzero(column(first, "op") == OP_CODE["barrier"]) == 2 * 2
    assert np.count_nonzero(column(second, "bytes") == 8) == 4


def test_the_seed_decides() -> None:
    def wire(seed: int) -> bytes:
        job = synth_job.JobSpec(family="fsdp", layout={"dp": 2})
        return b"".join(encode(r) for r in made(job, iters=5, seed=seed))

    assert wire(4) == wire(4) != wire(5)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (synth_job.JobSpec(family="magic"), "no such family"),
        (synth_job.JobSpec(layout={"xp": 2}), "no dimension"),
        (synth_job.JobSpec(layout={"dp": 0}), "at least 1"),
        (synth_job.JobSpec(sizes={"micro": 4}), "has none"),
    ],
)
def test_impossible_jobs_are_refused(job: synth_job.JobSpec, why: str) -> None:
    with pytest.raises(GhError, match=why):
        made(job, ranks=2, iters=2)


@pytest.mark.parametrize("text", ["tp", "tp=", "tp=a", "tp=-1", "=,", "tp=1e3", "tp=9999999999999"])
def test_unreadable_sizes_are_named(text: str) -> None:
    with pytest.raises(GhError, match="cannot read"):
        synth_job.parse_sizes(text)
