# SPDX-License-Identifier: Apache-2.0
"""Write the man pages and the README's table from the commands themselves (STYLE 15, 16).

`python -m ghtools.commands._man man README.md` writes, with `--check` it compares and fails on a difference.
A page is made of the command's docstring and options, its `Page`, the record fields it reads and writes,
the exit codes, and the transcript under tests/transcripts (which is a test as well).
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer.main

from ghtools import __version__
from ghtools.stream.errors import EXIT_DOC, Exit
from ghtools.stream.records import KINDS

ROOT = Path(__file__).resolve().parent.parent.parent
TRANSCRIPTS = ROOT / "tests" / "transcripts"
MARK = ("<!-- commands: made by `make man` -->", "<!-- end of commands -->")


def entry_points() -> dict[str, str]:
    """Command name -> "module:function", from pyproject.toml, in its order (Python 3.10 has no TOML reader)."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]\n")[2].partition("\n[")[0]
    return dict(re.findall(r'^(gh-[\w-]+) = "([\w.:]+)"$', section, re.M))


def load(target: str) -> Any:
    """The entry point itself."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def quote(text: str) -> str:
    """Text for roff: no escape, hyphen or leading dot is taken as a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def paragraphs(text: str) -> list[str]:
    """Running text to roff; indented paragraphs stay as they are, `word` becomes bold."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not block.strip():
            continue
        if all(line.startswith("    ") for line in block.splitlines()):
            lines += [".PP", ".RS 4", ".nf", *(quote(line[4:]) for line in block.splitlines()), ".fi", ".RE"]
        else:
            joined = quote(" ".join(line.strip() for line in block.splitlines()))
            lines += [".PP", re.sub(r"`([^`]+)`", r"\\fB\1\\fR", joined)]
    return lines


def record_fields(kinds: str) -> list[str]:
    """The fields of some kinds as a tagged list."""
    lines: list[str] = []
    for kind in kinds.split():
        cls = KINDS[kind]
        lines += [".PP", f"\\fB{kind}\\fR: {quote(inspect.cleandoc(cls.__doc__ or '').splitlines()[0])}"]
        for field in fields(cls):
            if field.name == "extra":
                continue
            dtype = field.metadata.get("dtype")
            type_ = f"column {dtype.replace('<', '')}" if dtype else str(field.type).replace(", Any", "")
            lines += [".TP", f"\\fI{quote(field.name)}\\fR ({quote(type_)})", quote(field.metadata["doc"])]
    return lines


def value_name(parameter: Any) -> str:
    """What an option's value is called where it has no name of its own: INT, FLOAT, TEXT, PATH."""
    annotation = str(parameter.type_descriptor.annotation)
    known = {"int": "N", "float": "X", "Path": "FILE"}
    return next((word for part, word in known.items() if part in annotation), "TEXT")


def options(app: typer.Typer) -> tuple[list[str], str]:
    """The OPTIONS section and the synopsis, from the click command behind the app."""
    group: Any = typer.main.get_command(app)
    lines: list[str] = []
    synopsis = ["[\\fIOPTION\\fR]..."]
    for parameter in group.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or (parameter.name or "").upper()
            name = re.sub(r"\.+$", "", name)
            many = "..." if parameter.nargs == -1 else ""
            synopsis.append(f"\\fI{quote(name)}\\fR{many}" if parameter.required else f"[\\fI{quote(name)}\\fR{many}]")
        record = vars(parameter)
        names = ", ".join(f"\\fB{quote(name)}\\fR" for name in parameter.opts) or f"\\fI{parameter.name}\\fR"
        if parameter.param_type_name == "argument":
            names = f"\\fI{quote(re.sub(r'[.]+$', '', parameter.metavar or (parameter.name or '').upper()))}\\fR"
        elif not record.get("is_flag") and not record.get("count"):
            names += f" \\fI{quote(parameter.metavar or value_name(parameter))}\\fR"
        text = record.get("help") or ""
        default = parameter.default
        if (
            record.get("show_default", True)
            and isinstance(default, str | int | float)
            and not isinstance(default, bool)
            and default != ""
        ):
            text += f" Default: {default}."
        if record.get("envvar"):
            text += f" Environment: {record['envvar']}."
        lines += [".TP", names, quote(text)]
    lines += [".TP", "\\fB\\-h\\fR, \\fB\\-\\-help\\fR", "Print a short help and end."]
    return lines, " ".join(synopsis)


def page(name: str, entry: Any) -> str:
    """One man page."""
    app, info = entry.app, entry.page
    doc = inspect.cleandoc(typer.main.get_command(app).help or "")
    first, _, rest = doc.partition("\n\n")
    option_lines, synopsis = options(app)
    lines = [
        f'.TH {name.upper()} 1 "" "ghtools {__version__}" "ghtools"',
        ".SH NAME",
        f"{quote(name)} \\- {quote(' '.join(first.split()).rstrip('.'))}",
        ".SH SYNOPSIS",
        f"\\fB{quote(name)}\\fR {synopsis}",
        ".SH DESCRIPTION",
        *paragraphs(rest or first),
        ".SH OPTIONS",
        *option_lines,
    ]
    if info.reads:
        lines += [".SH INPUT", *record_fields(info.reads)]
        if info.forwards:
            lines += [".PP", "Records of other kinds are passed on unchanged."]
    if info.writes:
        lines += [".SH OUTPUT", *record_fields(info.writes)]
    lines += [".SH EXIT STATUS", *paragraphs(info.exits_text)]
    for code in [*(Exit(int(number)) for number in info.exits.split()), Exit.BUG]:
        lines += [".TP", f"\\fB{int(code)}\\fR", quote(EXIT_DOC[code])]
    if name == "gh-import":
        lines += formats()
    transcript = TRANSCRIPTS / f"{name}.txt"
    if transcript.exists() or info.examples:
        lines += [".SH EXAMPLES", *paragraphs(info.examples)]
        if transcript.exists():
            lines += [
                ".PP",
                ".RS 4",
                ".nf",
                *(quote(line) for line in transcript.read_text().splitlines()),
                ".fi",
                ".RE",
            ]
    for title, text in (("OVERHEAD", info.overhead), ("CAVEATS", info.caveats)):
        if text:
            lines += [f".SH {title}", *paragraphs(text)]
    see = [*info.see.split(), "ghtools(7)"]
    lines += [
        ".SH SEE ALSO",
        ", ".join(f"\\fB{quote(s.partition('(')[0])}\\fR({'7' if '(7)' in s else '1'})" for s in see),
    ]
    return "\n".join(lines) + "\n"


def formats() -> list[str]:
    """The FORMATS section of gh-import, from the importers themselves."""
    from ghtools.source.importers import IMPORTERS, about

    lines = [".SH FORMATS"]
    for name in IMPORTERS:
        lines += [f".SS {quote(name)}", *paragraphs(about(name))]
    return lines


def overview(entries: dict[str, Any]) -> str:
    """ghtools(7): the chain and the stream, from tests/transcripts' companion text man source and the records."""
    from ghtools.commands._overview import CHAIN, STREAM

    lines = [
        f'.TH GHTOOLS 7 "" "ghtools {__version__}" "ghtools"',
        ".SH NAME",
        "ghtools \\- find the slow part of a training job",
    ]
    lines += [".SH DESCRIPTION", *paragraphs(CHAIN), ".SH COMMANDS"]
    for name, entry in entries.items():
        lines += [".TP", f"\\fB{quote(name)}\\fR(1)", quote(summary(entry))]
    lines += [".SH THE STREAM", *paragraphs(STREAM), ".SH RECORDS", *record_fields(" ".join(KINDS))]
    lines += [".SH EXIT STATUS"]
    for code, text in EXIT_DOC.items():
        lines += [".TP", f"\\fB{int(code)}\\fR", quote(text)]
    return "\n".join(lines) + "\n"


def summary(entry: Any) -> str:
    """First sentence of a command's help."""
    doc = inspect.cleandoc(typer.main.get_command(entry.app).help or "")
    return " ".join(doc.partition("\n\n")[0].split())


def table(entries: dict[str, Any]) -> str:
    """The README's table of commands."""
    rows = [f"| `{name}` | {summary(entry)} |" for name, entry in entries.items()]
    return "\n".join([MARK[0], "", "| command | what it does |", "|---|---|", *rows, "", MARK[1]])


def with_table(readme: str, made: str) -> str:
    """README text with the table between its marks replaced."""
    before, _, rest = readme.partition(MARK[0])
    _, _, after = rest.partition(MARK[1])
    return before + made + after


def main(arguments: list[str], say: Callable[[str], object] = print) -> int:
    """Write or check; the number of files that differ."""
    check = "--check" in arguments
    folder, readme = (Path(a) for a in arguments if a != "--check")
    entries = {name: load(target) for name, target in entry_points().items()}
    wanted = {folder / f"{name}.1": page(name, entry) for name, entry in entries.items()}
    wanted[folder / "ghtools.7"] = overview(entries)
    wanted[readme] = with_table(readme.read_text(), table(entries))
    stale = [path for path in folder.glob("*") if path not in wanted]
    differ = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in differ if check else []:
        say(f"{path} is not what `make man` writes")
    for path in stale if check else []:
        say(f"{path} belongs to no command")
    if check:
        return len(differ) + len(stale)
    folder.mkdir(exist_ok=True)
    for path in differ:
        path.write_text(wanted[path])
    for path in stale:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
