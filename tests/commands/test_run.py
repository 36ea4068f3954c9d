# SPDX-License-Identifier: Apache-2.0
"""gh-run around small commands: the command is as it would be without us."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from ghtools.job.chain import parse_chain, preload, with_tests
from ghtools.job.native import SHIM
from ghtools.stream.errors import GhError

Env = dict[str, str]


def gh_run(env: Env, *arguments: str, **kw: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["gh-run", *arguments], env=env, capture_output=True, timeout=60, **kw)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_exit_code_is_the_commands(clean_env: Env, script: str, code: int) -> None:
    assert gh_run(clean_env, "--pipe", "gh-trace", "--", "sh", "-c", script).returncode == code


def test_streams_are_untouched(clean_env: Env) -> None:
    done = gh_run(clean_env, "--pipe", "gh-trace", "--", "sh", "-c", "cat; echo err >&2", input=b"in\0put")
    assert done.stdout == b"in\0put"
    assert b"err\n" in done.stderr


def test_environment_and_options_of_the_command(clean_env: Env) -> None:
    clean_env["LD_PRELOAD"] = "libm.so.6"
    script = 'echo "$LD_PRELOAD" "$GHT_JOB" "$GHT_UNTIL_PID" "$@"'
    done = gh_run(clean_env, "--pipe", "gh-trace", "--job", "j1", "--", "sh", "-c", script, "x", "--job", "-q")
    assert done.stdout.decode().split() == [f"{SHIM}:libm.so.6", "j1", "--job", "-q"]


def test_preload_does_not_repeat_itself() -> None:
    env = preload({"LD_PRELOAD": f"a.so {SHIM}:b.so"}, SHIM, "j")
    assert env["LD_PRELOAD"] == f"{SHIM}:a.so:b.so"


def test_no_such_command(clean_env: Env) -> None:
    done = gh_run(clean_env, "--", "no-such-command")
    assert done.returncode == 4
    assert done.stderr.decode().splitlines() == [
        "gh-run: cannot start no-such-command: there is no such program on PATH"
    ]


@pytest.mark.parametrize("arguments", [[], ["--attach", "j", "--", "true"]])
def test_usage(clean_env: Env, arguments: list[str]) -> None:
    assert gh_run(clean_env, *arguments).returncode == 2


@pytest.mark.parametrize("text", ["", "a | | b", "a |", 'a "b'])
def test_a_bad_chain_is_refused(text: str) -> None:
    with pytest.raises(GhError):
        parse_chain(text)


def test_chain_is_split_without_a_shell() -> None:
    assert parse_chain("gh-trace|gh-alert --prom 'a b' $X") == [["gh-trace"], ["gh-alert", "--prom", "a b", "$X"]]


def test_a_chain_that_cannot_start_leaves_the_job_alone(clean_env: Env) -> None:
    done = gh_run(clean_env, "--pipe", "gh-trace | no-such-stage", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"runs unwatched: cannot start no-such-stage" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(clean_env: Env, tmp_path: Path, number: signal.Signals) -> None:
    script = "trap 'echo heard; exit 7' TERM INT USR1; touch ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        ["gh-run", "--pipe", "gh-trace", "--", "sh", "-c", script],
        env=clean_env, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    wait_for(tmp_path / "ready")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (7, b"heard\n")


def test_a_stage_that_dies_is_named_and_the_job_goes_on(clean_env: Env, tmp_path: Path) -> None:
    stage = tmp_path / "gh-dies"
    stage.write_text("#!/bin/sh\nkill -9 $$\n")
    stage.chmod(0o755)
    done = gh_run(clean_env, "--pipe", f"gh-trace | {stage}", "--", "sh", "-c", "sleep 1; exit 5")
    assert done.returncode == 5
    assert f"{stage} ended (signal 9); the job goes on unwatched" in done.stderr.decode()


def test_a_killed_gh_run_leaves_the_command_running(clean_env: Env, tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["gh-run", "--pipe", "gh-trace", "--", "sh", "-c", "echo $$ > pid; sleep 1; touch done"],
        env=clean_env, cwd=tmp_path,
    )  # fmt: skip
    wait_for(tmp_path / "pid")
    process.kill()
    process.wait()
    wait_for(tmp_path / "done")


def test_a_command_without_communication_is_said_to_have_none(clean_env: Env, tmp_path: Path) -> None:
    out = tmp_path / "s.ght"
    done = gh_run(clean_env, "--pipe", "gh-trace", "--out", str(out), "--", "true")
    assert b"no communication call was seen" in done.stderr
    assert out.stat().st_mode & 0o777 == 0o600


def test_tests_stand_behind_the_stage_that_suspects() -> None:
    stages = with_tests(parse_chain("gh-trace | gh-bocd | gh-profile --explain | gh-alert"), "j 1")
    assert [stage[0] for stage in stages] == [
        "gh-trace", "gh-bocd", "gh-profile", "gh-validate-gemm", "gh-validate-ring", "gh-alert",
    ]  # fmt: skip
    assert stages[3][1:] == stages[4][1:] == ["--suspects", "-", "--job", "j 1"]
    with pytest.raises(GhError, match="no gh-profile"):
        with_tests(parse_chain("gh-trace | gh-alert"), "j")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--validate", "maybe"], "auto or never"), (["--validate", "auto", "--pipe", "gh-trace"], "no gh-profile")],
)
def test_validate_needs_something_to_test(clean_env: Env, words: list[str], said: str) -> None:
    done = gh_run(clean_env, *words, "--", "true")
    assert done.returncode == 2 and said in done.stderr.decode()


def wait_for(path: Path, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)
