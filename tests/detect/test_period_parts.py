# SPDX-License-Identifier: Apache-2.0
"""The parts of the period finder against slow, obvious versions and on hand-made input."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.detect import period_timing as timing
from ghtools.detect.period import PeriodFinder
from ghtools.detect.period_acf import match_fraction, smallest_lag
from ghtools.detect.period_levels import cuts, find_levels
from ghtools.detect.period_marker import parse
from ghtools.detect.period_ranks import by_ranks
from ghtools.detect.period_say import explain, sentence
from ghtools.detect.period_symbols import Columns, columns_of, symbols, symbols_plain, varied_families
from ghtools.source.synth_calls import Extras, call_stream, take
from ghtools.stream.errors import GhError
from ghtools.stream.records import OP_CODE, Calls, Period
from tests import naive_period as naive
from tests.detect.period_score import joined, run

NONE = np.empty(0, np.uint64)


def calls(codes: list[int], times: list[int] | None = None) -> Calls:
    n = len(codes)
    return Calls(
        t_ns=np.array(times if times is not None else range(n), "<i8"), op=np.ones(n, "u1"), dtype=np.zeros(n, "u1"),
        flags=np.zeros(n, "<u2"), peer=np.full(n, -1, "<i4"), comm=np.zeros(n, "<u8"),
        bytes=np.array(codes, "<i8") * 1024, seq=np.arange(n, dtype="<i8"), dur_ns=np.full(n, -1, "<i8"),
    )  # fmt: skip


def columns(codes: list[int]) -> Columns:
    return columns_of(calls(codes), (-1, 0), NONE)[0]


@given(st.data())
def test_the_native_hash_is_that_of_numpy(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    big = np.iinfo(np.int64).max
    args = (
        rng.integers(0, 256, n, np.uint8), rng.integers(0, 256, n, np.uint8), rng.integers(-1, 2**31 - 1, n, np.int32),
        rng.integers(0, 2**64 - 1, n, np.uint64), rng.integers(-big, big, n, np.int64),
    )  # fmt: skip
    for ours, plain in zip(symbols(*args), symbols_plain(*args), strict=True):
        assert (ours == plain).all()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(1, 3))
def test_levels_are_those_of_counters(codes: list[int], least: int) -> None:
    c = columns(codes)
    truth: dict[frozenset[tuple[object, int]], int] = {}
    for order in (1, 2, 3):
        for bags in naive.levels(codes, order).values():
            for bag, n in bags:
                if n >= least and n * bag.total() >= 0.4 * len(codes):
                    name = frozenset(bag.items())
                    truth[name] = max(truth.get(name, 0), n)
    found = {}
    for level in find_levels(c, least):
        piece = codes[level.starts[0] : level.starts[0] + level.calls]
        name = frozenset(Counter(piece).items())
        found[name] = level.count
        assert level.calls == len(piece)
        assert abs(level.share - level.count * level.calls / len(codes)) < 1e-9
        at = cuts(c, level)
        assert set(level.starts) <= set(at[:-1])
        for start in level.starts:
            assert frozenset(Counter(codes[start : start + level.calls]).items()) == name
    assert set(found) <= set(truth)
    for name, n in found.items():
        assert n <= truth[name]
        assert n >= 0.5 * truth[name]  # a purer token may be preferred to a more frequent one
    # What is left out alternates with something that is no such piece and more.
    for name in set(truth) - set(found):
        assert sum(dict(name).values()) < len(codes)


@given(st.lists(st.integers(0, 2), min_size=4, max_size=80))
def test_match_fraction_is_that_of_pairs(codes: list[int]) -> None:
    h = columns(codes).h
    ours = match_fraction(h)
    for lag in range(1, len(codes) // 2 + 1):
        assert ours[lag - 1] == pytest.approx(naive.match_fraction(codes, lag))
    lags = [lag for lag in range(1, len(codes) // 2 + 1) if naive.match_fraction(codes, lag) >= 0.95]
    assert smallest_lag(h) == (lags[0] if lags else 0)


@pytest.mark.parametrize("seed", range(6))
def test_iterations_are_those_between_anchors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    body = [1, *rng.integers(2, 6, 8).tolist(), 7]
    codes: list[int] = []
    for i in range(60):
        codes += body + ([9] if i % 7 == 6 else [])
    times = np.cumsum(rng.integers(10**7, 10**8, len(codes))).tolist()
    batch = calls(codes, times)
    batch.op[np.array(codes) == 9] = OP_CODE["barrier"]
    it = joined(run(PeriodFinder(), [batch])[0])
    anchor = codes[int(it.seq[0])]
    truth = naive.iterations(codes, times, anchor, Counter(body))
    assert list(zip(it.t_ns, it.dur_ns, it.phase != 2, strict=True))[3:] == truth[3:]


@pytest.mark.parametrize("k", [2, 3, 5, 8, 16])
def test_a_repetition_in_time_is_found(k: int) -> None:
    rng = np.random.default_rng(k)
    base = rng.permutation(np.linspace(1.0, 2.5, k))
    x = np.tile(base, 40) * rng.lognormal(0, 0.05, 40 * k) * 1e6
    assert timing.every(x.astype(np.int64))[0] == k
    assert naive.best_fold(np.log(x).tolist(), 20) == k
    series, found, chance = timing.fold(np.log(np.stack([rng.lognormal(0, 0.05, len(x)) * 1e6, x], axis=1)), 24)
    assert (series, found) == (1, k)
    assert chance < -20


@pytest.mark.parametrize("kind", ["constant", "noise", "drift", "step", "spikes"])
def test_no_repetition_is_made_up(kind: str) -> None:
    rng = np.random.default_rng(3)
    n = 400
    x = 1e8 * rng.lognormal(0, 0.05, n)
    x *= {
        "constant": 1 / x * 1e8, "noise": 1.0, "drift": np.linspace(1, 2, n),
        "step": np.where(np.arange(n) < 200, 1, 1.5),
        "spikes": np.where(rng.random(n) < 0.03, 6.0, 1.0),
    }[kind]  # fmt: skip
    assert timing.every(x.astype(np.int64))[0] in (0, 1)
    if kind in ("constant", "noise", "spikes"):
        assert timing.fold(np.log(x)[:, None], 64)[2] > -6


def test_a_rank_without_a_pattern_follows_another() -> None:
    codes = [1, 2] * 400
    c = columns_of(calls(codes, (np.arange(800) * 10**6).tolist()), (-1, 0), NONE)[0]
    told = by_ranks(c, np.arange(3 * 10**6, 8 * 10**8, 20 * 10**6))
    assert told is not None
    assert told.level is not None
    assert told.level.calls * told.every == 20
    assert by_ranks(c, np.arange(3 * 10**6, 8 * 10**8, 20 * 10**6)[:5]) is None
    uneven = np.cumsum(np.random.default_rng(1).integers(5 * 10**6, 4 * 10**7, 40))
    assert by_ranks(c, uneven) is None


def test_families_of_varied_sizes() -> None:
    stream = call_stream(
        "moe", 30, np.random.default_rng(1), sizes={"tp": 1, "pp": 1, "dp": 2, "micro": 2, "layers": 2}
    )
    moved = stream.calls.op == 6
    sizes = np.random.default_rng(2).integers(1000, 10**9, len(moved))
    stream.calls.bytes = np.where(moved, sizes, stream.calls.bytes)
    c, _ = columns_of(stream.calls, (-1, 0), NONE)
    varied = varied_families(c, NONE)
    assert set(varied) == set(c.family[moved])
    assert not len(varied_families(c, varied))


@pytest.mark.parametrize(
    ("text", "op", "size", "peer", "comm"),
    [
        ("op=all_reduce", 1, None, None, None),
        ("op=send,peer=3", 9, None, 3, None),
        ("bytes=4", None, 4, None, None),
        ("bytes=32M,comm=dp", None, 32 << 20, None, "dp"),
    ],
)
def test_markers(text: str, op: int | None, size: int | None, peer: int | None, comm: str | None) -> None:
    mark = parse(text)
    assert (mark.op, mark.bytes, mark.peer, mark.comm) == (op, size, peer, comm)


@pytest.mark.parametrize(
    "text", ["", "op", "op=", "op=warp", "bytes=much", "peer=x", "bytes=4K4", "color=red", "op=send,,"]
)
def test_markers_that_are_refused(text: str) -> None:
    with pytest.raises(GhError, match="not understood"):
        parse(text)


def test_sentences() -> None:
    found = Period(rank=3, state="found", calls=14, dur_ns=312_000_000, method="anchors", anchor="barrier on world")
    assert sentence(found) == "rank 3: an iteration is 14 calls, 312 ms (anchors, begins with barrier on world)"
    row = {"calls": 2, "dur_ns": 5_000, "share": 0.5, "repeats": 9, "why": "too short"}
    unknown = Period(rank=0, state="unknown", candidates=[row])
    assert "cannot tell" in sentence(unknown)
    assert explain(unknown) == ["rank 0:   2 calls, 5 us, 9 times, 50% of all calls: too short"]
    assert "looking again" in sentence(Period(rank=0, state="rearm"))


def test_batches_are_views_and_keep_the_stream() -> None:
    stream = call_stream("ddp", 20, np.random.default_rng(1), extras=Extras(log_every=5))
    parts = stream.batches(7)
    assert (np.concatenate([p.seq for p in parts]) == stream.calls.seq).all()
    assert take(stream.calls, slice(3, 5)).bytes.base is not None
