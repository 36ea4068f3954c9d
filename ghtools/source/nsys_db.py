# SPDX-License-Identifier: Apache-2.0
"""Reading the sqlite export of an Nsight Systems report: NCCL kernels, their launches, NVTX ranges.

Tables are made by nsys only where it has something for them, and columns differ between versions: every table and
column is looked for before it is used. A report that somebody sends may hold anything: only real tables are read
(no views), the connection is read-only, and what does not fit is left out.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ghtools.stream.errors import InputError

from .call_table import MAX_NS
from .importers import File

MAX_CELL_BYTES = 64 << 20
_LIMIT_LENGTH = 0  # SQLITE_LIMIT_LENGTH: bytes of a row or a text
MAGIC = b"SQLite format 3\x00"
KERNELS, RUNTIME, NVTX, STRINGS = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "StringIds",
)
_PROCESS = "-16777216"  # a global thread id without its thread: the global process id
STEP = re.compile(
    r"(?:train(?:ing)?[ _.-]?)?(?:iteration|iter|step|batch|profilerstep)[\s_#:=.-]{0,3}(\d{1,15})?", re.I
)

Kernel = tuple[int, int, int, int, str, int | None, int]  # begin, end, device, stream, name, launch, process


@contextmanager
def opened(file: File) -> Iterator[sqlite3.Connection]:
    """The database, read where it lies, or from a temporary file if it is packed or comes by a pipe."""
    path = Path(file.name)
    with tempfile.NamedTemporaryFile(prefix="ghtools-nsys-") as spool:
        if not _is_database(path):
            while chunk := file.source.read1(1 << 20):
                spool.write(chunk)
            spool.flush()
            path = Path(spool.name)
            if not _is_database(path):
                raise InputError(
                    f"bad input: {file.name}", "it is no sqlite database",
                    "`nsys export --type sqlite REPORT.nsys-rep`",
                )  # fmt: skip
        where = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        try:
            database = sqlite3.connect(where, uri=True)
            try:
                database.text_factory = lambda raw: raw.decode("utf-8", "replace")
                if limit := getattr(database, "setlimit", None):  # Python 3.11
                    limit(_LIMIT_LENGTH, MAX_CELL_BYTES)
                database.execute("PRAGMA trusted_schema = OFF")
                database.execute("PRAGMA cell_size_check = ON")
                yield database
            finally:
                database.close()
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise InputError(f"bad input: {file.name}", f"the database is not sound: {error}") from None


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


def columns(database: sqlite3.Connection, table: str) -> set[str]:
    """Columns of a real table; empty if there is none of that name."""
    kind = database.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if kind is None or kind[0] != "table" or "virtual" in str(kind[1])[:16].lower():
        return set()
    return {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}


def kernels(database: sqlite3.Connection, file: str) -> Iterator[Kernel]:
    """Kernels whose name speaks of NCCL or RCCL, in order of time; with the begin of their launch where it is there."""
    have = columns(database, KERNELS)
    name = next((column for column in ("shortName", "demangledName", "mangledName") if column in have), "")
    if not {"start", "end", "deviceId"} <= have or not name:
        why = f"it has no table {KERNELS}" if not have else f"{KERNELS} lacks start, end, deviceId or a name"
        raise InputError(f"bad input: {file}", why, "`nsys profile --trace=cuda,nvtx`")
    if not {"id", "value"} <= columns(database, STRINGS):
        raise InputError(f"bad input: {file}", f"it has no table {STRINGS}")
    stream = "k.streamId" if "streamId" in have else "-1"
    process = "k.globalPid" if "globalPid" in have else "0"
    launch, join = "NULL", ""
    runtime = columns(database, RUNTIME)
    if {"start", "correlationId", "globalTid"} <= runtime and {"correlationId", "globalPid"} <= have:
        launch = "r.start"
        join = (
            f"LEFT JOIN {RUNTIME} r ON r.correlationId = k.correlationId AND (r.globalTid & {_PROCESS}) = k.globalPid "
        )
    query = (
        f'SELECT k.start, k."end", k.deviceId, {stream}, s.value, {launch}, {process} FROM {KERNELS} k '
        f"JOIN {STRINGS} s ON s.id = k.{name} {join}"
        "WHERE s.value LIKE '%nccl%kernel%' OR s.value LIKE '%rccl%kernel%' OR s.value LIKE '%msccl%kernel%' "
        "ORDER BY k.start"
    )
    for row in database.execute(query):
        numbers = (row[0], row[1], row[2], row[3], row[6])
        if all(isinstance(number, int) for number in numbers) and isinstance(row[4], str):
            yield row[0], row[1], row[2], row[3], row[4], row[5] if isinstance(row[5], int) else None, row[6]


def steps(database: sqlite3.Connection) -> dict[int, list[tuple[int, int, int]]]:
    """NVTX ranges that are iterations, by process: (number, begin, end), in order of time.

    Names such as iteration 7, step_7, train_step, ProfilerStep#7 count, numbered in order where they have no number.
    Of several families in a process the one that covers the most time is taken: an iteration holds its parts.
    """
    have = columns(database, NVTX)
    if not {"start", "end"} <= have or not have & {"text", "textId"}:
        return {}
    strings = "textId" in have and {"id", "value"} <= columns(database, STRINGS)
    texts = (["n.text"] if "text" in have else []) + (["s.value"] if strings else [])
    if not texts:
        return {}
    text = f"COALESCE({', '.join(texts)})" if len(texts) > 1 else texts[0]
    join = f"LEFT JOIN {STRINGS} s ON s.id = n.textId" if strings else ""
    process = f"(n.globalTid & {_PROCESS})" if "globalTid" in have else "0"
    query = (
        f'SELECT {text}, n.start, n."end", {process} FROM {NVTX} n {join} '
        f"WHERE n.\"end\" > n.start AND ({text} LIKE '%step%' OR {text} LIKE '%iter%' OR {text} LIKE '%batch%') "
        "ORDER BY n.start"
    )
    families: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
    for name, begin, end, owner in database.execute(query):
        sound = isinstance(name, str) and all(isinstance(number, int) for number in (begin, end, owner))
        if sound and 0 <= begin < end < MAX_NS >> 1:
            found = STEP.fullmatch(name.strip())
            if found:
                family = families.setdefault((owner, name.strip()[: found.start(1)] if found[1] else name), [])
                family.append((int(found[1]) if found[1] else len(family), begin, end))
    best: dict[int, list[tuple[int, int, int]]] = {}
    for (owner, _), ranges in families.items():
        if sum(end - begin for _, begin, end in ranges) > sum(e - b for _, b, e in best.get(owner, [])):
            best[owner] = ranges
    return best


def epoch_ns(database: sqlite3.Connection) -> int:
    """Begin of the session, ns since the epoch; 0 if it is not told."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if "utcEpochNs" not in columns(database, table):
        return 0
    row = database.execute(f"SELECT utcEpochNs FROM {table}").fetchone()
    return row[0] if row and isinstance(row[0], int) and 0 <= row[0] < 1 << 61 else 0


def host(database: sqlite3.Connection) -> str:
    """Name of the host, empty if it is not told."""
    table = "TARGET_INFO_SYSTEM_ENV"
    if not {"name", "value"} <= columns(database, table):
        return ""
    row = database.execute(f"SELECT value FROM {table} WHERE name = 'Hostname'").fetchone()
    return str(row[0])[:256] if row else ""
