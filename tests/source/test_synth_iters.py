# SPDX-License-Identifier: Apache-2.0
"""gh-synth iters: what is planted is there, in bounded pieces, the same for the same seed."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest

from ghtools.source import synth
from ghtools.stream.errors import GhError
from ghtools.stream.framing import encode
from ghtools.stream.records import PHASE_CODE, Head, Iters, Job, Record


def columns(records: list[Record], rank: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    batches = [r for r in records if isinstance(r, Iters) and r.rank == rank]
    return {n: np.concatenate([getattr(b, n) for b in batches]) for n in ("index", "t_ns", "dur_ns", "phase")}


def made(**given: object) -> list[Record]:
    return list(synth.iters(synth.Spec(**given), Head()))  # type: ignore[arg-type]


def test_quiet_iterations_are_what_was_asked_for() -> None:
    rank = columns(made(ranks=2, iters=307, iter_ns=10**8, noise_pct=2.0), 1)
    assert rank["index"].tolist() == list(range(307))
    assert np.median(rank["dur_ns"]) == pytest.approx(1e8, rel=0.01)
    assert np.std(rank["dur_ns"]) == pytest.approx(2e6, rel=0.2)
    assert (np.diff(rank["t_ns"]) == rank["dur_ns"][:-1]).all()
    assert (rank["phase"] == 0).all()


def test_planted_changes_are_where_the_truth_says() -> None:
    changes = synth.parse(["120:2", "200:1.5:1:210"], ["30:3:50:0:60"], ["90:5"])
    records = made(ranks=2, iters=300, noise_pct=0.0, changes=changes, iter_ns=10**6)
    head = records[0]
    assert isinstance(head, Head)
    assert [(c["type"], c["at"]) for c in head.truth["changes"]] == [
        ("ramp", 30), ("blip", 90), ("step", 120), ("step", 200),
    ]  # fmt: skip
    zero, one = (columns(records, rank)["dur_ns"] / 1e6 for rank in (0, 1))
    assert (one[:90] == 1).all() and one[90] == 5 and (one[91:120] == 1).all()
    assert (one[120:200] == 2).all() and (one[200:210] == 3).all() and (one[210:] == 2).all()
    assert zero[30] == 1 and zero[40] == 2 and (zero[50:60] == 3).all() and zero[60] == 1
    assert (zero[120:] == 2).all()


def test_coupled_ranks_show_the_slowest_one() -> None:
    records = made(ranks=3, iters=50, coupled=True, changes=synth.parse(["20:2:1"], [], []))
    times = [columns(records, rank)["dur_ns"] for rank in range(3)]
    assert (times[0] == times[1]).all() and (times[0] == times[2]).all()
    assert np.median(times[0][20:]) > 1.9 * np.median(times[0][:20])


def test_what_is_planned_is_marked_or_not() -> None:
    given = {"iters": 100, "ranks": 1, "eval_every": 20, "ckpt_every": 50, "warmup": 5, "restarts": (60,)}
    marked = columns(made(**given), 0)["phase"]
    assert np.flatnonzero(marked == PHASE_CODE["outlier"]).tolist() == [19, 39, 49, 59, 79, 99]
    assert np.flatnonzero(marked == PHASE_CODE["warmup"]).tolist() == [0, 1, 2, 3, 4, 61, 62, 63, 64]
    assert np.flatnonzero(marked == PHASE_CODE["restart"]).tolist() == [60]
    bare = columns(made(**given, marked=False), 0)
    assert (bare["phase"] == 0).all()
    assert (bare["dur_ns"] == columns(made(**given), 0)["dur_ns"]).all()


def test_a_restart_is_a_new_incarnation_after_a_pause() -> None:
    records = made(iters=40, ranks=2, restarts=(10, 30), batch=7)
    jobs = [r for r in records if isinstance(r, Job)]
    assert [j.ranks[0]["incarnation"] for j in jobs] == [0, 1, 2]
    batches = [r for r in records if isinstance(r, Iters) and r.rank == 1]
    assert {int(b.index[0]): b.incarnation for b in batches}[10] == 1
    rank = columns(records, 1)
    assert rank["index"].tolist() == list(range(40))
    assert rank["t_ns"][10] - rank["t_ns"][9] > synth.RESTART_PAUSE_NS


def test_blocks_and_batches_do_not_change_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = columns(made(iters=200, tails=True, batch=200), 2)
    small = columns(made(iters=200, tails=True, batch=1), 2)
    assert all((whole[name] == small[name]).all() for name in whole)


def test_the_seed_decides() -> None:
    def wire(seed: int) -> bytes:
        return b"".join(encode(r) for r in made(iters=60, tails=True, seed=seed))

    assert wire(1) == wire(1) != wire(2)


def test_long_streams_come_in_pieces() -> None:
    """A million ranks' first record does not wait for the last iteration."""
    records = synth.iters(synth.Spec(ranks=1000, iters=10**9), Head())
    first = [next(records) for _ in range(3)]
    assert isinstance(first[2], Iters) and len(first[2].index) == 64


@pytest.mark.parametrize(
    "text", ["", "120", "a:2", "120:b", "120:1:2:3:4", "120:1.5:x", "120:1.5:0:z", "::", "1e3:2", "120:1.5:1:2.5"]
)
def test_unreadable_changes_are_named(text: str) -> None:
    with pytest.raises(GhError, match="cannot read the step"):
        synth.parse([text], [], [])


@pytest.mark.parametrize(
    "change",
    [synth.Planted("step", 5, 0.0), synth.Planted("step", 5, float("nan")), synth.Planted("step", 5, 2.0, rank=4),
     synth.Planted("step", 5, 2.0, end=5), synth.Planted("step", -3, 2.0), synth.Planted("ramp", 9, 2.0, full=3)],
)  # fmt: skip
def test_impossible_changes_are_refused(change: synth.Planted) -> None:
    with pytest.raises(GhError, match="cannot plant a change"):
        made(changes=(change,))


def test_pace_holds_records_back_until_their_time() -> None:
    now = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    records = made(ranks=1, iters=20, batch=1, noise_pct=0.0, iter_ns=10**9)
    assert len(list(synth.pace(iter(records), 2.0, lambda: now[0], sleep))) == len(records)
    assert sum(slept) == pytest.approx(19 / 2)
    assert max(slept) == pytest.approx(0.5)


def test_spec_fields_stand_in_the_truth() -> None:
    spec = synth.Spec(seed=3, warmup=4, restarts=(7,))
    said = synth.truth(spec)
    names = {f.name for f in dataclasses.fields(synth.Spec)}
    assert said["seed"] == 3 and said["warmup"] == 4 and said["restarts"] == [7]
    assert {"ranks", "iters", "iter_ns", "noise_pct", "tails", "coupled"} <= names & said.keys()
    assert io.BytesIO(encode(Head(truth=said))).read()
