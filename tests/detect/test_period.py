# SPDX-License-Identifier: Apache-2.0
"""The period finder on whole streams: families, batches, edges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ghtools.detect.period import PeriodFinder, iterations
from ghtools.source.synth_calls import CallStream, Extras, Noise, call_stream, take
from ghtools.source.synth_templates import DP, PP, WORLD, Spec, Template
from ghtools.stream.errors import GhError
from ghtools.stream.records import FLAG_PAUSED, PHASES, Calls, Iters, Job
from tests.detect.period_score import joined, run, score

FAMILIES = ("ddp", "loop", "fsdp", "megatron", "moe", "pipeline")


def stream(family: str, seed: int, n: int = 80, **given: object) -> CallStream:
    """A stream with extras, a random start and swapped calls."""
    rng = np.random.default_rng([20_000, seed])
    sizes = dict(given)
    return call_stream(
        family, n, rng, extras=Extras.random(rng), noise=Noise(swap=0.05), start=int(rng.integers(0, 20)), sizes=sizes
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_families_with_extras_and_a_random_start(family: str) -> None:
    wrong = []
    for seed in range(20):
        made = stream(family, seed)
        size = int(np.random.default_rng(seed).integers(3, 700))
        if (got := score(made, run(PeriodFinder(), made.batches(size))[0])).state != "right":
            wrong.append((seed, got, made.template.sizes))
    assert not wrong


@pytest.mark.parametrize(
    ("family", "given", "least"),
    [
        ("ddp", {"buckets": 1}, 19),
        ("ddp", {"equal": True}, 19),
        ("fsdp", {"root": False, "loose": False}, 19),
        ("moe", {"dp": 1}, 15),
        ("megatron", {"dp": 1}, 18),
    ],
)
def test_what_calls_alone_leave_open_is_told_by_time_or_unknown(family: str, given: dict[str, int], least: int) -> None:
    states = []
    for seed in range(20):
        made = stream(family, seed, 100, **given)
        states.append(score(made, run(PeriodFinder(), made.batches(256))[0]).state)
    assert states.count("right") >= least
    assert states.count("wrong") <= 20 - least


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_do_not_matter_once_the_pattern_is_known(family: str) -> None:
    made = stream(family, 3, 60)
    half = len(made.calls.seq) // 2
    results = []
    for size in (7, 64, 10**6):
        rest = [take(made.calls, slice(lo, lo + size)) for lo in range(half, len(made.calls.seq), size)]
        results.append(joined(run(PeriodFinder(), [take(made.calls, slice(half)), *rest])[0]))
    assert len(results[0].seq) > 40
    for other in results[1:]:
        for name in ("index", "t_ns", "dur_ns", "phase", "calls", "seq"):
            assert (getattr(results[0], name) == getattr(other, name)).all()


def test_an_iteration_is_delivered_with_the_call_that_begins_the_next() -> None:
    made = call_stream("ddp", 40, np.random.default_rng(1), sizes={"buckets": 4, "equal": False, "loss": False})
    finder = PeriodFinder()
    live = 0
    for batch in made.batches(1):
        rows = [rec for rec in finder.feed(batch) if isinstance(rec, Iters)]
        if len(rows) == 1 and len(rows[0].seq) == 1:
            live += 1
            assert rows[0].seq[0] + rows[0].calls[0] == batch.seq[0]
    assert live >= 25


def test_found_after_about_eight_repeats() -> None:
    made = call_stream("ddp", 40, np.random.default_rng(2), iter_ns=30e9, sizes={"buckets": 3, "equal": False})
    finder, at = PeriodFinder(), None
    for batch in made.batches(1):
        if at is None and any(rec.kind == "period" for rec in finder.feed(batch)):
            at = int(np.searchsorted(made.starts, batch.seq[0], "right"))
    assert at is not None
    assert at <= 10


def calls(t: list[int], op: int = 1, size: int = 4096) -> Calls:
    n = len(t)
    return Calls(
        t_ns=np.array(t, "<i8"), op=np.full(n, op, "u1"), dtype=np.full(n, 9, "u1"), flags=np.zeros(n, "<u2"),
        peer=np.full(n, -1, "<i4"), comm=np.full(n, 77, "<u8"), bytes=np.full(n, size, "<i8"),
        seq=np.arange(n, dtype="<i8"), dur_ns=np.full(n, -1, "<i8"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "times",
    [[], [5], [5, 5], [7] * 200, list(range(200, 0, -1)), [0, *range(0, -200, -1)], [2**62, *range(100)]],
    ids=["none", "one", "two", "equal", "backwards", "negative", "huge first"],
)
def test_edges_say_nothing_wrong(times: list[int]) -> None:
    iters, periods = run(PeriodFinder(), [calls(times)])
    for rec in iters:
        assert (rec.dur_ns >= 0).all()
        assert (rec.phase[rec.dur_ns == 0] == 5).all()
    assert all(p.state in ("found", "unknown", "rearm") for p in periods)


def test_one_equal_call_an_iteration() -> None:
    rng = np.random.default_rng(5)
    t = np.cumsum(rng.normal(2e8, 3e6, 120)).astype(int).tolist()
    made, said = iterations(calls(t))
    assert [p.calls for p in said] == [1]
    assert made is not None
    assert len(made.seq) == 119
    assert iterations(calls(t[:1]))[0] is None


def test_random_calls_are_unknown() -> None:
    rng = np.random.default_rng(6)
    batch = calls(np.cumsum(rng.exponential(1e8, 3000)).astype(int).tolist())
    batch.bytes = rng.integers(1, 40, 3000) * 1024
    iters, periods = run(PeriodFinder(), [batch])
    assert not iters
    assert [p.state for p in periods] == ["unknown"]


def ranks(n: int) -> Job:
    return Job(job="j", ranks=[{"rank": r, "state": "running"} for r in range(n)])


def each(finder: PeriodFinder, streams: list[CallStream], size: int) -> Iterator[object]:
    cut = [s.batches(size) for s in streams]
    for i in range(max(map(len, cut))):
        for part in cut:
            if i < len(part):
                yield from finder.feed(part[i])
    yield from finder.flush()


def test_all_ranks_agree_once() -> None:
    streams = [call_stream("ddp", 40, np.random.default_rng(9), rank=r) for r in range(4)]
    finder = PeriodFinder()
    finder.job(ranks(4))
    agreed = [m for m in each(finder, streams, 32) if m.kind == "period" and m.rank == -1]  # type: ignore[attr-defined]
    assert [(p.state, p.calls) for p in agreed] == [("found", streams[0].n_calls)]  # type: ignore[attr-defined]


def test_a_rank_that_sees_only_pairs_is_told_by_another() -> None:
    """The last stage of a one-forward-one-backward pipeline only receives and sends in turn."""
    sizes = {"tp": 1, "dp": 1, "norm": False, "pp": 4, "micro": 8, "layers": 2, "tied": False}
    pairs = [Spec("recv", 8192, PP, 2, gap=0.5), Spec("send", 8192, PP, 2, gap=0.5)] * 8
    streams = [
        call_stream("megatron", 60, np.random.default_rng(11), rank=1, sizes=sizes | {"stage": 1}),
        call_stream(Template("pairs", pairs), 60, np.random.default_rng(12), rank=3),
    ]
    for s in streams[1:]:  # stages of one pipeline keep step
        s.calls.t_ns = np.interp(s.calls.t_ns, s.starts_ns, streams[0].starts_ns).astype("<i8")
    alone = [p.state for p in run(PeriodFinder(), streams[1].batches(64))[1]]
    assert "found" not in alone
    finder = PeriodFinder()
    made = list(each(finder, streams, 64))
    told = [m for m in made if m.kind == "period" and m.rank == 3 and m.state == "found"]  # type: ignore[attr-defined]
    assert [(p.method, p.calls) for p in told] == [("ranks", streams[1].n_calls)]  # type: ignore[attr-defined]


def test_unknown_methods_are_refused() -> None:
    for method, marker in (("fourier", ""), ("marker", ""), ("anchors", "op=warp"), ("anchors", "size=4")):
        with pytest.raises(GhError):
            PeriodFinder(method, marker)


def test_a_rank_that_took_a_micro_batch_for_an_iteration_follows_the_others() -> None:
    """Four equal micro-batches a step: only on two of three ranks does a reduction at its end show."""
    body = [Spec("all_gather", 4096 + i, DP, gap=0.5) for i in range(3)]
    quiet = Template("quiet", body * 4)
    ended = Template("ended", [*body * 4, Spec("all_reduce", 1 << 20, WORLD, gap=0.1)])
    streams = [call_stream(t, 80, np.random.default_rng(5 + r), rank=r) for r, t in enumerate((ended, quiet, ended))]
    for s in streams[1:]:
        s.calls.t_ns = np.interp(s.calls.t_ns, s.starts_ns, streams[0].starts_ns).astype("<i8")
    finder = PeriodFinder()
    finder.job(ranks(3))
    made = list(each(finder, streams, 30))
    found = [m for m in made if m.kind == "period" and m.state == "found"]  # type: ignore[attr-defined]
    assert [p.calls for p in found if p.rank == 1][-1] == 12  # type: ignore[attr-defined]
    assert found[-1].rank == -1  # type: ignore[attr-defined]


def test_the_job_re_arms_with_its_ranks() -> None:
    streams = [call_stream("ddp", 40, np.random.default_rng(9), rank=r) for r in range(2)]
    others = [call_stream("fsdp", 40, np.random.default_rng(8), rank=r) for r in range(2)]
    for one, two in zip(streams, others, strict=True):
        two.calls.t_ns += one.calls.t_ns[-1] - two.calls.t_ns[0] + 10**8
        two.calls.seq += one.calls.seq[-1] + 1
    finder = PeriodFinder()
    made = [*[m for s in streams for b in s.batches(16) for m in finder.feed(b)], *each(finder, others, 64)]
    job = [m.state for m in made if m.kind == "period" and m.rank == -1]  # type: ignore[attr-defined]
    assert job == ["found", "rearm", "found"]


def test_a_rank_that_is_no_number_is_no_rank() -> None:
    finder = PeriodFinder()
    assert finder.job(Job(ranks=[{"rank": "x"}, {"rank": None}, {}, {"rank": 1}])) == []


def test_an_iteration_that_was_held_is_a_gap_and_keeps_the_count() -> None:
    at = [100_000 * i + 1_000 * j for i in range(60) for j in range(4)]
    batch = calls(at)
    batch.bytes[:] = np.tile([4096, 8192, 16384, 512], 60)
    held = 40 * 4
    batch.t_ns[held:] += 7_000_000  # held before the first call of iteration 40
    batch.flags[held] |= FLAG_PAUSED
    (rows,) = [joined(run(PeriodFinder(), [batch])[0])]
    long = np.flatnonzero(rows.dur_ns > 1_000_000)
    assert [PHASES[p] for p in rows.phase[long]] == ["gap"]
    assert np.all(np.diff(rows.index) == 1)
