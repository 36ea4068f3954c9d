# SPDX-License-Identifier: Apache-2.0
"""The control page, with a real process on the other side."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ghtools.job import paths
from ghtools.job.control import ControlPage
from ghtools.job.layout import PAGE
from ghtools.job.ring import RingReader
from ghtools.stream.errors import GhError, InputError, MissingError
from tests.csrc.conftest import Fakes


class Held:
    """A process that makes one call for every line it is given."""

    def __init__(self, child: subprocess.Popen[str], ring: RingReader, folder: Path) -> None:
        self.child, self.ring, self.folder = child, ring, folder

    def call(self, n: int = 1) -> int:
        """Make n calls; how many of them were recorded."""
        stdin, stdout = self.child.stdin, self.child.stdout
        assert stdin and stdout
        for _ in range(n):
            stdin.write("x")
            stdin.flush()
            assert stdout.readline() == "called\n"
        return len(self.ring.drain()[0])


@pytest.fixture
def held(fakes: Fakes, shim_env: dict[str, str]) -> Iterator[Held]:
    with subprocess.Popen(
        [str(fakes.driver), "hold", "10"], env=shim_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stdout.readline() == "ready\n"
        (job,) = paths.jobs(Path(shim_env["GHT_DIR"]))
        with RingReader(job.rings[0].path) as ring:
            assert len(ring.drain()[0]) == 10
            yield Held(child, ring, job.path)


def test_tracking_off_and_on(held: Held) -> None:
    with ControlPage.open(held.folder) as page:
        assert page.read().tracking
        epoch = page.set_tracking(False, lease_s=60)
        assert held.call(3) == 0
        assert not held.ring.live().tracking
        assert held.ring.live().control_epoch == epoch
        page.set_tracking(True)
        assert held.call(2) == 2
        live = held.ring.live()
    assert live.tracking
    assert (live.calls, live.written) == (15, 12)  # calls are counted while nobody looks


def test_lease_runs_out_by_itself(held: Held) -> None:
    with ControlPage.open(held.folder) as page:
        page.set_tracking(False, lease_s=0.3)
    assert held.call() == 0
    time.sleep(0.4)
    assert held.call(2) == 2
    with ControlPage.open(held.folder) as page:
        assert page.read().tracking


def test_profile_request_reaches_the_process(held: Held) -> None:
    with ControlPage.open(held.folder) as page:
        page.set_profiling(True, lease_s=60)
        assert held.call() == 1
        assert held.ring.live().profiling
        page.set_profiling(False)
        assert held.call() == 1
        assert not held.ring.live().profiling


def test_page_made_before_the_job_is_heeded_from_the_first_call(fakes: Fakes, shim_env: dict[str, str]) -> None:
    folder = paths.make_job_dir("t", Path(shim_env["GHT_DIR"]))
    with ControlPage.create(folder) as page:
        page.set_tracking(False, lease_s=60)
    subprocess.run([fakes.driver, "simple", "20"], env=shim_env, check=True, timeout=60)
    (ring,) = paths.rings_in(folder)
    with RingReader(ring.path) as reader:
        live = reader.live()
    assert (live.calls, live.written) == (20, 0)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * PAGE])
def test_a_page_that_is_none_is_refused_and_does_no_harm(
    content: bytes, fakes: Fakes, shim_env: dict[str, str]
) -> None:
    folder = paths.make_job_dir("t", Path(shim_env["GHT_DIR"]))
    (folder / "control").write_bytes(content)
    if len(content) != 0:
        with pytest.raises(InputError):
            ControlPage.open(folder)
    subprocess.run([fakes.driver, "simple", "20"], env=shim_env, check=True, timeout=60)
    (ring,) = paths.rings_in(folder)
    with RingReader(ring.path) as reader:
        assert len(reader.drain()[0]) == 20


def test_missing_page_and_silly_lease(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        ControlPage.open(tmp_path)
    with ControlPage.create(tmp_path) as page:
        for lease in (0.0, -1.0, float("nan"), 1e9):
            with pytest.raises(GhError):
                page.set_tracking(False, lease_s=lease)
        assert page.read().epoch == 0
    assert (tmp_path / "control").stat().st_mode & 0o777 == 0o600
