# SPDX-License-Identifier: Apache-2.0
"""One rank over time: restarts, losses, changes of pattern, extras, threads, a marker, bounded memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ghtools.detect.period import PeriodFinder
from ghtools.detect.period_track import BUFFER_CALLS
from ghtools.source.synth_calls import CallStream, Extras, Noise, call_stream, take
from ghtools.stream.records import FLAG_EXEC, PHASES, Calls, Iters
from tests.detect.period_score import joined, run

DDP = {"buckets": 4, "equal": False, "loss": True, "loose": False, "layers": 12, "bucket_bytes": 1_048_576}
FSDP = {"layers": 6, "root": True, "prefetch": False, "norm": True, "loose": False, "unit_bytes": 65_536}


def phases(it: Iters) -> list[str]:
    return [PHASES[p] for p in it.phase]


def after(first: Calls, second: Calls, gap_ns: int = 10**8) -> Calls:
    """`second` moved behind `first` in time and seq."""
    second.t_ns = second.t_ns - second.t_ns[0] + first.t_ns[-1] + gap_ns
    second.seq = second.seq - second.seq[0] + first.seq[-1] + 1
    return second


def made(sizes: dict[str, object], n: int, seed: int = 1, **more: object) -> CallStream:
    family = "fsdp" if "root" in sizes else "ddp"
    return call_stream(family, n, np.random.default_rng(seed), sizes=sizes, **more)  # type: ignore[arg-type]


def test_first_iterations_of_a_job_are_warm_up_and_of_an_attached_one_are_not() -> None:
    whole = joined(run(PeriodFinder(), made(DDP, 30).batches(16))[0])
    assert phases(whole)[:4] == ["warmup", "warmup", "warmup", "steady"]
    assert list(whole.index) == list(range(29))
    late = joined(run(PeriodFinder(), made(DDP, 30, start=7).batches(16))[0])
    assert set(phases(late)) == {"steady"}


def test_extras_are_outliers_and_shift_nothing() -> None:
    stream = made(FSDP, 60, extras=Extras(log_every=10, eval_every=15, eval_batches=3, ckpt_every=25))
    it = joined(run(PeriodFinder(), stream.batches(50))[0])
    ordinary = it.phase == PHASES.index("steady")
    assert set(it.calls[ordinary]) == {stream.n_calls}
    assert "outlier" in phases(it)
    assert (np.diff(it.index) == 1).all()
    assert abs(len(it.seq) - 60) <= 2


def test_calls_lost_in_the_ring_mark_their_iteration() -> None:
    stream = made(DDP, 60)
    keep = np.ones(len(stream.calls.seq), bool)
    keep[151:153] = False  # inside iteration 30
    keep[200:212] = False  # two whole iterations and more
    stream.calls = take(stream.calls, keep)
    it = joined(run(PeriodFinder(), stream.batches(10))[0])
    ends = np.append(it.seq[1:], it.seq[-1] + stream.n_calls)
    torn = [any(a < lost < b for lost in (151, 200)) for a, b in zip(it.seq, ends, strict=True)]
    assert [p == "gap" for p in phases(it)] == torn
    # The number goes on by what was lost: later iterations have the numbers of the loop.
    assert (it.index == np.searchsorted(stream.starts, it.seq, "right") - 1).all()
    assert it.index[-1] - len(it.index) >= 1


def test_a_loss_between_batches_is_told_by_the_record() -> None:
    stream = made(DDP, 40)
    parts = stream.batches(10)
    parts[15].lost = 5  # seq does not show it, as after a wrap
    it = joined(run(PeriodFinder(), parts)[0])
    assert phases(it).count("gap") == 1


def test_a_restart_begins_anew() -> None:
    first = made(DDP, 40)
    second = made(DDP, 40, seed=2, incarnation=1, salt=9)
    second.calls.t_ns += 40 * 10**9
    it = joined(run(PeriodFinder(), [*first.batches(16), *second.batches(16)])[0])
    names = phases(it)
    at = names.index("restart")
    assert at == 39
    assert names[at : at + 4] == ["restart", "warmup", "warmup", "steady"]
    assert list(it.index) == list(range(len(it.index)))
    assert it.dur_ns.max() < 10**9  # nothing spans the pause


@pytest.mark.parametrize("change", ["sizes", "family", "layers"])
def test_a_change_of_pattern_re_arms_at_once(change: str) -> None:
    one = made(FSDP, 40)
    two = {
        "sizes": lambda: made(FSDP | {"unit_bytes": 131_072}, 40, seed=3),
        "family": lambda: made(DDP, 60, seed=3),
        "layers": lambda: made(FSDP | {"layers": 9}, 40, seed=3),
    }[change]()
    joint = [*one.batches(30), *[after(one.calls, two.calls)]]
    finder = PeriodFinder()
    iters, periods = run(finder, joint)
    it = joined(iters)
    names = phases(it)
    assert names.count("rearm") == 1
    at = names.index("rearm")
    first_new = int(one.calls.seq[-1]) + 1
    assert it.calls[at] == two.n_calls
    assert -3 <= it.seq[at] - first_new <= 2 * two.n_calls  # the anchor may be among the last calls of an iteration
    assert set(names[at + 1 :]) == {"steady"}
    assert [p.calls for p in periods if p.rank == 0 and p.state == "found"][-1] == two.n_calls


def test_ddp_rebuilds_its_buckets_after_the_first_iteration() -> None:
    one = made({**DDP, "buckets": 1}, 1)
    two = made(DDP, 30, seed=4)
    it = joined(run(PeriodFinder(), [one.calls, after(one.calls, two.calls)])[0])
    assert len(it.seq) >= 29
    assert it.calls[-1] == two.n_calls
    assert phases(it)[0] == "warmup"
    assert set(phases(it)[4:]) == {"steady"}


def test_a_long_evaluation_does_not_become_the_pattern() -> None:
    stream = made(FSDP, 60, extras=Extras(eval_every=30, eval_batches=60))
    iters, periods = run(PeriodFinder(), stream.batches(20))
    it = joined(iters)
    steady = it.phase == PHASES.index("steady")
    assert set(it.calls[steady]) == {stream.n_calls}
    assert {p.calls for p in periods if p.state == "found"} == {stream.n_calls}


def test_threads_that_interleave_differently_each_time() -> None:
    """Two threads call on two communicators; only their order is the same in each."""
    rng = np.random.default_rng(8)
    base = made({**DDP, "buckets": 8}, 60)
    calls = base.calls
    calls.comm = np.where(np.arange(len(calls.seq)) % base.n_calls % 2 == 1, np.uint64(5), calls.comm)
    order = []
    for lo in range(0, len(calls.seq), base.n_calls):
        inner = np.arange(lo + 1, min(lo + base.n_calls, len(calls.seq)))
        odd, even = inner[calls.comm[inner] == 5], inner[calls.comm[inner] != 5]
        merged = np.concatenate([odd, even])
        order += [
            lo,
            *merged[np.argsort(np.concatenate([rng.random(len(odd)).cumsum(), rng.random(len(even)).cumsum()]))],
        ]
    mixed = take(calls, np.array(order))
    mixed.t_ns, mixed.seq = calls.t_ns, calls.seq
    it = joined(run(PeriodFinder(), [mixed])[0])
    assert len(it.seq) == 59
    assert set(phases(it)[3:]) == {"steady"}


def test_sizes_that_change_with_every_call_do_not_matter() -> None:
    """Expert-parallel exchanges whose size follows the tokens."""
    stream = call_stream(
        "moe", 60, np.random.default_rng(3), sizes={"tp": 1, "pp": 1, "dp": 2, "layers": 2, "micro": 2}
    )
    moved = stream.calls.op == 6
    stream.calls.bytes = np.where(moved, np.random.default_rng(4).integers(1000, 10**7, len(moved)), stream.calls.bytes)
    it = joined(run(PeriodFinder(), stream.batches(100))[0])
    assert set(it.calls[3:]) == {stream.n_calls}
    assert set(phases(it)[3:]) == {"steady"}


def test_execution_records_are_no_calls() -> None:
    stream = made(DDP, 30)
    n = len(stream.calls.seq)
    both = take(stream.calls, np.repeat(np.arange(n), 2))
    both.flags[1::2] = FLAG_EXEC
    plain = joined(run(PeriodFinder(), [stream.calls])[0])
    mixed = joined(run(PeriodFinder(), [both])[0])
    assert (plain.seq == mixed.seq).all()
    assert "gap" not in phases(mixed)


def test_a_marker_decides() -> None:
    stream = call_stream("fsdp", 30, np.random.default_rng(5), sizes=FSDP, extras=Extras(eval_every=7))
    iters, periods = run(PeriodFinder(marker="op=all_reduce,bytes=4"), stream.batches(40))
    it = joined(iters)
    marks = stream.calls.t_ns[(stream.calls.op == 1) & (stream.calls.bytes == 4)]
    assert list(it.t_ns) == list(marks[:-1])
    assert list(it.dur_ns) == list(np.diff(marks))
    assert [(p.method, p.calls) for p in periods if p.rank == 0] == [("marker", stream.n_calls)]
    none, said = run(PeriodFinder(marker="op=barrier"), stream.batches(40))
    assert not none
    assert [p.state for p in said] == ["unknown"]


def test_a_marker_by_communicator_name() -> None:
    stream = made(DDP, 20)
    finder = PeriodFinder(marker="comm=world,bytes=4")
    for comm in stream.comms:
        finder.comm(comm)
    assert len(joined(run(finder, stream.batches(9))[0]).seq) == 19


def test_the_papers_rule_names_a_part_where_layers_repeat() -> None:
    stream = made(FSDP | {"layers": 48}, 20)
    _, periods = run(PeriodFinder("acf"), [stream.calls])
    assert [(p.method, p.calls) for p in periods] == [("acf", 2)] * 2


def test_memory_is_bounded_for_ever() -> None:
    rng = np.random.default_rng(1)
    finder = PeriodFinder()
    known = PeriodFinder()
    stream = made(DDP, 200)
    size = 20_000
    for i in range(40):
        batch = take(stream.calls, np.zeros(size, int))
        batch.seq = np.arange(i * size, (i + 1) * size)
        batch.t_ns = batch.t_ns + np.cumsum(rng.integers(1, 10**6, size)) + i * 10**11
        batch.bytes = rng.integers(1, 4000, size)  # no pattern at all
        list(finder.feed(batch))
        tracker = finder._trackers[0]
        assert tracker._n <= BUFFER_CALLS + size
        again = take(stream.calls, slice(0, None))
        again.seq = again.seq + i * len(again.seq)
        again.t_ns = again.t_ns + i * 10**11
        list(known.feed(again))
        held = known._trackers[0]
        assert held._n < 3 * stream.n_calls
        assert sum(len(part) for part in held._parts) == held._n
        assert held._audit.n <= 2 * BUFFER_CALLS


def test_gradient_accumulation_with_equal_micro_batches_is_told_by_the_optimizers_pause() -> None:
    micro = made(DDP | {"loss": False}, 240, noise=Noise(gap_cv=0.03))
    pause = np.zeros(len(micro.calls.seq), np.int64)
    pause[micro.starts[4::4]] = 60_000_000  # the optimizer's step, of 250 ms a micro-batch
    micro.calls.t_ns = micro.calls.t_ns + np.cumsum(pause)
    iters, periods = run(PeriodFinder(), micro.batches(64))
    assert periods[-1].calls == 4 * micro.n_calls or periods[-2].calls == 4 * micro.n_calls
    it = joined(iters)
    last = it.dur_ns[-20:]
    assert abs(np.median(last) / 1.06e9 - 1) < 0.02


def test_durations_are_between_entry_times_of_successive_anchors() -> None:
    stream = made(DDP, 30, noise=Noise(gap_cv=0.3))
    it = joined(run(PeriodFinder(), stream.batches(11))[0])
    for (t, dur, seq), (later, _, _) in pairwise(zip(it.t_ns, it.dur_ns, it.seq, strict=True)):
        assert t == stream.calls.t_ns[seq]
        assert t + dur == later


def test_a_job_without_a_pattern_is_said_to_be_unknown_while_it_runs() -> None:
    rng = np.random.default_rng(7)
    batch = take(made(DDP, 1).calls, np.zeros(300, int))
    batch.seq = np.arange(300)
    batch.t_ns = batch.t_ns + np.cumsum(rng.integers(10**9, 10**10, 300))
    batch.bytes = rng.integers(1, 4000, 300)
    said = [rec.state for rec in PeriodFinder().feed(batch)]  # type: ignore[union-attr]
    assert said == ["unknown"]


def test_a_trace_of_executions_alone_has_iterations_too() -> None:
    stream = made(DDP, 60)
    stream.calls.flags = np.full(len(stream.calls.seq), FLAG_EXEC, "<u2")
    it = joined(run(PeriodFinder(), stream.batches(5))[0])
    assert len(it.seq) == 59
    assert set(it.calls) == {stream.n_calls}


def test_calls_after_executions_are_what_counts() -> None:
    first, second = made(DDP, 80), made(FSDP, 40)
    first.calls.flags = np.full(len(first.calls.seq), FLAG_EXEC, "<u2")
    after(first.calls, second.calls)
    periods = run(PeriodFinder(), [*first.batches(50), *second.batches(50)])[1]
    assert [p.calls for p in periods if p.rank == 0] == [first.n_calls, second.n_calls]


@pytest.mark.parametrize("pp", [1, 4])
def test_micro_batches_of_a_first_long_step_are_not_taken_for_iterations_for_long(pp: int) -> None:
    sizes = {
        "tp": 4,
        "pp": pp,
        "stage": 0,
        "dp": 4,
        "layers": 4,
        "micro": 64,
        "sp": True,
        "zero": False,
        "grad_buckets": 3,
    }
    stream = call_stream("megatron", 14, np.random.default_rng(3), iter_ns=20e9, sizes=sizes)
    iters, periods = run(PeriodFinder(), stream.batches(500))
    assert [p.calls for p in periods if p.rank == 0][-1] == stream.n_calls
    late = joined(iters)
    late_calls = late.calls[late.t_ns > stream.starts_ns[7]]
    assert set(late_calls) == {stream.n_calls}
