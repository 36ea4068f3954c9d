# SPDX-License-Identifier: Apache-2.0
"""A stream as text for people: one line a record (time, kind, rank, what it says), as each record comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ghtools.stream.errors import InputError
from ghtools.stream.framing import GOOD_ENDS, Source, sections
from ghtools.stream.records import Alert, Change, Finding, Job, Record, Suspect

from . import sentence, table, text

HEADER = f"{'time':<9}{'kind':<7}{'rank':>5}  what"


def human(record: Record, *, expand: bool) -> Iterator[str]:
    """Lines of the table: one, and with `expand` one more for each row of a batch."""
    t_ns = sentence.time_of(record)
    when = text.clock(t_ns) if t_ns is not None else ""
    kind = sentence.one_line(sentence.kind_of(record))
    yield f"{when:<9}{kind:<7}{sentence.rank_of(record):>5}  {sentence.sentence(record)}"
    rows = table.job_rows(record) if isinstance(record, Job) else table.rows(record)
    for row in rows if expand or isinstance(record, Job) else ():
        yield "    " + sentence.one_line(row)


def plain(record: Record, *, expand: bool) -> Iterator[str]:
    """One line with the date, for logs and grep; rows of an expanded batch are lines of their own."""
    rows = table.rows(record) if expand else iter(())
    if next(rows, None) is not None:  # that was the header
        for row in rows:
            yield f"{record.kind} {' '.join(row.split())}"
        return
    t_ns = sentence.time_of(record)
    when = text.clock(t_ns, date=True) if t_ns is not None else "-"
    rank = sentence.rank_of(record)
    kind = sentence.one_line(sentence.kind_of(record))
    yield f"{when} {kind}{f' rank {rank}' if rank else ''}: {sentence.sentence(record)}"


def colour_of(record: Record) -> str:
    """Terminal colour (SGR code) of a line: what needs attention stands out, the frame steps back."""
    if isinstance(record, Alert):
        return {
            "recovered": "1;32",
            "slow": "1;31",
            "update": "31",
            "named": "1;31",
            "stalled": "1;31",
            "cleared": "32",
        }.get(record.state, "33")
    if isinstance(record, Change):
        if record.stage != "confirmed":
            return "33"
        return "32" if record.type == "relief" else "31"
    if isinstance(record, Suspect | Finding):
        return {"attributed": "31", "confirmed": "1;31", "cleared": "32"}.get(record.verdict, "33")
    return {"head": "2", "end": "2", "period": "36", "job": "1"}.get(record.kind, "")


class Selection:
    """Records of the wanted kinds (all if empty), at most `limit` (0 = all); heads and ends are records, too.

    `clean` is False once a section was cut, malformed, or says in its end that a stage before was.
    """

    def __init__(
        self, source: Source, warn: Callable[[str], None], kinds: frozenset[str] = frozenset(), limit: int = 0
    ) -> None:
        self.clean = True
        self._source, self._warn, self._kinds, self._limit = source, warn, kinds, limit

    def __iter__(self) -> Iterator[Record]:
        """Each record as it comes; ends early at the limit, leaving the rest unread."""
        count = 0
        for record in self._all():
            if self._kinds and sentence.kind_of(record) not in self._kinds:
                continue
            yield record
            count += 1
            if self._limit and count >= self._limit:
                return

    def _all(self) -> Iterator[Record]:
        for section in sections(self._source, self._cut):
            yield section.head
            yield from section
            assert section.end is not None  # the loop above ends only when it is set
            if section.end.reason not in GOOD_ENDS:
                self.clean = False
            yield section.end

    def _cut(self, error: InputError) -> None:
        self._warn(str(error))
