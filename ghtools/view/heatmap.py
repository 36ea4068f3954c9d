# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom: ranks by groups, coloured by waiting an iteration; the row that stays pale is waited for."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.locate.groups import EDGE, Group
from ghtools.locate.history import Window
from ghtools.locate.lateness import name_of
from ghtools.locate.stage import ProfileStage
from ghtools.stream.errors import GhError, MissingError
from ghtools.stream.records import Head, Record, Suspect

from .plot import check

MAX_GROUPS = 24  # more are joined by name: one column for all tensor parallel groups, say
MAX_RANKS = 128  # more: those that wait least and most in some column
LAST_ITERS = 60


@dataclass
class HeatData:
    """`wait[r, g]`: waiting of a rank in a group, ms an iteration, NaN where it is no member."""

    ranks: list[int] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    wait: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    named: dict[int, str] = field(default_factory=dict)  # rank -> cause, of attributed suspects
    left_out: int = 0  # ranks that are not shown
    iters: int = 0
    job: str = ""


def collect(records: Iterable[Record]) -> HeatData:
    """Read a stream to its end; the last LAST_ITERS iterations count. Of several sections the last with data does."""
    made = HeatData()
    stage: ProfileStage | None = None
    said: dict[int, str] = {}
    job = ""

    def close() -> None:
        nonlocal made
        if stage is None:
            return
        _note(stage.finish(), said)
        profiler = stage.profiler
        history = profiler.durations if profiler.durations.blocks else profiler.arrivals
        numbers = history.numbers()
        if len(numbers):
            window = history.window(numbers[-LAST_ITERS:])
            made = table(window, {n: stage.groups.group(n) for n in range(len(stage.groups))})
            made.named, made.job = dict(said), job

    for record in records:
        if isinstance(record, Head):
            close()
            stage, said, job = ProfileStage(record), {}, record.job
        elif stage is not None:
            _note([record], said)  # what gh-profile said before, if it did
            _note(stage.feed(record), said)
    close()
    return made


def _note(records: Iterable[Record], said: dict[int, str]) -> None:
    for record in records:
        if isinstance(record, Suspect) and record.what == "rank" and record.ranks:
            if record.verdict == "attributed":
                said[record.ranks[0]] = record.cause
            elif record.verdict == "cleared":
                said.pop(record.ranks[0], None)


def table(window: Window, group_of: dict[int, Group]) -> HeatData:
    """Waiting by rank and group of a window."""
    members = window.members
    iters = max(window.iters, 1)
    numbers = [int(n) for n in np.unique(members.group)]
    label = {n: name_of(group_of[n]) for n in numbers}
    if len(numbers) > MAX_GROUPS:
        label = {n: _family(group_of[n]) for n in numbers}
    columns = list(
        dict.fromkeys(label[n] for n in sorted(numbers, key=lambda n: (group_of[n].kind, group_of[n].members)))
    )
    at = {name: i for i, name in enumerate(columns)}
    ranks = np.unique(members.rank)
    wait = np.full((len(ranks), len(columns)), np.nan)
    row = np.searchsorted(ranks, members.rank)
    col = np.array([at[label[int(n)]] for n in members.group], np.int64)
    flat = np.bincount(row * len(columns) + col, members.wait, wait.size).reshape(wait.shape) if len(row) else wait
    seen = np.zeros(wait.shape, bool)
    seen[row, col] = True
    wait[seen] = flat[seen] / 1e6 / iters
    keep = np.arange(len(ranks))
    if len(ranks) > MAX_RANKS:
        total = np.nansum(wait, axis=1)
        order = np.argsort(total, kind="stable")
        keep = np.sort(np.concatenate([order[: MAX_RANKS // 2], order[-MAX_RANKS // 2 :]]))
    return HeatData(ranks[keep].tolist(), columns, wait[keep], left_out=len(ranks) - len(keep), iters=window.iters)


def _family(group: Group) -> str:
    """What many groups have in common."""
    if group.kind == EDGE:
        return f"{group.name or 'pairs'}, {'up' if group.members[0] < group.members[1] else 'down'}"
    return group.name or f"groups of {group.size}"


def save(data: HeatData, path: Path) -> None:
    """Draw into `path` (.png, .svg or .pdf); the file appears whole or not at all.

    Raises MissingError without matplotlib, GhError for the suffix or where there is nothing to draw.
    """
    check(path)
    if not data.ranks or not data.columns:
        raise GhError("nothing to draw", "no call could be matched across ranks", "`gh-trace --profile` for durations")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 8.0, "svg.hashsalt": "ghtools", "svg.fonttype": "none"}):
        size = (3.5 + 0.42 * len(data.columns), 2.2 + 0.16 * max(len(data.ranks), 6))
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        _paint(figure, data)
        made = io.BytesIO()
        dates: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(made, format=path.suffix.lower()[1:], metadata=dates[path.suffix.lower()])
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(made.getvalue())
        part.replace(path)
    except OSError as error:
        raise MissingError(f"cannot write {path}", (error.strerror or str(error)).lower()) from None


def _paint(figure: Any, data: HeatData) -> None:
    axes = figure.add_subplot()
    image = axes.imshow(data.wait, aspect="auto", cmap="Blues", vmin=0.0, interpolation="nearest")
    axes.set_facecolor("#f4f4f4")  # no member
    names = [f"{rank}  {data.named[rank]}" if rank in data.named else str(rank) for rank in data.ranks]
    axes.set_yticks(range(len(names)), names)
    for label, rank in zip(axes.get_yticklabels(), data.ranks, strict=True):
        if rank in data.named:
            label.set_color("#D55E00")
            label.set_fontweight("bold")
    axes.set_xticks(range(len(data.columns)), data.columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_ylabel("rank")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    if data.wait.size <= 160:
        top = float(np.nanmax(data.wait)) if np.isfinite(data.wait).any() else 0.0
        for (row, col), value in np.ndenumerate(data.wait):
            if np.isfinite(value):
                dark = value > 0.6 * top
                axes.text(
                    col,
                    row,
                    f"{value:.0f}" if value >= 100 else f"{value:.2g}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="w" if dark else "#333333",
                )
    where = f"job {data.job}, " if data.job else ""
    axes.set_title(f"waiting in each group, {where}{data.iters} iterations", loc="left", fontsize=10, fontweight="bold")
    note = "who waits least is waited for" + (f"; {data.left_out} ranks between are not shown" if data.left_out else "")
    figure.colorbar(image, ax=axes, label=f"ms an iteration\n{note}", fraction=0.05, pad=0.02)
