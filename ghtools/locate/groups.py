# SPDX-License-Identifier: Apache-2.0
"""Who talks with whom: communicators with their members, pairs of ranks, hosts, and ranks that do the same work.

Everything is learnt from the stream and may be incomplete: a member that is not known is missing, never fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from ghtools.stream.records import Comm, Job

MAX_RANK = 1 << 20
MAX_GROUPS = 1 << 18
COLLECTIVE, EDGE = 0, 1


@dataclass(frozen=True)
class Group:
    """A communicator, or one direction between two of its ranks (members: sender, receiver)."""

    comm: int
    kind: int  # COLLECTIVE or EDGE
    members: tuple[int, ...]  # global ranks; in the order of the communicator if it told
    size: int  # members it has, of which some may not be known
    name: str = ""


@dataclass(frozen=True)
class Key:
    """What makes two transfers comparable, beside the kind of link."""

    op: int
    bytes: int


class Groups:
    """Registry of communicators and pairs; numbers are handed out once and stay."""

    def __init__(self) -> None:
        self._members: dict[int, dict[int, int]] = {}  # communicator -> {its rank: global rank}
        self._listed: dict[int, tuple[int, ...]] = {}
        self._callers: dict[int, set[int]] = {}
        self._size: dict[int, int] = {}
        self._name: dict[int, str] = {}
        self._number: dict[tuple[int, int, int], int] = {}
        self._what: list[tuple[int, int, int]] = []  # communicator, sender, receiver (-1, -1: all)
        self.host: dict[int, str] = {}
        self.world_size = 0
        self.layout: dict[str, int] = {}
        self.backend = ""
        self._listed_ranks: set[int] = set()

    def job(self, rec: Job) -> None:
        """Learn ranks, hosts and the layout."""
        self.world_size = max(self.world_size, min(rec.world_size, MAX_RANK))
        self.backend = rec.backend or self.backend
        if rec.layout:
            self.layout = dict(rec.layout)
        for item in rec.ranks:
            rank, host = item.get("rank"), item.get("host")
            if isinstance(rank, int) and 0 <= rank < MAX_RANK:
                self._listed_ranks.add(rank)
                if isinstance(host, str) and host:
                    self.host[rank] = host

    def comm(self, rec: Comm) -> None:
        """Learn a communicator or more about it."""
        if rec.comm not in self._size and len(self._size) >= MAX_GROUPS:
            return
        self._size[rec.comm] = max(self._size.get(rec.comm, 0), min(rec.size, MAX_RANK))
        if rec.name:
            self._name[rec.comm] = rec.name
        if rec.ranks and all(0 <= rank < MAX_RANK for rank in rec.ranks) and len(set(rec.ranks)) == len(rec.ranks):
            self._listed[rec.comm] = tuple(rec.ranks)
        if 0 <= rec.rank < MAX_RANK and 0 <= rec.comm_rank < MAX_RANK:
            self._members.setdefault(rec.comm, {})[rec.comm_rank] = rec.rank

    def ranks(self) -> set[int]:
        """Ranks of which data can be expected: those a job lists and those that told of a communicator."""
        return self._listed_ranks | {rank for told in self._members.values() for rank in told.values()}

    def called(self, comm: int, rank: int) -> None:
        """A rank has made a call on a communicator."""
        if comm in self._callers or len(self._callers) < MAX_GROUPS:
            self._callers.setdefault(comm, set()).add(rank)

    def members(self, comm: int) -> tuple[int, ...]:
        """Global ranks of a communicator, as far as known."""
        if comm in self._listed:
            return self._listed[comm]
        told = self._members.get(comm, {})
        return tuple(told[number] for number in sorted(told)) or tuple(sorted(self._callers.get(comm, ())))

    def of_peer(self, comm: int, peer: int) -> int:
        """Global rank of a communicator's rank `peer`, -1 if not known."""
        if listed := self._listed.get(comm):
            return listed[peer] if 0 <= peer < len(listed) else -1
        return self._members.get(comm, {}).get(peer, -1)

    def number(self, comm: int, sender: int = -1, receiver: int = -1) -> int:
        """Number of a communicator (or of a pair on it); -1 if there are too many."""
        what = (comm, sender, receiver)
        found = self._number.get(what)
        if found is None:
            if len(self._what) >= MAX_GROUPS:
                return -1
            found = self._number[what] = len(self._what)
            self._what.append(what)
        return found

    def group(self, number: int) -> Group:
        """What a number stands for, as known now."""
        comm, sender, receiver = self._what[number]
        if sender >= 0:
            return Group(comm, EDGE, (sender, receiver), 2, self._name.get(comm, ""))
        members = self.members(comm)
        return Group(comm, COLLECTIVE, members, max(self._size.get(comm, 0), len(members)), self._name.get(comm, ""))

    def unseen_with(self, rank: int, seen: set[int]) -> list[int]:
        """Ranks without data that share a communicator with this one in which it is the only one with data."""
        made: set[int] = set()
        for members in self._listed.values():
            if rank in members and len(members) > 1 and seen.isdisjoint(set(members) - {rank}):
                made |= set(members) - {rank}
        return sorted(made)

    def __len__(self) -> int:
        return len(self._what)

    def hosts_of(self, ranks: tuple[int, ...] | list[int]) -> list[str]:
        """Hosts of some ranks, without doubles, in the order of the ranks; unknown ones are left out."""
        return list(dict.fromkeys(self.host[rank] for rank in ranks if rank in self.host))

    def link(self, ranks: tuple[int, ...]) -> str:
        """Kind of link inside a group: local (one host), network, or unknown."""
        if any(rank not in self.host for rank in ranks):
            return "unknown"
        return "local" if len({self.host[rank] for rank in ranks}) == 1 else "network"
