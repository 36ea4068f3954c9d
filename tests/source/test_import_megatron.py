# SPDX-License-Identifier: Apache-2.0
"""gh-import megatron: pairs of iteration number and time, however the lines were mangled."""

import pytest

from .feed import feed, mutate, public


def line(step: int, ms: float, prefix: str = "", every: int = 1) -> str:
    """A line as Megatron-LM prints it, typed by hand."""
    return (
        f"{prefix} iteration {step:8d}/     500 | consumed samples: {step * 256:12d} | "
        f"elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.5E-04 | global batch size:   256 |\n"
    )


def test_milliseconds_and_seconds() -> None:
    log = line(1, 1434.2) + " iteration        2/     500 | elapsed time per iteration (s): 105.16 | loss: 2.1 |\n"
    got = feed("megatron", log).iters()
    assert got["index"].tolist() == [1, 2]
    assert got["dur_ns"].tolist() == [1_434_200_000, 105_160_000_000]
    assert got["t_ns"].tolist() == [0, 1_434_200_000]


def test_a_logging_interval_is_said_in_the_record() -> None:
    got = feed("megatron", "".join(line(step, 100.0) for step in range(10, 210, 10))).iters()
    assert got["index"].tolist() == list(range(10, 210, 10))
    assert set(got["every"].tolist()) == {10}
    assert got["t_ns"].tolist() == [n * 1_000_000_000 for n in range(20)]


def test_a_first_line_before_the_interval_stands_for_less() -> None:
    got = feed("megatron", "".join(line(step, 100.0) for step in [1, *range(5, 60, 5)])).iters()
    assert got["every"].tolist() == [1, 4, *[5] * 10]


def test_lines_missing_are_a_gap_and_no_interval() -> None:
    got = feed("megatron", "".join(line(step, 100.0) for step in [7, 40, 41, 42, 43, 90, 91])).iters()
    assert got["index"].tolist() == [7, 40, 41, 42, 43, 90, 91]
    assert set(got["every"].tolist()) == {1}


def test_the_interval_may_change() -> None:
    steps = [*range(1, 15), *range(20, 200, 10)]
    got = feed("megatron", "".join(line(step, 100.0) for step in steps)).iters()
    assert got["index"].tolist() == steps
    assert got["every"][-1] == 10
    assert got["every"][0] == 1


def test_time_stamps_give_the_time() -> None:
    log = line(1, 500.0, "[2026-01-02 03:04:05.500] ") + line(2, 500.0, "[2026-01-02 03:04:06.100] ")
    got = feed("megatron", log).iters()
    assert got["t_ns"].tolist() == [1767323045_000_000_000, 1767323045_600_000_000]


def test_a_restart_is_another_incarnation() -> None:
    steps = [1, 2, 3, 4, 5, 6]
    log = "".join(line(s, 100) for s in steps) + "noise\n" * 300 + "".join(line(s, 100) for s in [4, 5, 6, 7])
    got = feed("megatron", log).iters()
    assert got["index"].tolist() == [1, 2, 3, 4, 5, 6, 4, 5, 6, 7]
    assert got["incarnation"].tolist() == [0] * 6 + [1] * 4
    assert got["phase"].tolist() == [0] * 6 + [3, 0, 0, 0]


def test_lines_of_several_ranks_are_one_series_or_several() -> None:
    log = "".join(line(s, 100 + r, f"[rank{r}]:") for s in range(1, 13) for r in (0, 3))
    job = feed("megatron", log)
    assert job.iters()["index"].tolist() == list(range(1, 13))
    assert any("12 lines give a step a second time" in text for text in job.said)
    ranks = feed("megatron", log, more={"by": "rank"})
    assert ranks.iters(3)["dur_ns"].tolist() == [103_000_000] * 12
    assert ranks.iters(0)["dur_ns"].tolist() == [100_000_000] * 12
    assert len(ranks.iters(-1)["index"]) == 0


@pytest.mark.parametrize("prefix", ["[1,3]<stdout>:", "3: ", "[rank3]:"])
def test_prefixes_of_launchers(prefix: str) -> None:
    log = "".join(line(s, 100, prefix) for s in range(1, 5))
    assert len(feed("megatron", log, more={"by": "rank"}).iters(3)["index"]) == 4


@pytest.mark.parametrize("width", [40, 61, 80, 97, 120])
def test_wrapped_lines(width: int) -> None:
    log = "".join(line(step, 1000.5 + step, "[default7]:") for step in range(1, 30))
    wrapped = "\n".join(part[i : i + width] for part in log.splitlines() for i in range(0, len(part), width)) + "\n"
    got = feed("megatron", wrapped).iters()
    assert got["index"].tolist() == list(range(1, 30))
    assert got["dur_ns"].tolist() == [round((1000.5 + step) * 1e6) for step in range(1, 30)]


def test_lines_glued_to_other_output() -> None:
    log = "".join(f"saving checkpoint at iteration   {s} to /x" + line(s, 100.0 + s).rstrip("\n") for s in range(1, 20))
    got = feed("megatron", log).iters()
    assert got["index"].tolist() == list(range(1, 20))
    assert got["dur_ns"].tolist() == [(100 + s) * 1_000_000 for s in range(1, 20)]


def test_other_output_inside_a_line_is_passed_over() -> None:
    whole = line(2, 100.0)
    log = line(1, 100.0) + whole[:60] + "\nWARNING: something\n" + whole[60:] + line(3, 100.0)
    assert feed("megatron", log).iters()["index"].tolist() == [1, 2, 3]


def test_a_last_line_without_end_counts() -> None:
    log = line(1, 100.0) + " iteration        2/     500 | elapsed time per iteration (ms): 120.5"
    assert feed("megatron", log).iters()["dur_ns"].tolist() == [100_000_000, 120_500_000]


def test_a_second_file_goes_on_or_is_refused() -> None:
    first = "".join(line(s, 100) for s in range(1, 8))
    went_on = feed("megatron", first, "".join(line(s, 100) for s in range(6, 12)))
    assert went_on.reason == "done"
    assert went_on.iters()["incarnation"].tolist()[-1] == 1
    same = feed("megatron", first, first, names=["a.log", "b.log"])
    assert same.reason.startswith("cut: cannot read b.log after a.log")
    assert len(same.iters()["index"]) == 7


def test_no_iterations_is_one_line() -> None:
    fed = feed("megatron", "hello\nworld\n")
    assert fed.reason == "cut: no iterations in file0"
    assert len(fed.said) == 1


def test_live_lines_come_before_the_end() -> None:
    """With a quiet source, records come while the log is still open (four points tell the interval)."""
    log = "".join(line(step, 100.0) for step in range(1, 11))
    fed = feed("megatron", log, size=64)
    assert fed.iters()["index"].tolist() == list(range(1, 11))
    assert len(fed.records) > 4


def test_a_long_line_is_cut_off_and_sound_lines_are_delivered() -> None:
    fed = feed("megatron", line(1, 100.0) + "x" * (17 << 20))
    assert fed.iters()["index"].tolist() == [1]
    assert "line 2" in fed.said[-1] and fed.reason.startswith("cut")


def test_hostile_repeats_are_linear() -> None:
    feed("megatron", "iteration 1/ 1 | " * 50_000 + "\n" + "elapsed time per iteration (ms): 1" * 20_000 + "\n")


@pytest.mark.parametrize("seed", range(60))
def test_fuzz(seed: int) -> None:
    log = "".join(line(s, 100 + s, "[2026-01-02 03:04:05] [rank1]:") for s in range(1, 30)).encode()
    fed = feed("megatron", mutate(log, seed), size=seed % 3 * 50, more={"by": ["job", "rank"][seed % 2]})
    assert fed.reason == "done" or fed.reason.startswith("cut")


@pytest.mark.public_data
def test_bloom_log_lines() -> None:
    got = feed("megatron", public("bigscience", "bloom-176b-log-lines.txt")).iters()
    tail = dict(zip(got["index"].tolist(), (got["dur_ns"] / 1e9).tolist(), strict=True))
    # The log book's entry of 2022-04-28.
    assert [tail[step] for step in range(42780, 42785)] == [105.16, 105.17, 106.25, 110.17, 111.14]
    assert len(got["index"]) == 18
    assert set(got["every"].tolist()) == {1}


@pytest.mark.public_data
def test_the_format_is_found() -> None:
    assert len(feed("auto", public("bigscience", "bloom-176b-log-lines.txt")).iters()["index"]) == 18
