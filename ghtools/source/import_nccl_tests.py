# SPDX-License-Identifier: Apache-2.0
"""Results of nccl-tests: the tables that all_reduce_perf and its siblings print, and the JSON of their option -J.

One file holds one run or several after each other, of a pair of nodes or of many. Each row becomes a `link` record.
A run that stopped before its end gives "no result" for all its rows: it tells that the test failed, not who is to
blame, and a pair test tells that one of two is slow, not which. Compare many pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import Link, Record

from .each_file import each_file
from .importers import File, Options
from .jsonpull import Leaves, Path
from .lines import lines
from .logtext import Ahead, plain, printable, stamp_ns

NAME = "nccl-tests"
DOC = (
    "tables or -J JSON of nccl-tests (all_reduce_perf, sendrecv_perf, ...), a file a run or a pair: bandwidth of links"
)

MAX_ROWS = 1 << 16  # of one table; later rows are let go before it is known how it ended
MAX_DEVICES = 1 << 17
_TESTS = {"alltoall": "all_to_all", "alltoallv": "all_to_all"}  # other names are those of the stream
_DEVICE = re.compile(r"#\s{1,4}Rank\s{1,6}(\d{1,7}) .{0,40}?\bon\s{1,40}(\S{1,253})\s{1,4}device\s{1,4}(\d{1,5})")
_START = re.compile(r"# (?:Collective test starting|nThread) ?:? ?(\w{0,40})")
_PROGRAM = re.compile(r"\b([a-z_]{4,20})_perf\b")
_DONE = re.compile(r"# (?:Avg bus bandwidth|Collective test concluded)")
_STAMP = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_JSON = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"(?:start_time|args|env)"')


def looks_like(first: bytes) -> bool:
    """Whether it has the lines above a table, or begins as the JSON of -J."""
    return bool(_JSON.match(first)) or b"# nThread " in first or b"# Collective test starting" in first


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """A link record for each row and placement. A file without any test raises InputError after all were read."""
    return each_file(files, lambda file: _read_one(file, options), options.warn)


def _read_one(file: File, options: Options) -> Iterator[Record]:
    source = Ahead(file.source)
    file = File(file.name, source)
    run = _Run(file.name)
    if not source.first.strip():
        yield Link(test="unknown", status="no result", facts={"file": file.name, "error": "the file is empty"})
        return
    try:
        yield from (_json if source.first.lstrip()[:1] == b"{" else _text)(file, run, options)
    except (GhError, Stopped):
        yield from run.finish(done=False)
        raise
    if not run.seen:
        raise InputError(f"no test in {file.name}", "there is no table of nccl-tests")


@dataclass
class _Run:
    """One test: what is known of it, and its rows until it is known how it ended."""

    file: str
    test: str = "unknown"
    ends: dict[int, tuple[str, str]] = field(default_factory=dict)  # rank -> host, device
    rows: list[Link] = field(default_factory=list)
    error: str = ""
    seen: bool = False  # any test in this file
    open: bool = False
    _repeats: dict[tuple[int, bool], int] = field(default_factory=dict)

    def start(self, test: str) -> None:
        """Another test begins."""
        self.test = _TESTS.get(test, test) or "unknown"
        self.ends, self.error, self._repeats = {}, "", {}
        self.seen = self.open = True

    def device(self, rank: int, host: str, device: str) -> None:
        if len(self.ends) < MAX_DEVICES:
            self.ends[rank] = (host, device)

    def row(self, size: int, time_us: float, algbw: float, busbw: float, wrong: float, facts: dict[str, Any]) -> None:
        """One measurement; NaN where a number is missing."""
        repeat = self._repeats.get((size, facts["in_place"]), 0)
        if len(self._repeats) < MAX_ROWS:
            self._repeats[size, facts["in_place"]] = repeat + 1
        self.rows.append(
            Link(
                test=self.test, bytes=size, repeat=repeat, dur_ns=round(time_us * 1000), algbw_gbps=algbw,
                busbw_gbps=busbw, status="failed" if wrong > 0 else "ok", facts=facts,
                t_ns=facts.pop("t_ns", 0),
            )
        )  # fmt: skip
        if wrong > 0:
            facts["wrong"] = wrong

    def finish(self, done: bool) -> Iterator[Link]:
        """The rows, with how the test ended; a test that did not end has at least one record, too."""
        if not self.open:
            return
        hosts = list(dict.fromkeys(host for host, _ in self.ends.values()))
        ends = hosts if len(hosts) > 1 else [f"{host}:{device}" for host, device in self.ends.values()]
        facts: dict[str, Any] = {"file": self.file}
        if hosts:
            facts["gpus_per_host"] = round(len(self.ends) / len(hosts))
        if not done and not self.rows:
            self.rows.append(Link(test=self.test))
        for link in self.rows:
            link.ends, link.ranks = ends, sorted(self.ends)
            link.type = "network" if len(hosts) > 1 else "unknown"
            link.facts = {**facts, **link.facts}
            if not done:
                link.status = "no result"
                link.facts["error"] = self.error or "it stopped before its end"
        rows, self.rows = self.rows, []
        self.open = False
        yield from rows

    def spill(self) -> Iterator[Link]:
        """A table without end: let go what there is."""
        if len(self.rows) >= MAX_ROWS:
            yield from self.finish(done=True)
            self.open = True


def _text(file: File, run: _Run, options: Options) -> Iterator[Record]:
    """Tables; a number alone may be glued to other output, a row that is not whole is left out."""
    cut_rows = 0
    named, program = False, ""
    for item in lines(file.source, file.name):
        if item is None:
            continue
        text = plain(item[1])
        start = _START.search(text)
        if start:
            is_thread = "nThread" in start[0]
            if not (is_thread and named):
                yield from run.finish(done=False)
                run.start(program if is_thread else start[1].removesuffix("_perf"))
            named = not is_thread
        elif "_perf" in text and (command := _PROGRAM.search(text[:400])):
            program = command[1]  # an old version does not say its name, the line that started it may
        elif device := _DEVICE.search(text):
            run.device(int(device[1]), device[2], device[3])
        elif _DONE.search(text):
            yield from run.finish(done=True)
        elif "failure" in text or "error" in text.lower():
            run.error = run.error or printable(text.strip())
        elif run.open and text.lstrip()[:1].isdigit():
            if not _row(text, run):
                cut_rows += 1
            yield from run.spill()
    yield from run.finish(done=False)
    if cut_rows:
        options.warn(f"{cut_rows} rows of {file.name} are not whole and were left out")


def _row(text: str, run: _Run) -> bool:
    """size count type [redop] [root], then once or twice: time algbw busbw #wrong."""
    stamp = _STAMP.search(text)
    t_ns = stamp_ns(text, len(text)) if stamp else None
    words = text[: stamp.start()].split() if stamp else text[:400].split()
    if len(words) in (11, 12, 13):
        parts = [(words[-8:-4], False), (words[-4:], True)]
    elif len(words) in (7, 8, 9):
        parts = [(words[-4:], True)]
    else:
        return False
    try:
        size = int(words[0])
        int(words[1])
        numbers = [[_float(word) for word in part] for part, _ in parts]
    except (ValueError, OverflowError):
        return False
    if not words[2][:1].isalpha() or not 0 <= size < 1 << 62:
        return False
    for (time_us, algbw, busbw, wrong), (_, in_place) in zip(numbers, parts, strict=True):
        if not 0 <= time_us < 1e15:
            return False
        facts: dict[str, Any] = {"in_place": in_place, "dtype": words[2]}
        if t_ns:
            facts["t_ns"] = t_ns
        run.row(size, time_us, algbw, busbw, wrong, facts)
    return True


def _float(word: str) -> float:
    return 0.0 if word == "N/A" else float(word)


def _json(file: File, run: _Run, options: Options) -> Iterator[Record]:
    """The object of -J, a value at a time; a cut file is a test without result."""
    found = Leaves(file.source, file.name)
    item: dict[Path, object] = {}
    last: Path = ()
    try:
        for path, key, value in found:
            if path[:2] == ("config", "devices"):
                item[(str(key),)] = value
                if key == "device":
                    _json_device(item, run)
            elif path == ("args",) and key == 0:
                run.start(str(value).rpartition("/")[2].removesuffix("_perf")[:40])
            elif path[:1] == ("results",) and len(path) > 1:
                run.open = run.seen = True
                if path[1] != (last[1] if len(last) > 1 else -1):
                    _json_row(item, run)
                    item = {}
                last = path
                column = (*map(str, path[2:]), str(key))
                item[column] = value
                yield from run.spill()
            elif path[:1] == ("average_bus_bandwidth",):
                _json_row(item, run)
                item = {}
                yield from run.finish(done=True)
            elif path == ("errors",) and isinstance(value, str):
                run.error = run.error or printable(value)
    except InputError:
        if not found.cut:
            raise
        run.seen = True
        run.open = run.open or not run.rows
        run.error = run.error or "the JSON is cut"
    yield from run.finish(done=False)


def _json_device(item: dict[Path, object], run: _Run) -> None:
    rank, host, device = item.get(("rank",)), item.get(("hostname",)), item.get(("device",))
    if isinstance(rank, int) and 0 <= rank < 1 << 31 and isinstance(host, str):
        run.device(rank, host[:253], str(device)[:20])


def _json_row(item: dict[Path, object], run: _Run) -> None:
    size = item.get(("size",))
    if not isinstance(size, int) or not 0 <= size < 1 << 62:
        return
    for place, in_place in (("out_of_place", False), ("in_place", True)):
        time_us = item.get((place, "time"), item.get((place, "cpu_time")))
        if not isinstance(time_us, int | float) or not 0 <= time_us < 1e15:
            continue
        algbw, busbw, wrong = (_json_float(item.get((place, name))) for name in ("alg_bw", "bus_bw", "nwrong"))
        facts = {"in_place": in_place, "dtype": str(item.get(("type",), ""))[:20]}
        run.row(size, time_us, algbw, busbw, wrong, facts)


def _json_float(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else 0.0
