# SPDX-License-Identifier: Apache-2.0
"""Results of SuperBench: JSON lines, one node a line, `benchmark/metric:device` to a number.

`sb run` leaves results-summary.jsonl in its output folder. Each number becomes a sample with the labels hostname and
device; a benchmark whose return_code is not 0 becomes a suspect that says it could not be tested, which is not yet a
slow node. They tell how each node did alone, on the day of the test; whether a number is low for such a node is told by
comparison with others or with a baseline, which is not done here. They tell nothing of a running job.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import Record, Suspect

from .importers import File, Options
from .lines import lines, place
from .logtext import Told, plain, printable
from .samples import Samples

NAME = "superbench"
DOC = "SuperBench results-summary.jsonl (sb run): samples of every metric of each node; failed benchmarks as suspects"

MAX_METRICS = 100_000  # of one node
MAX_CODE = 1 << 31
_CODE = re.compile(r"(.{1,200})/return_code(?::(\d{1,6}))?$")
_METRIC = re.compile(r"(.{1,200}?)(?::(\d{1,6}))?$")
# Units as SuperBench's documentation of its micro-benchmarks gives them; the others are left open.
_UNITS = (
    (re.compile(r"kernel-launch.*/.*_(time|overhead)$"), "ms"),
    (re.compile(r"(nccl|rccl)-bw.*_(algbw|busbw)$"), "GB/s"),
    (re.compile(r"(nccl|rccl)-bw.*_time$"), "us"),
    (re.compile(r"mem-bw.*/.*_bw$", re.IGNORECASE), "GB/s"),
    (re.compile(r"_models/.*steptime"), "ms"),
    (re.compile(r"_models/.*throughput"), "samples/s"),
)


def looks_like(first: bytes) -> bool:
    """Whether the first line begins as a node with metrics named benchmark/metric."""
    head = first[:4096].lstrip()
    return bool(re.match(rb'\{"node": ?"[^"]{0,300}", ?"[^"/]{1,200}/[^"]{1,200}": ?[-0-9.nNI"]', head))


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Samples and suspects, a node at a time. InputError naming the line that is no node."""
    nodes = 0
    samples = Samples()
    for file in files:
        for item in lines(Told(file.source, file.name, options.warn), file.name):
            if item is None or not item[1].strip():
                continue
            number, line = item
            try:
                yield from _node(_map(line), samples)
            except ValueError as error:
                raise InputError(f"bad input at {place(file.name, number)}", str(error)) from None
            except (GhError, Stopped):
                yield from samples.flush()
                raise
            nodes += 1
            yield from samples.flush()
    if not nodes:
        raise InputError(f"no node in {', '.join(file.name for file in files[:3])}", "it is empty")


def _map(line: bytes) -> dict[str, object]:
    try:
        made = json.loads(plain(line))
    except (ValueError, RecursionError):
        raise ValueError("the line is no JSON") from None
    if not isinstance(made, dict) or not isinstance(made.get("node"), str):
        raise ValueError("the line is no map with the key node")
    if len(made) > MAX_METRICS:
        raise ValueError(f"a node of over {MAX_METRICS} metrics")
    return made


def _node(values: dict[str, object], samples: Samples) -> Iterator[Record]:
    host = printable(str(values["node"]))
    failed: dict[str, set[int]] = {}
    for key, value in values.items():
        if key == "node" or isinstance(value, bool) or not isinstance(value, int | float | None):
            continue
        number = _float(value)
        if (code := _CODE.match(key)) and number and abs(number) < MAX_CODE:
            failed.setdefault(code[1], set()).add(int(number))
        if metric := _METRIC.match(key):
            labels = {"hostname": host, **({"device": metric[2]} if metric[2] else {})}
            unit = next((unit for pattern, unit in _UNITS if pattern.search(metric[1])), "")
            yield from samples.add(metric[1], unit, labels, 0, number)
    for name, codes in failed.items():
        said = f"{printable(name)} ended with code {', '.join(map(str, sorted(codes)[:4]))}"
        yield Suspect(
            what="host",
            hosts=[host],
            verdict="inconclusive",
            text=f"{said}: it could not be tested, which is not yet a slow node; run it again",
            evidence={"test": printable(name), "return_codes": sorted(codes)[:64]},
        )


def _float(value: int | float | None) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.nan
