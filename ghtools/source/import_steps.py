# SPDX-License-Identifier: Apache-2.0
"""Step lines of training scripts: a small table of how they look, and --set pattern=REGEX for any other.

Such logs are what a training script prints to its terminal or its file. They tell the iteration time of the job and
its restarts; unless every rank writes lines (--set by=rank, or the group `rank` of a pattern) they cannot tell which
rank is slow. Progress bars (Hugging Face Trainer, Lightning) show a smoothed rate: a slow-down is seen some
iterations late, and short ones not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ghtools.stream.errors import GhError
from ghtools.stream.records import Record

from .importers import File, Options
from .logtext import plain, stamp_ns
from .series import UNITS_NS
from .steplog import Found, read_log

NAME = "steps"
DOC = (
    "step lines of nanogpt, llm.c, torchtitan, NeMo, MaxText, Hugging Face Trainer, Lightning, or your own: "
    "--set pattern=REGEX with groups step, time or total (in --unit), rank; --set style=NAME of the table"
)

_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "seconds": 1e9}


@dataclass(frozen=True)
class Style:
    """How the step lines of one program look."""

    pattern: re.Pattern[str]
    hint: str  # a text that such a line must hold; much faster than the pattern
    take: Callable[[re.Match[str]], Found | None]


def _each(match: re.Match[str]) -> Found | None:
    return Found(int(match["step"]), float(match["time"]) * _NS[match["unit"]])


def _seconds(match: re.Match[str]) -> Found | None:
    return Found(int(match["step"]), float(match["time"]) * 1e9)


def _total(match: re.Match[str]) -> Found | None:
    return Found(int(match["step"]), float(match["time"]) * _NS[match["unit"]], total=True)


def _stamp(match: re.Match[str]) -> Found | None:
    """Only the time of writing tells: the duration is the distance to the line before."""
    stamp = stamp_ns(match.string, match.start())
    return None if stamp is None else Found(int(match["step"]), float(stamp), total=True, stamp_ns=stamp)


def _bar(match: re.Match[str]) -> Found | None:
    """A progress bar: the rate as it stands; in an epoch's bar steps are counted through all epochs."""
    rate = float(match["rate"])
    if rate <= 0:
        return None
    step = int(match["step"]) + int(match["epoch"] or 0) * int(match["of"])
    return Found(step, 1e9 / rate if match["per"] == "it/s" else rate * 1e9)


_NUM = r"(?P<time>\d{1,15}(?:\.\d{0,12})?)"
_STEP = r"(?P<step>\d{1,12})"
_BAR = (
    r"(?:^|[\s\]:])(?:Epoch (?P<epoch>\d{1,6}): {1,4}(?:: )?|Training: {1,4})?\s?\d{1,3}%\|[^|\r\n]{0,200}\|"
    rf" {{0,4}}{_STEP}/(?P<of>\d{{1,12}}) \[[\d:]{{4,12}}<[\d:?]{{1,12}}, {{1,6}}"
    r"(?P<rate>\d{1,9}\.\d{1,6})(?P<per>it/s|s/it)"
)
STYLES: dict[str, Style] = {
    # modded-nanogpt: step:12/3275 train_time:1234ms; the time is that of the whole run so far
    "nanogpt": Style(
        re.compile(rf"\bstep:{_STEP}/\d{{1,12}} (?:train_loss:\S{{1,20}} )?train_time:{_NUM}(?P<unit>ms|s)\b"),
        "train_time:",
        _total,
    ),
    # nanoGPT: iter 12: loss 3.1, time 245.32ms; llm.c and build-nanogpt: step 12 | ... | 245.32 ms or dt: 245.32ms
    "karpathy": Style(
        re.compile(
            rf"\b(?:iter {_STEP}: loss [^,\n]{{1,40}}, time {_NUM}(?P<unit>ms)"
            rf"|step {{1,8}}(?P<step2>\d{{1,12}})(?:/\d{{1,12}})? \|[^\n]{{1,200}}?[ :]"
            r"(?P<time2>\d{1,9}\.\d{1,6}) ?(?P<unit2>ms)\b)"
        ),
        "ms",
        lambda m: Found(int(m["step"] or m["step2"]), float(m["time"] or m["time2"]) * 1e6),
    ),
    # torchtitan: 2025-06-16 22:30:50,322 - root - INFO - step: 200 loss: ...
    "torchtitan": Style(re.compile(rf"\bstep: {{1,8}}{_STEP} {{1,8}}(?:loss|lr|train/loss):"), "step:", _stamp),
    # NeMo: Training epoch 0, iteration 5/99 | ... | global_step: 5 | ... | train_step_timing in s: 5.2
    "nemo": Style(
        re.compile(
            rf"\bglobal_step[:=] ?{_STEP}(?:\.0{{1,6}})?[^\d\n][^\n]{{0,300}}?train_step_timing in s[:=] ?{_NUM}"
        ),
        "train_step_timing",
        _seconds,
    ),
    # MaxText: completed step: 5, seconds: 1.234, TFLOP/s/device: ...
    "maxtext": Style(re.compile(rf"\bcompleted step: {_STEP}, seconds: {_NUM}"), "completed step", _seconds),
    # tqdm, as of Hugging Face Trainer (no name before the bar) and Lightning (Epoch 3:)
    "bar": Style(re.compile(_BAR), "%|", _bar),
}


def looks_like(first: bytes) -> bool:
    """Whether any line has a pattern of the table."""
    text = plain(first.replace(b"\r", b"\n"))
    return any(style.hint in text and style.pattern.search(text) for style in STYLES.values())


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Iterations of the job or of each rank. See steplog.read_log for errors; GhError where the pattern is unusable."""
    if "pattern" in options.more:
        return read_log(files, options, _Own(options), "the pattern")
    named = options.more.get("style", "")
    if named and named not in STYLES:
        raise GhError(f"cannot read steps of {named}", "no such style", "--set style= one of " + ", ".join(STYLES))
    styles = {named: STYLES[named]} if named else STYLES
    return read_log(files, options, _Table(styles, options), "a step as " + ", ".join(styles) + " print it")


class _Table:
    """The first style of which a line is seen is that of the whole log: two of them would mix two clocks."""

    def __init__(self, styles: dict[str, Style], options: Options) -> None:
        self._styles = styles
        self._warn = options.warn
        self._of = ""  # length of the training bar; other bars are evaluation, loading and the like
        self._unstamped = False

    def line(self, text: str, where: tuple[str, int]) -> Iterator[Found]:
        """Every step of the line; several are there where lines were glued."""
        for name, style in self._styles.items():
            if style.hint not in text:
                continue
            for match in style.pattern.finditer(text):
                if len(self._styles) > 1:
                    self._styles = {name: style}
                if name == "bar":
                    self._of = self._of or match["of"]
                    if match["of"] != self._of:
                        continue
                found = style.take(match)
                if found:
                    yield found
                elif name == "torchtitan" and not self._unstamped:
                    self._unstamped = True
                    self._warn("step lines without a time stamp were left out: nothing else in them tells the time")
            if len(self._styles) == 1:
                return

    def end(self) -> Iterator[Found]:
        """No line goes on in another."""
        return iter(())


class _Own:
    """The user's pattern: groups time (of one iteration) or total (so far), step, rank."""

    def __init__(self, options: Options) -> None:
        if options.unit not in UNITS_NS:
            raise GhError(f"cannot read times in {options.unit}", "no such unit", "--unit s, ms, us or ns")
        self._unit = UNITS_NS[options.unit]
        try:
            self._pattern = re.compile(options.more["pattern"])
        except re.error as error:
            raise GhError("cannot use the pattern", str(error)) from None
        groups = set(self._pattern.groupindex)
        if not groups & {"time", "total"}:
            raise GhError("cannot use the pattern", "no group says the time", "(?P<time>[0-9.]+) or (?P<total>[0-9.]+)")
        self._groups = groups
        self._counts: dict[int, int] = {}

    def line(self, text: str, where: tuple[str, int]) -> Iterator[Found]:
        """Every match of the line; a value that is no number is passed over."""
        for match in self._pattern.finditer(text):
            part = match.groupdict()
            total = part.get("time") is None
            try:
                ns = float(part["total"] if total else part["time"]) * self._unit
                rank = int(part["rank"]) if part.get("rank") else -1
                if "step" in self._groups:
                    step = int(float(part["step"]))
                else:
                    step = self._counts.get(rank, 0)
                    self._counts[rank] = step + 1
            except (ValueError, TypeError, OverflowError):
                continue
            yield Found(step, ns, total=total, stamp_ns=stamp_ns(text, match.start()), rank=rank)

    def end(self) -> Iterator[Found]:
        """No line goes on in another."""
        return iter(())
