# SPDX-License-Identifier: Apache-2.0
"""Text logs of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX.

Such a log is what the training script prints: `iteration 100/ 500 | ... | elapsed time per iteration (ms): 1434.2 |`,
on the last rank, every --log-interval iterations. It tells the iteration time of the job (a mean over the interval),
and restarts; it cannot tell which rank is slow. Lines may carry prefixes, be glued to other output, or be wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ghtools.stream.records import Record

from .importers import File, Options
from .logtext import speaker, stamp_ns
from .steplog import Found, by_rank, read_log

NAME = "megatron"
DOC = (
    "log of Megatron-LM, Megatron-DeepSpeed, NeoX (stdout): time per iteration and restarts of the job; not who is slow"
)

# Spaces are optional since a wrapped line loses some; every repeat is bounded since lines may be hostile.
_TOKEN = re.compile(
    r"iteration\s{0,40}(?P<step>\d{1,14})\s{0,40}/\s{0,40}\d{1,14}"
    r"|elapsed\s{0,4}time\s{0,4}per\s{0,4}iteration\s{0,4}\((?P<unit>ms|s)\)\s{0,4}:\s{0,8}(?P<time>[0-9.]{1,24})(?P<end>\s{0,4}\|)?"
)
_STEP_CUT = re.compile(r"iteration\s{0,40}\d{0,14}\s{0,40}/?\s{0,40}\d{0,14}\s{0,4}$")
_HOLD_CHARS = 4096  # how much of an unfinished line is kept, and
_HOLD_LINES = 6  # for how many lines more


def looks_like(first: bytes) -> bool:
    """Whether some line has the elapsed time per iteration."""
    return b"elapsed time per iteration (" in first


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Iterations of the job, or of each rank that a prefix names (--set by=rank). See steplog.read_log for errors."""
    return read_log(files, options, _Megatron(by_rank(options)), "'iteration N/ M' and 'elapsed time per iteration'")


class _Megatron:
    """Pairs each iteration number with the time that follows it, over line ends if it must be."""

    def __init__(self, by_rank: bool) -> None:
        self._by_rank = by_rank
        self._held = ""  # the unfinished end of a line
        self._lines = 0

    def line(self, text: str, where: tuple[str, int]) -> Iterator[Found]:
        """A whole pair as soon as there is one."""
        if self._held or "iteration" in text:
            yield from self._pairs(self._held + text, last=False)

    def end(self) -> Iterator[Found]:
        """The file ends in the middle of a line: its time counts though nothing follows it."""
        yield from self._pairs(self._held, last=True)
        self._held = ""

    def _pairs(self, text: str, last: bool) -> Iterator[Found]:
        step = at = -1
        for match in _TOKEN.finditer(text):
            if match["step"]:
                step, at = int(match["step"]), match.start()
                continue
            if step < 0:
                continue
            if not match["end"] and match.end() >= len(text.rstrip()) and not last:
                break  # the number itself may be cut here
            value = _number(match["time"])
            if value is not None:
                ns = value * (1e6 if match["unit"] == "ms" else 1e9)
                rank = speaker(text, at) if self._by_rank else -1
                yield Found(step, ns, stamp_ns=stamp_ns(text, at), rank=rank)
            step = at = -1
        self._keep(text, at)

    def _keep(self, text: str, at: int) -> None:
        """Hold the begun line, with what stands before it (prefix, time stamp), for the lines to come."""
        if at < 0 and (cut := _STEP_CUT.search(text[-120:])):
            at = max(len(text) - 120, 0) + cut.start()
        begin = max(at - 300, 0)
        self._lines = self._lines + 1 if self._held else 0
        keep = at >= 0 and len(text) - begin <= _HOLD_CHARS and self._lines < _HOLD_LINES
        self._held = text[begin:] if keep else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
