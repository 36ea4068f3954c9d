# SPDX-License-Identifier: Apache-2.0
"""What all commands share: the `@command` decorator, option aliases, input, output and voice.

Nothing here may import numpy, msgpack or rich at module level: `--help` must stay under 200 ms.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ghtools import __version__
from ghtools.stream.errors import Exit, GhError, MissingError

if TYPE_CHECKING:
    from ghtools.stream.bus_link import BusUrl
    from ghtools.stream.pipeline import Stage
    from ghtools.stream.records import Head, Record
    from ghtools.stream.writer import Writer

TICK_S = 1.0


@dataclass(frozen=True)
class Page:
    """What a man page says beside the docstring, the options and the records (STYLE 15)."""

    reads: str = ""  # kinds consumed, blank-separated
    writes: str = ""  # kinds made
    forwards: bool = True  # whether all other records are passed on
    exits: str = "0 2 3"  # exit codes it can end with, beside 70
    exits_text: str = ""  # said before them
    examples: str = ""  # what cannot be a transcript since it needs a running job; indented lines are commands
    overhead: str = ""
    caveats: str = ""
    see: str = ""  # other commands, blank-separated


STOP_GRACE_S = 1.0  # after Ctrl-C a filter reads on this long, so that what the stage before still says arrives

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Streams to read instead of stdin; - is stdin.", show_default=False),
]
Keep = Annotated[
    bool, typer.Option("--keep", envvar="GHT_KEEP", help="Forward the records this command consumes, too.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")]
Bus = Annotated[
    str,
    typer.Option(
        "--bus",
        metavar="URL",
        envvar="GHT_BUS",
        help="Hold the ranks of all hosts of the job, by Redis; - takes the URL from $GHT_REDIS_URL.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", envvar="GHT_QUIET", help="Say nothing on stderr but errors.")]


class Voice:
    """stderr for people: one line an event, at most `burst` lines in `window_s` seconds."""

    def __init__(self, name: str, burst: int = 20, window_s: float = 10.0) -> None:
        self.name, self.burst, self.window_s = name, burst, window_s
        self._began, self._said, self._held = -1e9, 0, 0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._began > self.window_s:
            self.flush()
            self._began, self._said = now, 0
        self._said += 1
        if self._said > self.burst:
            self._held += 1
            return
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Say how many lines were held back."""
        if self._held:
            print(
                f"{self.name}: {self._held} more lines like these were not printed",
                file=sys.stderr,
                flush=True,
            )
            self._held = 0


class Stop:
    """Set by SIGINT and SIGTERM; `fd` becomes readable then, for select."""

    def __init__(self) -> None:
        self.requested = False
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """Take over SIGINT and SIGTERM; a second signal ends the process the usual way."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: object) -> None:
        self.requested = True
        signal.signal(number, signal.SIG_DFL)
        os.write(self._write, b"x")

    def sleep(self, seconds: float) -> None:
        """Sleep that a signal ends."""
        if not self.requested and seconds > 0:
            select.select([self.fd], [], [], seconds)


stop = Stop()


class Input:
    """The input of a filter: files one after another, or stdin; a `framing.Source` that a signal can end.

    `tick` is called between reads, about once a second, also while nothing comes.
    """

    def __init__(self, files: list[Path] | None, tick: Callable[[], None] | None = None) -> None:
        self._tick, self._ticked = tick, time.monotonic()
        self._names = [str(name) for name in files] if files else ["-"]
        self._fd = -1
        self._deadline: float | None = None
        if self._names == ["-"] and os.isatty(0):
            raise GhError("nothing to read", "stdin is a terminal", "a pipe or a FILE argument; see --help")

    def _next(self) -> bool:
        if not self._names:
            return False
        name = self._names.pop(0)
        if name == "-":
            self._fd = 0
            return True
        try:
            if Path(name).is_dir():
                raise IsADirectoryError(21, "it is a directory")
            self._fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise GhError(f"cannot read {name}", (error.strerror or str(error)).lower(), code=Exit.INPUT) from None
        return True

    def waiting(self, timeout_s: float) -> bool:
        """Whether read1 would give bytes, or an end, within `timeout_s`."""
        return self._fd < 0 or bool(select.select([self._fd], [], [], timeout_s)[0])

    def read1(self, size: int, /) -> bytes:
        """Some bytes as soon as there are any; empty at the very end."""
        from ghtools.stream.framing import Stopped

        while True:
            if self._fd < 0 and not self._next():
                return b""
            wait = None
            if self._tick is not None:
                wait = self._ticked + TICK_S - time.monotonic()
                if wait <= 0:
                    self._tick()
                    self._ticked, wait = time.monotonic(), TICK_S
            if stop.requested:
                self._deadline = self._deadline or time.monotonic() + STOP_GRACE_S
                wait = self._deadline - time.monotonic()
                if wait <= 0:
                    raise Stopped
            watch = [self._fd] if stop.requested else [self._fd, stop.fd]
            if self._fd not in select.select(watch, [], [], wait)[0]:
                continue
            try:
                data = os.read(self._fd, size)
            except OSError as error:
                raise GhError("cannot read the input", error.strerror or str(error), code=Exit.INPUT) from None
            if data:
                return data
            if self._fd > 0:
                os.close(self._fd)
            self._fd = -1


def bus_of(given: str) -> BusUrl | None:
    """The URL of --bus, None if there is none; GhError never shows it."""
    from ghtools.stream.bus_link import bus_url

    return bus_url(os.environ.get("GHT_REDIS_URL", "") if given == "-" else given) if given else None


def bus_words(words: list[str]) -> tuple[BusUrl, str, list[Path] | None]:
    """`[URL] STREAM [FILE]...` of gh-pub and gh-sub; the URL may be in GHT_REDIS_URL. GhError never shows it."""
    from ghtools.stream.bus_link import bus_url

    given = words.pop(0) if "://" in words[0] else os.environ.get("GHT_REDIS_URL", "")
    url = bus_url(given)
    if not words:
        raise GhError("no stream is named", "", "a name for it after the URL")
    if "://" in words[0] or not words[0] or len(words[0]) > 512:
        raise GhError(
            "cannot use this name of a stream", "it is empty, too long, or a URL", "URL STREAM, in this order"
        )
    return url, words[0], [Path(name) for name in words[1:]] or None


def sleep_or_closed(seconds: float) -> None:
    """Sleep; a signal ends it early, and so does the going away of stdout's reader (BrokenPipeError)."""
    watch = select.poll()
    watch.register(stop.fd, select.POLLIN)
    watch.register(1, 0)  # POLLERR alone: nobody reads any more
    for fd, _ in watch.poll(seconds * 1000):
        if fd != stop.fd:
            raise BrokenPipeError


def output() -> Writer:
    """A record writer on stdout; refuses a terminal, which cannot show records."""
    from ghtools.stream.writer import Writer

    if os.isatty(1):
        raise GhError("stdout is a terminal", "records are not text", "`| gh-show` after it, or `> FILE.ght`")
    return Writer(sys.stdout.buffer)


def run_filter(
    tool: str,
    files: list[Path] | None,
    make: Callable[[Head], Stage],
    consumes: tuple[type[Record], ...],
    *,
    keep: bool = False,
    say: Voice | None = None,
) -> Exit:
    """The usual body of a filter command: files or stdin to stdout through one stage a section."""
    from ghtools.stream.pipeline import run_filter as run

    source = Input(files)
    clean = run(tool, source, output(), make, consumes, keep=keep, warn=say or Voice(tool))
    return Exit.OK if clean else Exit.INPUT


def _version(name: str) -> Callable[[bool], None]:
    def show(value: bool) -> None:
        if value:
            print(f"{name} (ghtools) {__version__}")
            raise typer.Exit(0)

    return show


def command(
    name: str, page: Page | None = None, **context: Any
) -> Callable[[Callable[..., int | None]], Callable[[], None]]:
    """Make an entry point of a function whose parameters are typer options.

    The function returns an exit code (None is 0). GhError becomes one line on stderr and its code, a closed
    pipe ends quietly, a bug keeps its traceback and exits 70. The typer app and the page are on the entry point
    as `.app` and `.page`, for the page generator.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[[], None]:
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        settings = {"help_option_names": ["-h", "--help"], **context}

        @wraps(function)
        def body(**options: Any) -> None:
            options.pop("version", None)
            try:
                code = int(function(**options) or 0)
            except BrokenPipeError:  # here, since typer would make an exit 1 of it, which means "slow"
                code = _closed()
            raise typer.Exit(code)

        import inspect

        signature = inspect.signature(function, eval_str=True)
        flag = Annotated[
            bool,
            typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_version(name)),
        ]
        extra = inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=flag)
        body.__signature__ = signature.replace(parameters=[*signature.parameters.values(), extra])  # type: ignore[attr-defined]
        body.__annotations__ = {p.name: p.annotation for p in body.__signature__.parameters.values()}  # type: ignore[attr-defined]
        app.command(name=name, context_settings=settings)(body)

        def main() -> None:
            stop.install()
            sys.exit(_run(app, name))

        main.app, main.page = app, page or Page()  # type: ignore[attr-defined]
        return main

    return decorate


def _run(app: typer.Typer, name: str) -> int:
    """Call the app; every way it can end becomes an exit code."""
    code = int(Exit.OK)
    try:
        try:
            app(prog_name=name)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(Exit.BUG if ended.code else Exit.OK)
        sys.stdout.flush()
    except GhError as error:
        print(f"{name}: {error}", file=sys.stderr)
        code = int(error.code)
    except BrokenPipeError:
        code = _closed()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except MemoryError:
        print(f"{name}: out of memory", file=sys.stderr)
        code = int(Exit.BUG)
    except OSError as error:
        print(f"{name}: {_os_error(error)}", file=sys.stderr)
        _closed()  # what could not be written is not tried again at exit, where it would make another exit code
        code = int(MissingError("").code)
    except Exception:
        traceback.print_exc()
        print(f"{name}: this is a bug in ghtools {__version__}; please report the lines above", file=sys.stderr)
        code = int(Exit.BUG)
    return code


def _closed() -> int:
    """The reader of stdout has gone: that is how `| head` ends a pipeline, and no fault."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return int(Exit.OK)


def _os_error(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return f"the system refused{where}: {(error.strerror or str(error)).lower()}"
