# SPDX-License-Identifier: Apache-2.0
"""Records of a running job, read from the rings that the shim fills (gh-trace, issue 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ghtools.job.paths import JobDir, RingFile, jobs, rings_in, safe_job_id
from ghtools.job.ring import RingReader
from ghtools.stream.errors import GhError, InputError, MissingError
from ghtools.stream.records import Calls, Comm, Job, Record, columns

COLUMNS = tuple(columns(Calls))
RESTART_GRACE_S = 10.0  # a rank that died may come back: torchrun restarts workers within seconds
END_GRACE_S = 1.0  # ranks that left by themselves; another may still be at its last calls


def choose_job(found: list[JobDir], wanted: str) -> JobDir:
    """The job that was asked for, else the only running one, else the newest."""
    if wanted:
        for job in found:
            if job.job == safe_job_id(wanted):
                return job
        raise MissingError(f"no job {wanted} on this host", "it has no ring here", "gh-trace --list")
    if not found:
        raise MissingError(
            "no job on this host", "nobody runs one under the shim", "gh-run -- COMMAND, or --attach PID"
        )
    return found[0]


def list_lines(found: list[JobDir]) -> list[list[str]]:
    """Rows for `gh-trace --list`: job, state, ranks, age in seconds, place."""
    rows = []
    for job in found:
        state = "running" if job.alive else "ended" if job.rings else "starting"
        rows.append([job.job, state, str(len(job.ranks)), f"{job.age_s:.0f}" if job.rings else "-", str(job.path)])
    return rows


@dataclass
class _Rank:
    """One ring: one process of one rank."""

    file: RingFile
    reader: RingReader
    incarnation: int
    comms: int = 0
    state: str = "running"
    names: dict[int, str] = field(default_factory=dict)


class LiveSource:
    """Follows one job's rings; `poll` gives what is new, in time order.

    `until` says that the job is over (gh-run knows); without it the job ends when every rank has left, with
    some seconds' grace for a restart where one died. `clock` gives seconds that only grow.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        wall_ns: Callable[[], int],
        until: Callable[[], bool] | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.path, self.job = path, path.name
        self._clock, self._wall_ns, self._until, self._warn = clock, wall_ns, until, warn
        self._ranks: dict[Path, _Rank] = {}
        self._bad: set[Path] = set()
        self._incarnations: dict[int, int] = {}
        self._members: dict[int, dict[int, int]] = {}  # communicator -> {its rank: global rank}
        self._complete: set[int] = set()
        self._first = True
        self._quiet_since: float | None = None
        self.lost = 0
        self.events = 0
        self.done = False

    def poll(self) -> list[Record]:
        """What has come since the last poll: job and comm records first, then calls by time."""
        over = self._until() if self._until else False
        changed = self._discover()
        comms: list[Record] = []
        batches: list[Calls] = []
        for rank in self._ranks.values():
            if rank.state != "running" and rank.comms < 0:
                continue  # drained to its end
            try:
                # The state before the drain: what a process wrote before it ended is read then.
                state = rank.reader.state(max_age_s=0.0 if over else 0.2)
                comms += self._comms(rank)
                batch = self._drain(rank)
            except InputError as error:
                self._warn(f"rank {rank.file.rank}: {error}; it is left out from here on")
                state, batch = "died", None
            if batch is not None:
                batches.append(batch)
            elif state != "running":
                rank.state, rank.comms, changed = state, -1, True
                rank.reader.close()
        batches.sort(key=lambda calls: int(calls.t_ns[0]) if len(calls.t_ns) else 0)
        self._end(over and not batches)
        head: list[Record] = [self._job_record()] if changed and self._ranks else []
        return [*head, *comms, *batches]

    def close(self) -> None:
        """Let go of all rings."""
        for rank in self._ranks.values():
            rank.reader.close()

    def _discover(self) -> bool:
        """Open rings that are new; whether there were any."""
        new = False
        for file in rings_in(self.path):
            if file.path in self._ranks or file.path in self._bad:
                continue
            try:
                # What a ring lost before we came is nobody's loss; of a ring made under our eyes it is.
                reader = RingReader(file.path, start="oldest" if self._first and self._until is None else "all")
            except GhError as error:
                self._bad.add(file.path)
                self._warn(f"rank {file.rank} is left out: {error}")
                continue
            incarnation = self._incarnations.get(file.rank, -1) + 1
            self._incarnations[file.rank] = incarnation
            self._ranks[file.path] = _Rank(file, reader, incarnation)
            new = True
        self._first = False
        return new

    def _drain(self, rank: _Rank) -> Calls | None:
        """New calls of one rank, None if there are none."""
        records, lost = rank.reader.drain()
        if not len(records) and not lost:
            return None
        self.lost += lost
        self.events += len(records)
        if len(records) and np.any(np.diff(records["t_ns"]) < 0):
            # Threads of one process can publish out of order.
            records = records[np.argsort(records["t_ns"], kind="stable")]
        values: dict[str, Any] = {name: records[name].copy() for name in COLUMNS}
        return Calls(rank=rank.file.rank, incarnation=rank.incarnation, lost=lost, **values)

    def _comms(self, rank: _Rank) -> list[Record]:
        """Communicators of one rank that are new, have a new name, or whose members are now all known."""
        known = rank.reader.comms()
        rank.comms = len(known)
        made: list[Record] = []
        for comm in known:
            if rank.names.get(comm.id) == comm.name:
                continue
            rank.names[comm.id] = comm.name
            if comm.comm_rank >= 0:
                self._members.setdefault(comm.id, {})[comm.comm_rank] = rank.file.rank
            members = self._members.get(comm.id, {})
            complete = 0 < comm.size == len(members)
            made.append(
                Comm(
                    comm=comm.id,
                    rank=rank.file.rank,
                    comm_rank=comm.comm_rank,
                    size=comm.size,
                    ranks=[members[number] for number in sorted(members)] if complete else [],
                    name=comm.name,
                    backend=comm.backend,
                )
            )
        return made

    def _job_record(self) -> Job:
        """The job as it is now."""
        ranks = sorted(self._ranks.values(), key=lambda rank: (rank.file.rank, rank.incarnation))
        latest = {rank.file.rank: rank for rank in ranks}
        backends: set[str] = set()
        for rank in latest.values():
            if rank.comms >= 0:
                backends.update(rank.reader.live().backends)
        self._backend = ",".join(sorted(backends)) or getattr(self, "_backend", "")
        return Job(
            job=self.job,
            t_ns=self._wall_ns(),
            world_size=max((rank.reader.info.world_size for rank in latest.values()), default=0),
            backend=self._backend,
            ranks=[
                {
                    "rank": rank.file.rank,
                    "local_rank": rank.reader.info.local_rank,
                    "host": rank.reader.info.host,
                    "pid": rank.file.pid,
                    "device": "",
                    "incarnation": rank.incarnation,
                    "state": rank.state,
                }
                for rank in latest.values()
            ],
        )

    def _end(self, over: bool) -> None:
        """Decide whether the job has ended."""
        if self._until is not None:
            self.done = over
            return
        states = [rank.state for rank in self._ranks.values()]
        if not states or "running" in states:
            self._quiet_since = None
            return
        now = self._clock()
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        grace = RESTART_GRACE_S if "died" in states else END_GRACE_S
        self.done = now - self._quiet_since >= grace


def job_path_of(wanted: str, wait: Callable[[], bool]) -> JobDir:
    """The job to follow, waiting for it to appear as long as `wait()` says so (it may sleep)."""
    while True:
        try:
            return choose_job(jobs(), wanted)
        except MissingError:
            if not wait():
                raise
