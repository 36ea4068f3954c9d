# SPDX-License-Identifier: Apache-2.0
"""Which suspects are worth holding the job for: not those of a slow-down that is itself only suspected."""

from __future__ import annotations

from ghtools.stream.records import Change, Record, Suspect

NOT_SLOW = ("warm-up", "restart", "planned", "blip")

Key = tuple[str, int]


class Ripe:
    """Lets suspects through, those that come while no onset is confirmed when one is; what is withdrawn, never."""

    def __init__(self) -> None:
        self._suspected: set[Key] = set()
        self._confirmed: set[Key] = set()
        self._waiting: list[Suspect] = []

    def feed(self, record: Record) -> list[Suspect]:
        """Take one record; the suspects that may be acted upon now, oldest first."""
        if isinstance(record, Suspect):
            if not self._doubtful:
                return [record]
            self._waiting = [*self._waiting[-15:], record]
        elif isinstance(record, Change):
            self._change(record)
            if not self._doubtful:
                ripe, self._waiting = self._waiting if self._confirmed else [], []
                return ripe
        return []

    @property
    def _doubtful(self) -> bool:
        return bool(self._suspected) and not self._confirmed

    def _change(self, change: Change) -> None:
        key = (change.level, change.rank)
        over = change.stage == ("confirmed" if change.type == "relief" else "withdrawn")
        if over or change.verdict in NOT_SLOW:
            self._suspected.discard(key)
            self._confirmed.discard(key)
        elif change.type == "relief":
            return
        elif change.stage == "confirmed":
            self._suspected.discard(key)
            self._confirmed.add(key)
        elif key not in self._confirmed:
            self._suspected.add(key)
