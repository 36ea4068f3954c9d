# SPDX-License-Identifier: Apache-2.0
"""JSON series of iteration times: Megatron golden values, maps of step to number, lists of numbers.

Golden values are the files of Megatron-LM's functional tests (golden_values_*.json), which hold what a run logged to
TensorBoard. They tell the iteration time of the job; they cannot tell which rank is slow. "nan" means absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ghtools.stream.errors import GhError, InputError
from ghtools.stream.framing import Stopped
from ghtools.stream.records import Record

from .importers import File, Options
from .jsonpull import Leaves, Path
from .logtext import Told, printable
from .points import MAX_NS, Steps
from .series import UNITS_NS

NAME = "golden"
DOC = (
    "JSON of iteration times: Megatron golden values (tests/functional_tests), {step: value}, [values]; "
    "--column is a key or a dotted path, --unit as it is"
)

_DEFAULTS = ("iteration-time", "iteration_timing_avg", "iteration-timing")  # Megatron's own names
_OTHERS = ("", "values", "series.0.raw")  # a bare map or list; the Turing Change Point Dataset


def looks_like(first: bytes) -> bool:
    """Whether it begins as golden values, a map of steps, or a list of numbers."""
    text = first[:4096].removeprefix(b"\xef\xbb\xbf")
    words = text.replace(b":", b" ").replace(b",", b" ").replace(b"[", b" [ ").replace(b"{", b" { ").split()[:6]
    if words[:1] == [b"["]:
        return len(words) > 1 and _is_value(words[1].rstrip(b"]"))
    if words[:1] != [b"{"] or len(words) < 3:
        return False
    if words[1].strip(b'"').isdigit():
        return _is_value(words[2].rstrip(b"}"))
    return b'"start_step"' in text or b'"n_obs"' in text


def _is_value(word: bytes) -> bool:
    try:
        float(word.strip(b'"').replace(b"null", b"nan"))
    except ValueError:
        return False
    return True


def read(files: Sequence[File], options: Options) -> Iterator[Record]:
    """Iterations of the job (or --rank).

    Raises InputError where the JSON is broken or cut (what stood before is delivered), where a value is no number,
    or where nothing was found; GhError for an unknown unit.
    """
    if options.unit not in UNITS_NS:
        raise GhError(f"cannot read values in {options.unit}", "no such unit", "--unit s, ms, us or ns")
    golden = _Golden(options)
    try:
        for file in files:
            golden.begin(file.name)
            found = Leaves(Told(file.source, file.name, options.warn), file.name)
            for path, key, value in found:
                try:
                    yield from golden.leaf(path, key, value)
                except ValueError as error:
                    raise InputError(f"bad input at {found.where()}", str(error)) from None
            if not golden.count:
                keys = ", ".join(list(golden.keys)[:8])
                wanted = options.column or _DEFAULTS[0]
                raise InputError(
                    f"no iterations in {file.name}", f"there is no {wanted}, only {keys or 'nothing'}", "--column"
                )
    except (GhError, Stopped):
        yield from golden.end()
        raise
    yield from golden.end()


class _Golden:
    """Picks the values of one series out of all leaves of a file."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scale = UNITS_NS[options.unit]
        self._steps: Steps | None = None
        self._path: Path | None = None
        self._column = ""
        self._ours = ""  # the column once one was found
        self._start, self._interval = 0, 0
        self._left_out = 0
        self.count = 0
        self.keys: dict[str, None] = {}
        self._name = ""

    def begin(self, name: str) -> None:
        """Another file, which holds later iterations of the same series."""
        self.count, self._ours, self._path, self._name = 0, "", None, name
        self.keys = {}
        if self._steps:
            self._steps.begin(name)

    def leaf(self, path: Path, key: str | int, value: object) -> Iterator[Record]:
        """What one leaf means. Raises ValueError where it should be a number and is none."""
        if path is not self._path:
            self._path = path
            self._column = ".".join(map(str, path))
            if not isinstance(key, int) or not path:
                self._start, self._interval = 0, 0
            if len(self.keys) < 64:
                self.keys[printable(str(path[0] if path else key), 60)] = None
        if key == "start_step" and isinstance(value, int):
            self._start = value
        elif key == "step_interval" and isinstance(value, int):
            self._interval = value
        elif self._match(self._column, key):
            yield from self._point(key, value)

    def _match(self, column: str, key: str | int) -> bool:
        """Whether the leaves of this container are the series: its path is the column, or the values of it."""
        if isinstance(key, str) and not (key.isdecimal() and len(key) <= 18):
            return False
        if self._ours:
            return column == self._ours
        wanted = (self._options.column,) if self._options.column else (*_DEFAULTS, *_OTHERS)
        if column in wanted or column.removesuffix(".values") in wanted:
            self._ours = column
            return True
        return False

    def _point(self, key: str | int, value: object) -> Iterator[Record]:
        step = int(key)
        if isinstance(key, int):
            step = self._start + key * max(self._interval, 1)
        if value is None:
            return
        try:
            ns = float(value) * self._scale  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{ascii(value)[:60]} is no number") from None
        if ns != ns:
            return
        self.count += 1
        if not 0 < ns < MAX_NS:
            self._left_out += 1
            return
        if self._steps is None:
            self._steps = Steps(self._options.rank, max(self._interval, 0))
            self._steps.begin(self._name)
        yield from self._steps.each(step, ns, None, self.count)

    def end(self) -> Iterator[Record]:
        """What is held back; says what was left out."""
        if self._steps:
            yield from self._steps.end()
        if self._left_out:
            self._options.warn(
                f"{self._left_out} values are no durations (zero, negative or over a hundred years) and were left out"
            )
