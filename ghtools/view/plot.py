# SPDX-License-Identifier: Apache-2.0
"""A picture of a job: iteration time by rank, slow episodes, phases; PNG or SVG by the file's suffix."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ghtools.stream.errors import GhError, MissingError
from ghtools.stream.records import PHASE_CODE, Record

from . import text
from .plot_data import Episode, PlotData, ceiling, collect, title

# The palette of Okabe and Ito: told apart with any colour vision.
BLUE, SKY, GREEN, ORANGE, VERMILLION, PURPLE, BLACK = (
    "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#222222",
)  # fmt: skip
GREY = "#777777"
RANK_COLOURS = (BLUE, ORANGE, SKY, PURPLE, "#8C6D31", "#5B4B8A", BLACK, "#7FB069")
MAX_LINES = 16  # ranks drawn one by one; more are a median, a band and those that stand out
MAX_OUTLIERS = 5
STANDS_OUT = 1.10
LONG_GAP = 10  # a line is broken where so many usual steps are without a value
MAX_NOTES = 12  # slow times that are described in the picture
MARKS = {"warmup": ("v", "warm-up"), "outlier": ("o", "evaluation, checkpoint"), "restart": ("X", "restart")}
SUFFIXES = (".png", ".svg", ".pdf")


def draw(records: Iterable[Record], path: Path, *, log: bool = False) -> None:
    """Draw the records of a stream into `path`. Raises MissingError without matplotlib, GhError for the suffix."""
    check(path)
    save(collect(records), path, log=log)


def check(path: Path) -> None:
    """Say early what would fail late: an unknown suffix, no matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise GhError(f"cannot draw into {path}", "its suffix names no picture", "a name that ends in .png or .svg")
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingError(
            "cannot draw", "matplotlib is not installed", "`pip install 'ghtools[plot]'`, or --term"
        ) from None
    del mpl


def save(data: PlotData, path: Path, *, log: bool = False) -> None:
    """Draw collected data into `path`; the file appears whole or not at all."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9.0, "svg.hashsalt": "ghtools", "svg.fonttype": "none", "axes.spines.right": False,
        "axes.spines.top": False, "path.simplify": True,
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
        _paint(figure, data, log)
        made = io.BytesIO()
        dates: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(made, format=path.suffix.lower()[1:], metadata=dates[path.suffix.lower()])
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(made.getvalue())
        part.replace(path)
    except OSError as error:
        raise MissingError(f"cannot write {path}", (error.strerror or str(error)).lower()) from None


def _paint(figure: Any, data: PlotData, log: bool) -> None:
    axes = figure.add_subplot()
    head, said = title(data)
    axes.set_title(head, loc="left", fontsize=11, fontweight="bold", pad=34)
    axes.annotate(
        said, (0, 1), (0, 21), xycoords="axes fraction", textcoords="offset points", fontsize=9, color="#444444"
    )
    axes.set_xlabel("iteration")
    if not data.iterations:
        axes.text(0.5, 0.5, "no iterations in this stream", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_yticks([])
        return
    unit, scale = _unit(data)
    axes.set_ylabel(f"iteration time ({unit})")
    x = data.x()
    ranks, low, high = data.lines()
    low, high = low / scale, high / scale
    if len(ranks) <= MAX_LINES:
        _each(axes, x, ranks, low, high, data.width)
    else:
        _many(axes, x, ranks, low, high)
    top = _limits(axes, data, low, high, scale, log)
    _marks(axes, data, x, scale, top)
    axes.set_xlim(x[0] - 0.5 - 0.01 * len(x) * data.width, x[-1] + 0.5 + 0.01 * len(x) * data.width)
    for episode in data.shown:
        _episode(axes, data, episode)
    _planted(axes, data)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    _clock(axes, data, x)
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1 or ranks != [-1]:
        axes.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=8,
            handlelength=1.4, labelspacing=0.35,
        )  # fmt: skip


def _unit(data: PlotData) -> tuple[str, float]:
    """Unit of the y axis and its size in ns, so that most numbers have up to three digits."""
    _, _, high = data.lines()
    values = high[np.isfinite(high)]
    middle = float(np.median(values)) if len(values) else 1e6
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if middle >= size:
            return unit, size
    return "ns", 1.0


def _each(axes: Any, x: Any, ranks: list[int], low: Any, high: Any, width: int) -> None:
    """A line a rank. Where a bucket holds several iterations the line runs through its least and greatest."""
    thin = 1.1 if len(x) < 400 else 0.8
    for place, rank in enumerate(ranks):
        if width == 1:
            at, value = x, low[place]
        else:
            at = np.repeat(x, 2)
            value = np.stack([low[place], high[place]], axis=1).ravel()
        at, value = joined(at, value)
        colour = RANK_COLOURS[place] if len(ranks) <= len(RANK_COLOURS) else _spread(place, len(ranks))
        name = "job" if rank == -1 else f"rank {rank}"
        axes.plot(at, value, color=colour, linewidth=thin, label=name, zorder=3, alpha=0.9)


def joined(at: Any, value: Any) -> tuple[Any, Any]:
    """Points of a line without those that have no value; long stretches without any stay a gap."""
    there = np.isfinite(value)
    at, value = at[there], value[there]
    if len(at) < 3:
        return at, value
    steps = np.diff(at)
    cuts = np.flatnonzero(steps > LONG_GAP * np.median(steps[steps > 0])) + 1
    return np.insert(at, cuts, np.nan), np.insert(value, cuts, np.nan)


def _spread(place: int, count: int) -> Any:
    import matplotlib as mpl

    return mpl.colormaps["cividis"](0.92 * place / max(1, count - 1))


def _many(axes: Any, x: Any, ranks: list[int], low: Any, high: Any) -> None:
    """Median and band over ranks, and the few ranks that stand out from them."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # buckets without any value
        middle = np.nanmedian((low + high) / 2, axis=0)
        under = np.nanquantile(low, 0.05, axis=0)
        over = np.nanquantile(high, 0.95, axis=0)
        apart = np.nanquantile(low / middle, 0.95, axis=1)
    band = np.isfinite(under) & np.isfinite(over)
    axes.fill_between(
        x[band], under[band], over[band], color=SKY, alpha=0.45, linewidth=0, label="90 % of ranks", zorder=2
    )
    axes.plot(*joined(x, middle), color=BLUE, linewidth=1.2, label=f"median of {len(ranks)}", zorder=4)
    outside = [place for place in np.argsort(-apart)[:MAX_OUTLIERS] if apart[place] > STANDS_OUT]
    for number, place in enumerate(sorted(outside)):
        colour = (ORANGE, PURPLE, BLACK, "#8C6D31", "#5B4B8A")[number]
        axes.plot(*joined(x, high[place]), color=colour, linewidth=0.9, label=f"rank {ranks[place]}", zorder=3)


def _limits(axes: Any, data: PlotData, low: Any, high: Any, scale: float, log: bool) -> float:
    """Set the y axis so that a few extreme points do not flatten the rest; returns its upper end."""
    values = high[np.isfinite(high)]
    floor = low[np.isfinite(low)]
    if not len(values):
        values = floor = data.marks[np.isfinite(data.marks)] / scale
    if not len(values):
        values = floor = np.array([1.0])
    greatest = float(values.max())
    top = ceiling(data, values * scale) / scale
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if str(value)[0] in "25" else "")
        top = 1.3 * max(greatest, float(np.nanmax(np.append(data.marks / scale, greatest))))
        axes.set_ylim(0.8 * float(floor.min()), top)
    else:
        axes.set_ylim(0, top)
        beyond = values > top
        if beyond.any():
            note = f"{text.plural(int(beyond.sum()), 'point')} above, up to {text.duration(greatest * scale)}"
            axes.annotate(
                note, (1, 1), (-2, -2),
                xycoords="axes fraction", textcoords="offset points", ha="right", va="top", fontsize=8, color=GREY,
                zorder=7, bbox={"boxstyle": "square,pad=0.2", "facecolor": "white", "alpha": 0.8, "linewidth": 0},
            )  # fmt: skip
    return top


def _marks(axes: Any, data: PlotData, x: Any, scale: float, top: float) -> None:
    """Iterations that are no ordinary ones; those above the axis sit at its edge."""
    for phase, (marker, name) in MARKS.items():
        value = data.marks[PHASE_CODE[phase], : len(x)] / scale
        there = np.isfinite(value)
        if there.any():
            axes.scatter(
                x[there], np.minimum(value[there], 0.985 * top), s=14, marker=marker, facecolors="white",
                edgecolors=GREY, linewidths=0.8, label=name, zorder=5,
            )  # fmt: skip


def _episode(axes: Any, data: PlotData, episode: Episode) -> None:
    """Shade one slow time; a solid line and a down-turned triangle at onset, a dashed one at relief."""
    last = data.first + data.iterations - 1
    end = episode.end if episode.end is not None else last + 1
    axes.axvspan(episode.begin - 0.5, end - 0.5, color=VERMILLION, alpha=0.10, linewidth=0, zorder=0)
    first = episode is data.shown[0]
    above = axes.get_xaxis_transform()
    axes.axvline(episode.begin - 0.5, color=VERMILLION, linewidth=1.3, zorder=2, label="onset" if first else None)
    axes.plot(episode.begin - 0.5, 1, marker="v", color=VERMILLION, transform=above, clip_on=False, zorder=6, ms=6)
    ended = [e for e in data.shown if e.end is not None]
    if episode.end is not None:
        label = "relief" if episode is ended[0] else None
        axes.axvline(end - 0.5, color=GREEN, linewidth=1.3, linestyle=(0, (4, 2)), zorder=2, label=label)
        axes.plot(end - 0.5, 1, marker="^", color=GREEN, transform=above, clip_on=False, zorder=6, ms=6)
    if len(data.shown) > MAX_NOTES:
        return
    note = [text.per_cent(episode.ratio), f"{text.duration(data.loss_ns(episode))} lost"]
    if episode.rank >= 0:
        note.insert(0, f"rank {episode.rank}")
    wide = (end - episode.begin) / max(1, data.iterations) > 0.12
    axes.annotate(
        ("\n" if wide else ", ").join(note), (episode.begin - 0.5, 0.04 if wide else 0.97), (4, 0), xycoords=above,
        textcoords="offset points", va="bottom" if wide else "top", ha="left", rotation=0 if wide else 90,
        fontsize=8, color="#8a3b00", zorder=6,
    )  # fmt: skip


def _planted(axes: Any, data: PlotData) -> None:
    """What a synthetic stream says it has: a strip along the bottom, so that it can be compared."""
    for number, planted in enumerate(data.planted):
        end = planted.end if planted.end is not None else data.first + data.iterations
        axes.axvspan(
            planted.begin - 0.5, end - 0.5, ymin=0, ymax=0.022, color=BLACK, alpha=0.55, linewidth=0, zorder=1,
            label="planted" if number == 0 else None,
        )  # fmt: skip


def _clock(axes: Any, data: PlotData, x: Any) -> None:
    """Time of day along the top, at the ticks of the bottom."""
    t_ns = data.t_ns[: len(x)]
    there = t_ns < np.iinfo(np.int64).max
    if not there.any() or (t_ns[there] == t_ns[there][0]).all():
        return
    limits = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if x[0] - 0.5 <= tick <= x[-1] + 0.5]
    base = int(t_ns[there][0])
    since = np.interp(ticks, x[there], (t_ns[there] - base).astype(float))
    top = axes.secondary_xaxis("top")
    top.set_xticks(ticks, [text.clock(base + int(ns)) for ns in since])
    top.tick_params(length=0, labelsize=7.5, labelcolor=GREY, pad=1)
    top.spines["top"].set_visible(False)
    axes.set_xlim(*limits)
