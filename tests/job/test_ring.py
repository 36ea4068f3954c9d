# SPDX-License-Identifier: Apache-2.0
"""Readers of rings: hostile files, several readers, losses; and the job directories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ghtools.job import paths
from ghtools.job.layout import HEADER_DTYPE, LIVE_DTYPE, PAGE, RECORD_DTYPE, RING_MAGIC
from ghtools.job.ring import RingReader, ring_state
from ghtools.stream.errors import GhError, InputError, MissingError
from tests.csrc.conftest import Fakes

Env = dict[str, str]


@pytest.fixture
def ring_path(fakes: Fakes, shim_env: Env) -> Path:
    """A ring of 256 slots with 1,000 calls of a process that has ended."""
    subprocess.run([fakes.driver, "simple", "1000"], env={**shim_env, "GHT_RING_SLOTS": "256"}, check=True, timeout=60)
    (job,) = paths.jobs(Path(shim_env["GHT_DIR"]))
    return job.rings[0].path


def test_header_says_who_the_process_was(ring_path: Path, shim_env: Env) -> None:
    with RingReader(ring_path) as ring:
        info = ring.info
    assert (info.job, info.rank, info.slot_cap, info.uid) == ("t", 0, 256, os.geteuid())
    assert info.command.endswith("driver simple 1000")
    assert info.shim_path == shim_env["LD_PRELOAD"]
    assert info.host == os.uname().nodename
    assert ring_path.name == f"rank-0.{info.pid}.{info.made_ns}.ring"
    assert ring_path.stat().st_mode & 0o777 == 0o600
    assert ring_path.parent.stat().st_mode & 0o777 == 0o700


def test_overwritten_records_are_counted_once(ring_path: Path) -> None:
    with RingReader(ring_path) as ring, RingReader(ring_path, start="oldest") as other:
        first, lost = ring.drain(100)
        second, lost_later = ring.drain(1000)
        assert (len(first), len(second), lost, lost_later) == (100, 156, 744, 0)
        assert list(np.concatenate([first, second])["seq"]) == list(range(744, 1000))
        assert [len(part) for part in ring.drain()[:1]] == [0]
        again, lost = other.drain()
        assert (len(again), lost) == (256, 0)
    with RingReader(ring_path, start="now") as late:
        assert len(late.drain()[0]) == 0


def test_times_do_not_step_back_and_are_real_time(ring_path: Path) -> None:
    with RingReader(ring_path) as ring:
        records, _ = ring.drain()
        live, info = ring.live(), ring.info
    assert (np.diff(records["t_ns"]) >= 0).all()
    assert info.made_ns <= records["t_ns"][0] <= records["t_ns"][-1] <= live.ended_ns + 1_000_000


def patch(path: Path, field: str, value: int) -> None:
    raw = bytearray(path.read_bytes())
    dtype, offset = (HEADER_DTYPE, 0) if field in (HEADER_DTYPE.names or ()) else (LIVE_DTYPE, PAGE)
    assert dtype.fields
    at = offset + dtype.fields[field][1]
    width = dtype[field].itemsize
    raw[at : at + width] = value.to_bytes(width, "little")
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", RING_MAGIC + 1),
        ("abi", 99),
        ("slot_cap", 0),
        ("slot_cap", 255),
        ("slot_cap", 1 << 31),
        ("slot_bytes", 8),
        ("comm_cap", 0xFFFFFFFF),
        ("slot_off", 1 << 60),
        ("file_bytes", 1),
        ("header_bytes", 0),
    ],
)
def test_a_header_that_lies_is_refused(ring_path: Path, field: str, value: int) -> None:
    patch(ring_path, field, value)
    with pytest.raises(InputError):
        RingReader(ring_path)
    assert ring_state(ring_path) == "bad"


@pytest.mark.parametrize(("field", "value"), [("written", 2**64 - 1), ("comm_count", 2**32 - 1)])
def test_a_wild_counter_costs_records_not_the_reader(ring_path: Path, field: str, value: int) -> None:
    patch(ring_path, field, value)
    with RingReader(ring_path) as ring:
        records, lost = ring.drain()
        assert len(records) <= 256
        assert len(ring.comms()) <= 512
        if field == "written":
            assert lost > 1000


def test_random_bytes_are_refused_or_read_without_harm(ring_path: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    good = ring_path.read_bytes()
    bad = tmp_path / "rank-0.1.1.ring"
    for _ in range(200):
        raw = bytearray(good)
        for at in rng.integers(0, len(raw) if rng.random() < 0.5 else 2 * PAGE, 20):
            raw[at] = rng.integers(0, 256)
        bad.write_bytes(raw[: rng.integers(0, len(raw) + 1)] if rng.random() < 0.3 else raw)
        try:
            with RingReader(bad) as ring:
                ring.drain()
                ring.comms()
                ring.state()
        except InputError:
            pass


def test_text_empty_missing_and_linked_files_are_refused(ring_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    for content in (b"", b"hello\n", b"x" * 100_000):
        text.write_bytes(content)
        with pytest.raises(InputError):
            RingReader(text)
    with pytest.raises(MissingError):
        RingReader(tmp_path / "nothing")
    link = tmp_path / "link"
    link.symlink_to(ring_path)
    with pytest.raises(MissingError):
        RingReader(link)


def test_a_file_cut_under_its_reader_is_an_error_not_a_crash(ring_path: Path) -> None:
    with RingReader(ring_path) as ring:
        os.truncate(ring_path, 3 * PAGE)
        for ask in (ring.drain, ring.comms, ring.live):
            with pytest.raises(InputError, match="cut"):
                ask()


def test_closed_reader_says_so(ring_path: Path) -> None:
    ring = RingReader(ring_path)
    ring.close()
    ring.close()
    with pytest.raises(ValueError, match="closed"):
        ring.drain()


def test_drain_gives_the_dtype_and_owns_its_memory(ring_path: Path) -> None:
    with RingReader(ring_path) as ring:
        records, _ = ring.drain()
    assert records.dtype == RECORD_DTYPE
    assert records.flags.owndata
    assert set(records["dur_ns"]) == {-1}


# ---- directories ----


def test_jobs_ignores_what_is_not_a_job(ring_path: Path) -> None:
    root = ring_path.parent.parent
    (root / "file").write_text("x")
    (root / "empty").mkdir()
    (root / "link").symlink_to(ring_path.parent)
    (ring_path.parent / "rank-x.ring").write_text("x")
    (ring_path.parent / "rank-1.2.3.ring").symlink_to(ring_path)
    (ring_path.parent / "rank-3.2.3.ring").mkdir()
    (job,) = paths.jobs(root)
    assert (job.job, job.ranks, job.alive) == ("t", [0], False)
    assert 0 <= job.age_s < 600
    assert paths.jobs(root / "nowhere") == []


def test_stale_jobs_are_listed_and_removed_when_old_enough(ring_path: Path) -> None:
    root = ring_path.parent.parent
    assert paths.stale_jobs(root) == []
    assert [job.job for job in paths.stale_jobs(root, min_age_s=0.0)] == ["t"]
    assert paths.clean_stale(root) == []
    assert paths.clean_stale(root, min_age_s=0.0) == ["t"]
    assert not ring_path.parent.exists()


def test_job_directory_of_another_kind_is_refused(tmp_path: Path) -> None:
    assert paths.make_job_dir("a", tmp_path).stat().st_mode & 0o777 == 0o700
    (tmp_path / "b").write_text("x")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    for name in ("b", "c"):
        with pytest.raises(GhError):
            paths.make_job_dir(name, tmp_path)


NAMES = ["3f2a", "a/b", "../../etc", ".hidden", "ä ö", "x" * 200, "..", "a.b-c_d"]


@pytest.mark.parametrize("name", NAMES)
def test_job_id_becomes_the_same_name_in_c_and_python(name: str, fakes: Fakes, shim_env: Env) -> None:
    subprocess.run([fakes.driver, "simple"], env={**shim_env, "GHT_JOB": name}, check=True, timeout=60)
    root = Path(shim_env["GHT_DIR"])
    assert [p.name for p in root.iterdir()] == [paths.safe_job_id(name)]
    assert len(list(root.parent.glob("*ring*/*/*.ring"))) == 1
