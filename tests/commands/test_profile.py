# SPDX-License-Identifier: Apache-2.0
"""gh-profile as a process."""

from __future__ import annotations

import io
import subprocess

import pytest

from ghtools.source.synth_profile import ProfileSpec, profile_job
from ghtools.stream.framing import encode, read_records
from ghtools.stream.records import Calls, End, Head, Iters, Record, Suspect
from tests.conftest import BIN

SPEC = ProfileSpec(tp=2, dp=2, fault="compute", rank=3, iters=20)


def stream(spec: ProfileSpec = SPEC) -> list[bytes]:
    return [encode(record) for record in [*profile_job(spec, Head()), End()]]


def run(data: bytes, *options: str) -> tuple[subprocess.CompletedProcess[bytes], list[Record]]:
    done = subprocess.run([BIN / "gh-profile", *options], input=data, capture_output=True, timeout=120, check=False)
    return done, list(read_records(io.BytesIO(done.stdout))) if done.stdout else []


def test_it_consumes_calls_and_forwards_the_rest() -> None:
    done, records = run(b"".join(stream()))
    assert done.returncode == 0
    assert done.stderr == b""
    kinds = [record.kind for record in records]
    assert kinds[0] == "head" and kinds[-1] == "end"
    assert "comm" in kinds and "job" in kinds
    assert not {"calls", "iters"} & set(kinds)
    (suspect,) = (record for record in records if isinstance(record, Suspect))
    assert (suspect.verdict, suspect.ranks) == ("attributed", [3])
    assert isinstance(records[0], Head) and records[0].via == ["gh-profile"]


def test_keep_forwards_all() -> None:
    _, records = run(b"".join(stream()), "--keep")
    assert sum(isinstance(r, Calls) for r in records) == 2 * 4 * 20
    assert sum(isinstance(r, Iters) for r in records) == 4 * 20


def test_cut_input_is_judged_and_said() -> None:
    done, records = run(b"".join(stream()[:-1])[:-7])
    assert done.returncode == 3
    assert b"cut" in done.stderr
    assert any(isinstance(r, Suspect) and r.ranks == [3] for r in records)
    assert isinstance(records[-1], End) and records[-1].reason.startswith("cut")


def test_two_sections_are_two_jobs() -> None:
    healthy = b"".join(stream(ProfileSpec(dp=4, iters=20)))
    done, records = run(healthy + b"".join(stream()))
    assert done.returncode == 0
    assert [r.verdict for r in records if isinstance(r, Suspect)] == ["cleared", "attributed"]


def test_a_verdict_leaves_while_the_job_goes_on() -> None:
    parts = stream(ProfileSpec(dp=4, fault="compute", rank=1, iters=24))
    with subprocess.Popen([BIN / "gh-profile"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"".join(parts[:-1]))
        process.stdin.flush()
        for record in read_records(process.stdout):  # type: ignore[arg-type]
            if isinstance(record, Suspect):
                assert record.ranks == [1]
                break
        else:
            pytest.fail("it ended without a word")
        assert process.poll() is None
        process.stdin.write(parts[-1])
        process.stdin.close()
        process.stdout.read()
        assert process.wait(60) == 0


@pytest.mark.parametrize("text", ["tp=0", "order=zz", "tp"])
def test_a_layout_that_cannot_be(text: str) -> None:
    done, _ = run(b"", "--layout", text)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_pages_and_help() -> None:
    done = subprocess.run([BIN / "gh-profile", "--help"], capture_output=True, check=True, timeout=60)
    assert b"--layout" in done.stdout and b"--explain" in done.stdout
