# SPDX-License-Identifier: Apache-2.0
"""The period finder on anything that fits its columns: it never raises and never says what cannot be."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.detect.period import PeriodFinder
from ghtools.stream.records import FLAG_EXEC, Calls, Comm, Iters, Job, Period

BIG = 2**63 - 1


@st.composite
def batches(draw: st.DrawFn) -> list[Calls]:
    """A few batches of a few ranks; a motif that repeats, with noise of every kind."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    motif = rng.integers(0, 4, draw(st.integers(1, 12)))
    out = []
    seq, t = draw(st.sampled_from([0, 0, 5, BIG - 4000])), draw(st.sampled_from([0, 10**18, -(2**62), 2**62]))
    for _ in range(draw(st.integers(1, 6))):
        n = draw(st.integers(0, 150))
        kind = np.resize(motif, n) if draw(st.booleans()) else rng.integers(0, 4, n)
        step = draw(st.sampled_from([0, 1, 10**6, 10**9, -(10**6)]))
        gaps = rng.integers(0, abs(step) + 1, n) * (-1 if step < 0 else 1)
        jumps = rng.random(n) < draw(st.sampled_from([0.0, 0.02]))
        numbers = seq + np.arange(n) + np.cumsum(jumps * rng.integers(-3, 9, n))
        flags = np.where(rng.random(n) < draw(st.sampled_from([0.0, 0.3, 1.0])), FLAG_EXEC, rng.integers(0, 32, n))
        out.append(
            Calls(
                rank=draw(st.integers(0, 1)), incarnation=draw(st.sampled_from([0, 0, 0, 1])),
                lost=draw(st.integers(0, 3)),
                t_ns=(t + np.cumsum(gaps)).astype("<i8"), op=(kind + draw(st.sampled_from([1, 9, 200]))).astype("u1"),
                dtype=rng.integers(0, 255, n).astype("u1") if draw(st.booleans()) else np.zeros(n, "u1"),
                flags=flags.astype("<u2"), peer=np.full(n, draw(st.sampled_from([-1, 0, -(2**31)])), "<i4"),
                comm=(kind.astype("<u8") + np.uint64(draw(st.sampled_from([0, 2**64 - 9])))).astype("<u8"),
                bytes=(kind * draw(st.sampled_from([0, 1, 4096, -5, 2**60]))).astype("<i8"), seq=numbers.astype("<i8"),
                dur_ns=np.full(n, -1, "<i8"),
            )
        )  # fmt: skip
        seq, t = min(seq + n, BIG - 2000), t + (int(gaps.sum()) if abs(t) < 2**61 else 0)
    return out


@settings(max_examples=120, deadline=None)
@given(batches(), st.sampled_from([("anchors", ""), ("acf", ""), ("anchors", "op=all_reduce")]))
def test_anything_is_survived(parts: list[Calls], how: tuple[str, str]) -> None:
    finder = PeriodFinder(*how)
    finder.job(Job(ranks=[{"rank": 0}, {}, {"rank": 1, "state": "ended"}]))
    finder.comm(Comm(comm=1, name="dp"))
    last: dict[int, int] = {}
    made = [m for part in parts for m in finder.feed(part)] + list(finder.flush())
    for m in made:
        if isinstance(m, Period):
            assert m.state in ("found", "unknown", "rearm")
            assert 0 <= m.confidence <= 1
            assert m.dur_ns >= 0
            continue
        assert isinstance(m, Iters)
        n = len(m.index)
        assert n > 0
        assert all(len(x) == n for x in (m.t_ns, m.dur_ns, m.phase, m.calls, m.seq))
        assert (m.dur_ns >= 0).all()
        assert (m.phase <= 5).all()
        assert (m.calls > 0).all()
        assert (np.diff(m.index) >= 1).all()
        assert m.index[0] > last.get(m.rank, -1)
        last[m.rank] = int(m.index[-1])
