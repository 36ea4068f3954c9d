# SPDX-License-Identifier: Apache-2.0
"""gh-import steps: the table of step lines, progress bars, and own patterns."""

import numpy as np
import pytest

from ghtools.stream.errors import GhError

from .feed import feed, mutate, public

# One line of each style, typed by hand from how the programs print it: step 7, then step 8.
STYLES = {
    "nanogpt": (
        "step:6/3275 train_time:1000ms step_avg:1.0ms\n"
        "step:7/3275 train_time:1150ms step_avg:1.0ms\nstep:8/3275 train_time:1300ms step_avg:1.0ms\n"
    ),
    "llm.c": "".join(f"step {s:4d}/19560 | loss 7.5 (+1.2z)| lr 1e-5 | 150.00 ms | 49.7% bf16 MFU\n" for s in (7, 8)),
    "nanoGPT": "".join(f"iter {s}: loss 3.1415, time 150.00ms, mfu 41.2%\n" for s in (7, 8)),
    "build-nanogpt": "".join(f"step {s:5d} | loss: 6.1 | norm: 1.2 | dt: 150.00ms | tok/sec: 1.0\n" for s in (7, 8)),
    "torchtitan": "".join(
        f"\x1b[34m[rank0]:[titan] 2026-05-18 16:04:46,{300 + 150 * n} - root - INFO - \x1b[31mstep: {s:2d}  "
        f"\x1b[32mloss:  3.1  memory:  9.4GiB(64%)  tps: 7,282\x1b[0m\n"
        for n, s in enumerate((6, 7, 8))
    ),
    "nemo": "".join(
        f"Training epoch 0, iteration {s}/149 | lr: 3e-05 | global_batch_size: 1 | global_step: {s} | "
        "reduced_train_loss: 1.2 | train_step_timing in s: 0.15 | val_loss: 4.1\n"
        for s in (7, 8)
    ),
    "maxtext": "".join(f"completed step: {s}, seconds: 0.150, TFLOP/s/device: 1.0, loss: 2.0\n" for s in (7, 8)),
    "trainer": "".join(f"\r  1%|▏         | {s}/500 [00:{s:02d}<01:14,  6.67it/s]" for s in (7, 8)) + "\n",
    "lightning": "".join(f"\rEpoch 0:   1%|▏         | {s}/500 [00:{s:02d}<01:14,  6.67it/s, v_num=1]" for s in (7, 8)),
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_style(style: str) -> None:
    for name in ("steps", "auto"):
        got = feed(name, "some noise\n" + STYLES[style] + "more noise\n").iters()
        assert got["index"].tolist() == [7, 8]
        assert np.allclose(got["dur_ns"], 150e6, rtol=0.001)


def test_cumulative_time_across_missing_lines_is_a_mean() -> None:
    got = feed("steps", "step:1/9 train_time:100ms\nstep:2/9 train_time:200ms\nstep:6/9 train_time:1000ms\n").iters()
    assert got["index"].tolist() == [1, 2, 6]
    assert got["dur_ns"].tolist() == [100_000_000, 100_000_000, 200_000_000]
    assert got["every"].tolist() == [1, 1, 4]


def test_a_restart_begins_the_clock_anew() -> None:
    lines = [(1, 100), (2, 200), (3, 300), (1, 150), (2, 300), (3, 450)]
    log = ("pad\n" * 250).join(f"step:{s}/9 train_time:{t}ms\n" for s, t in lines)
    got = feed("steps", log).iters()
    assert got["index"].tolist() == [1, 2, 3, 1, 2, 3]
    assert got["dur_ns"].tolist() == [100_000_000] * 3 + [150_000_000] * 3
    assert got["incarnation"].tolist() == [0, 0, 0, 1, 1, 1]
    assert got["phase"].tolist() == [0, 0, 0, 3, 0, 0]


def test_evaluation_bars_are_no_steps() -> None:
    bar = "\r {p}%|##   | {n}/{of} [00:10<00:10, 5.00it/s]"
    log = "".join(bar.format(p=1, n=n, of=500) for n in range(1, 6)) + "".join(
        bar.format(p=2, n=n, of=40) for n in range(1, 40)
    )
    log += "\rValidation DataLoader 0:  10%|#  | 6/500 [00:10<00:10, 5.00it/s]" + bar.format(p=1, n=6, of=500)
    assert feed("steps", log).iters()["index"].tolist() == [1, 2, 3, 4, 5, 6]


def test_epochs_are_counted_through() -> None:
    log = "".join(f"\rEpoch {e}: 10%|#  | {n}/3 [00:10<00:10, 2.00s/it]" for e in (0, 1) for n in (1, 2, 3))
    got = feed("steps", log).iters()
    assert got["index"].tolist() == [1, 2, 3, 4, 5, 6]
    assert set(got["dur_ns"].tolist()) == {2_000_000_000}


def test_own_pattern() -> None:
    pattern = r"rank=(?P<rank>\d+) it=(?P<step>\d+) took (?P<time>[\d.]+)"
    log = "".join(f"rank={r} it={s} took {10 + r}\n" for s in range(1, 12) for r in range(3))
    fed = feed("steps", log, more={"pattern": pattern}, unit="ms")
    for rank in range(3):
        assert fed.iters(rank)["dur_ns"].tolist() == [(10 + rank) * 1_000_000] * 11


def test_own_pattern_without_step_counts() -> None:
    got = feed("steps", "took 1.5 s\n" * 5, more={"pattern": r"took (?P<time>[\d.]+)"}).iters()
    assert got["index"].tolist() == [0, 1, 2, 3, 4]


def test_own_pattern_with_total() -> None:
    got = feed("steps", "5 at 10\n6 at 12\n8 at 18\n", more={"pattern": r"(?P<step>\d+) at (?P<total>\d+)"}).iters()
    assert got["dur_ns"].tolist() == [2_000_000_000, 3_000_000_000]


@pytest.mark.parametrize("pattern", ["(", "(?P<step>x)", ""])
def test_bad_patterns_are_usage(pattern: str) -> None:
    with pytest.raises(GhError, match="cannot use the pattern"):
        feed("steps", "x", more={"pattern": pattern})


def test_unknown_style_is_usage() -> None:
    with pytest.raises(GhError, match="no such style"):
        feed("steps", "x", more={"style": "abc"})


def test_torchtitan_without_stamps_says_why() -> None:
    fed = feed("steps", "step: 1  loss: 3.1\nstep: 2  loss: 3.1\n")
    assert any("time stamp" in text for text in fed.said)


def test_nothing_found_is_one_line() -> None:
    fed = feed("steps", "abc\n" * 10)
    assert fed.reason == "cut: no iterations in file0" and len(fed.said) == 1


@pytest.mark.parametrize("seed", range(90))
def test_fuzz(seed: int) -> None:
    style = list(STYLES)[seed % len(STYLES)]
    fed = feed("steps", mutate((STYLES[style] * 5).encode(), seed), size=seed % 3 * 40)
    assert fed.reason == "done" or fed.reason.startswith("cut")


@pytest.mark.public_data
def test_batch_size_schedule() -> None:
    """The batch grows at about steps 710 and 1,415: 34, 61 and 88 ms (the authors' schedule)."""
    for n in (0, 1):
        got = feed("auto", public("nanogpt-steps", f"2025-11-29_BatchSizeSchedule.{n}.txt")).iters()
        assert got["index"].tolist() == list(range(1, 2161))
        dur = got["dur_ns"] / 1e6
        for part, want in ((dur[100:700], 34), (dur[730:1400], 61), (dur[1430:], 88)):
            assert abs(np.median(part) - want) < 1.5
        assert got["t_ns"][-1] + got["dur_ns"][-1] == pytest.approx(132.1e9, rel=0.01)


@pytest.mark.public_data
def test_normuonh_is_flat() -> None:
    got = feed("auto", public("nanogpt-steps", "normuonh.0.txt")).iters()
    assert got["index"].tolist() == list(range(1, 3276))
    assert abs(np.median(got["dur_ns"][10:]) - 147e6) < 2e6
    assert got["t_ns"][-1] + got["dur_ns"][-1] == 493_701_000_000


def test_a_restart_in_the_middle_of_stamped_lines() -> None:
    lines = [(10, 0), (20, 5), (30, 10), (20, 300), (30, 306), (40, 312)]
    log = ("pad\n" * 250).join(
        f"2026-01-02 03:{t // 60:02d}:{t % 60:02d},000 - root - INFO - step: {s}  loss:  3.1\n" for s, t in lines
    )
    got = feed("steps", log).iters()
    assert got["index"].tolist() == [20, 30, 30, 40]
    assert got["dur_ns"].tolist() == [500_000_000, 500_000_000, 600_000_000, 600_000_000]
    assert got["every"].tolist() == [10] * 4
    assert got["incarnation"].tolist() == [0, 0, 1, 1]
    assert got["phase"].tolist() == [0, 0, 3, 0]
