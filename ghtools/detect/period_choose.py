# SPDX-License-Identifier: Apache-2.0
"""Which level of repetition is the iteration: the judgement over a window of calls of one rank.

From the shortest level up, the first that a training iteration can be. A level is too short if calls that
belong to training recur outside its pieces (gradients reduced on another communicator, the root unit, the
first gather of the forward pass), or if its pieces differ by position inside a longer level. What recurs
outside and is no part of training (evaluation, logging, a checkpoint) does not count against it. What
neither calls nor times decide is "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ghtools.detect import period_pause as pause
from ghtools.detect import period_timing as timing
from ghtools.detect.period_levels import LONG_ORDERS, Level, cuts, find_levels
from ghtools.detect.period_symbols import I64, REDUCING, SCALAR_BYTES, Columns
from ghtools.stream.records import OP_CODE

MIN_REPEATS, CLEAR_REPEATS, POOR_REPEATS = 8, 5, 64
MIN_SPAN_NS = 2_000_000_000  # a shorter window, while more may come, may be one forward pass
FIRST_BY = 0.4  # the pattern must have begun in this first part of the window
ALIKE, ALIKE_CALM, CALM = 48, 24, 0.1  # equal calls needed to call them iterations, in general and with steady gaps
ALIKE_SPAN_NS = 10_000_000_000  # and over so long a time: quick calls may be parts of an iteration
PAUSE_CLEAR = 0.25  # of a piece: a pause outside that is this long is more than a line of a log
PAUSE_LEAST = 0.05  # of a piece: less is noise
PAUSE_FOUND = 0.02  # the same where it repeats clearly and the pieces have no pause of their own
PAUSE_TWOS = 0.01  # the same where it comes after 2, 4, 8, ... pieces, as an optimizer's step does
# Numbers of micro-batches in a step; logs and evaluation come every 10, 25, 100 steps.
COUNTS = frozenset([*range(2, 10), 12, 16, 24, 32, 48, 64, 96, 128])
MAX_MICRO = 160
PAUSE_SHARE = 0.3  # of all time: nobody evaluates for so long
SMALL_PIECE = 8  # a piece of at most so many calls may be one layer
SIDE = 64  # a reducing call this much smaller than the largest is no proof of training
_MOVES = frozenset(OP_CODE[o] for o in ("send", "recv", "all_to_all"))
_RELAY = frozenset(OP_CODE[o] for o in ("send", "recv"))
_GATHER = OP_CODE["all_gather"]


@dataclass
class Choice:
    """What was decided: state found, wait (more calls needed) or unknown; the level and how often it repeats."""

    state: str
    level: Level | None = None
    every: int = 1  # pieces of the level in one iteration (told by time)
    phase: int = 0  # number of the piece, of `every`, with which an iteration begins
    method: str = "anchors"
    why: str = ""
    candidates: list[dict[str, Any]] = field(default_factory=list)
    window: int = 0  # index in the window given from which on it was judged


@dataclass
class _Facts:
    """What recurs outside a level's pieces."""

    strong: int = 0  # distinct training calls outside
    weak: int = 0  # distinct calls outside that may be logging or evaluation
    weak_count: int = 0  # occurrences of the most frequent of these
    same_share: float = 0.0  # share of the window outside, of calls that also occur inside
    same_like: float = 0.0  # 1 if these are in the same proportions as inside, 0 if some are not among them
    reduces: bool = False  # a large reducing call inside
    kinds: int = 0  # distinct calls inside
    relay: bool = False  # it sends and receives, each kind once: one micro-batch of a pipeline does
    odd_share: float = 0.0  # share of the pieces that hold a modal one and more of the same calls


def _forgotten(c: Columns) -> int:
    """Index after the last call that is plainly never made again (start-up, the first DDP buckets)."""
    n = len(c)
    _, inverse, count = np.unique(c.h, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(count)
    last = order[ends - 1]
    step = np.zeros(n, np.int64)
    step[1:] = np.where(inverse[order[1:]] == inverse[order[:-1]], np.diff(order), 0)
    widest = np.maximum.reduceat(step, ends - count)
    quiet = n - last
    once = (count <= 2) & (quiet > max(16, n // 4))
    gone = once | ((count > 2) & (quiet > 4 * widest) & (quiet > n // 4) & (quiet > 16))
    return int(last[gone].max()) + 1 if gone.any() else 0


def _facts(c: Columns, level: Level, inverse: NDArray[np.int64], first: NDArray[np.int64]) -> _Facts:
    kinds = len(first)
    lo, hi = int(level.starts[0]), min(len(c), int(level.starts[-1]) + level.calls)
    inside = level.inside
    n_in = np.bincount(inverse[inside], minlength=kinds)
    n_out, odd_share = _residue(c, level, inverse, kinds)
    op, size, comm = c.op[first], c.bytes[first], c.comm[first]
    reducing = np.isin(op, list(REDUCING)) & (size > SCALAR_BYTES)
    within = n_in > 0
    out = _Facts(reduces=bool((reducing & within).any()), kinds=int(within.sum()), odd_share=odd_share)
    relay = within & np.isin(op, list(_RELAY))
    out.relay = bool(relay.any() and (n_in[relay] <= 1.05 * np.count_nonzero(inside) / level.calls).all())
    homes = {(int(o), int(m)) for o, m in zip(op[within], comm[within], strict=True)}
    comms = {m for _, m in homes}
    biggest = int(size[reducing & within].max(initial=0))
    bulk = int(size[within].max(initial=0))
    often = max(3, level.count // MAX_MICRO)  # what comes more rarely is no part of a step of micro-batches
    for i in np.flatnonzero(~within & (n_out >= often)):
        o, b, m = int(op[i]), int(size[i]), int(comm[i])
        if reducing[i]:
            strong = (o, m) not in homes or b * SIDE >= biggest
        elif o in _MOVES:
            strong = b > SCALAR_BYTES
        elif o == _GATHER:
            strong = b > SCALAR_BYTES and b * 2 >= bulk and (m not in comms or not out.reduces or (o, m) in homes)
        else:
            strong = False
        if strong:
            out.strong += 1
        else:
            out.weak += 1
            out.weak_count = max(out.weak_count, int(n_out[i]))
    same = within & (n_out > 0)
    out.same_share = float(n_out[same].sum()) / max(1, hi - lo)
    if within.any():
        ratio = n_out[within] / n_in[within]
        out.same_like = float(ratio.min() / max(ratio.max(), 1e-12))
    return out


def _residue(c: Columns, level: Level, inverse: NDArray[np.int64], kinds: int) -> tuple[NDArray[np.int64], float]:
    """How often each kind of call is made beyond the level's pieces, shape (kinds,), and the share of pieces
    that hold a modal one and more of the same calls.

    A piece that holds a modal one and more counts with what is more; so does one that lacks a call or two.
    """
    modal = np.bincount(inverse[level.starts[0] : level.starts[0] + level.calls], minlength=kinds)
    at = cuts(c, level)
    lost = np.cumsum(c.broken)
    odd = ~np.isin(at[:-1], level.starts) & (lost[at[1:]] == lost[at[:-1]])  # what was lost is not known
    piece = np.searchsorted(at, np.arange(at[0], at[-1]), "right") - 1
    take = odd[piece]
    piece, kind = piece[take], inverse[at[0] : at[-1]][take]
    key, count = np.unique(piece * kinds + kind, return_counts=True)
    piece, kind = key // kinds, key % kinds
    shared = np.bincount(piece, weights=np.minimum(count, modal[kind]), minlength=len(at))
    holds = shared[piece] >= 0.9 * level.calls
    beyond = np.where(holds, np.maximum(count - modal[kind], 0), count)
    more = np.unique(piece[holds & (beyond > 0) & (modal[kind] > 0)])
    return np.bincount(kind, weights=beyond, minlength=kinds).astype(np.int64), len(more) / max(1, len(odd))


def _row(level: Level, why: str, times: int = 1) -> dict[str, Any]:
    return {
        "calls": level.calls * times, "dur_ns": level.dur_ns * times, "share": round(level.share, 3),
        "repeats": level.count // times, "why": why,
    }  # fmt: skip


def choose(c: Columns, final: bool = False, repeats: int = 0, reduces: bool = False) -> Choice:
    """The iteration in the window `c`.

    `final`: no more calls will come, so decide on what is there. `repeats` (> 0) replaces the number of
    repeats needed, as when a known job re-arms; `reduces` then asks for a large reducing call inside.
    """
    begin = _forgotten(c)
    if begin:
        c = c.cut(begin)
    if len(c) < 4:
        return Choice("wait", why="too few calls")
    out = _among(c, find_levels(c, repeats or 3), final, repeats, reduces)
    if out.level is None and len(c) >= 32:
        out = _among(c, find_levels(c, repeats or 3, orders=LONG_ORDERS), final, repeats, reduces)
    out.window = begin
    return out


def _among(c: Columns, levels: list[Level], final: bool, repeats: int, reduces: bool) -> Choice:
    """The shortest of the levels that an iteration can be."""
    _, first, inverse = np.unique(c.h, return_index=True, return_inverse=True)
    rows: list[dict[str, Any]] = []
    verdict = Choice("wait", why="no pattern repeats yet")
    for i, level in enumerate(levels):
        facts = _facts(c, level, inverse, first)
        at = cuts(c, level)
        longer = next((b for b in levels[i + 1 :] if b.calls > level.calls + 1 and b.share >= level.share * 0.6), None)
        state, why = _judge(c, level, longer, facts, at)
        rows.append(_row(level, why))
        if state == "reject":
            continue
        if state == "unclear":
            verdict = Choice("unknown", level=level, why=why)
            break
        verdict = _enough(c, level, facts, final, repeats) or _in_time(c, level, facts, at, final)
        if reduces and not facts.reduces and level.count < POOR_REPEATS:
            verdict.state = "wait"
        verdict.why = rows[-1]["why"] = verdict.why or why
        break
    verdict.candidates = rows[::-1][:6]
    return verdict


def _judge(c: Columns, level: Level, longer: Level | None, facts: _Facts, at: I64) -> tuple[str, str]:
    """accept, reject or unclear; and why."""
    if facts.strong:
        return "reject", f"{facts.strong} kinds of training calls are made outside"
    nested = level.calls >= 2 * facts.kinds > 2  # it has repetitions of its own
    if facts.same_share >= 0.2 and level.calls <= SMALL_PIECE and not nested:
        return "reject", "its calls are also made in another order outside"
    own = pause.own_pause(c, level)
    if facts.same_share >= 0.05 and facts.odd_share >= 0.3:
        return "reject", "its calls are also made in other pieces as often"
    if facts.same_share >= 0.01 and facts.same_like > 0.5 and own < pause.DISTINCT:
        return "reject", "the same mixture of calls is made outside"
    if not facts.weak or longer is None:
        return "accept", "all training calls are inside"
    if level.calls == 1:
        k, _ = timing.every(np.diff(c.t[at]))
        many = pause.cuts_in(at, longer)
        if 1 < k < 0.7 * many and not (accumulates(many // k) and pause.blocks_differ(c, longer, at, k, PAUSE_CLEAR)):
            return "accept", ""
    if pause.by_position(c, level, longer):
        return "reject", "its durations depend on the place in a longer pattern"
    if not facts.reduces and not nested:
        return "reject", "it reduces nothing, and other calls are made outside"
    out = pause.outside(c, level, longer, at)
    if level.calls == 1 and out.share >= PAUSE_SHARE:
        return "reject", "most of the time passes outside"
    many = pause.cuts_in(at, longer)
    twos = many & (many - 1) == 0 and accumulates(many)
    if out.excess < (PAUSE_TWOS if twos else PAUSE_LEAST):
        return "accept", "other calls outside are no part of training"
    if level.calls == 1 and facts.reduces and not accumulates(many):
        return "accept", "the pauses outside are those of logs or evaluation"
    if own >= pause.DISTINCT and not (PAUSE_CLEAR <= out.excess <= 1.0 and twos):
        return "accept", "the pauses outside are those of logs or evaluation"
    if out.excess <= 1.0:
        return "reject", "the longest pause is outside"
    return "unclear", "the pause outside may be the optimizer's step or an evaluation"


def _enough(c: Columns, level: Level, facts: _Facts, final: bool, repeats: int) -> Choice | None:
    """Why it is too early to believe in the level, None if it is not."""
    rich = facts.reduces and level.calls > 1 and level.share > 0.85
    need = repeats or (CLEAR_REPEATS if rich else MIN_REPEATS)
    if not facts.reduces and facts.kinds < 2:
        need = POOR_REPEATS
    if facts.relay and not repeats and pause.own_pause(c, level) < pause.DISTINCT:
        need = MAX_MICRO
    if final:
        need = min(need, 3)
    why = ""
    if level.count < need:
        why = f"repeated {level.count} times, {need} are needed"
    elif level.starts[0] > FIRST_BY * len(c) and level.count < POOR_REPEATS:
        why = "it began late in the window"
    elif int(c.t[-1] - c.t[0]) < MIN_SPAN_NS and not final and not repeats:
        why = "the window is short"
    return Choice("wait", level=level, why=why) if why else None


def _in_time(c: Columns, level: Level, facts: _Facts, at: I64, final: bool) -> Choice:
    """Whether several pieces make one iteration, told by time: equal calls, or a pause every k-th piece."""
    out = Choice("found", level=level)
    if level.calls > 1:
        return _with_pauses(c, level, facts, at, final)
    dur = np.diff(c.t[at])
    k, _ = timing.every(dur)
    if facts.kinds == 1:
        out.method = "timing"
        if np.ptp(c.bytes[level.starts]) > 0:
            return Choice("unknown", level=level, why="calls of one kind in all sizes")
        # What repeats after 8 or 16 of them is seen only in a few times as many; steady gaps need fewer.
        calm = timing.spread(dur) < CALM
        few = len(dur) < (ALIKE_CALM if calm else ALIKE) or int(dur.sum()) < ALIKE_SPAN_NS
        if k == 1 and few and not final:
            return Choice("wait", level=level, method="timing", why="more equal calls are needed to call them alike")
        if k == 0:
            state = "wait" if len(dur) < 48 and not final else "unknown"
            return Choice(
                state, level=level, method="timing", why="equal calls whose gaps neither repeat nor are alike"
            )
    if k < 2:
        return out
    if len(dur) // k < (3 if final else 4):
        return Choice("wait", level=level, method="timing", why=f"repeats in time every {k}")
    place, excess, share = timing.long_position(dur, k)
    if pause.one_long(dur, k) and share < PAUSE_SHARE:
        # The optimizer's step costs less than a piece, an evaluation or a checkpoint more.
        if not accumulates(k):
            out.why = f"a pause after every {k}, as for a log or an evaluation"
            return out
        if excess > 1.0:
            return Choice("unknown", level=level, every=k, method="timing", why=f"a long pause after every {k}")
    return _composed(level, k, place)


def _composed(level: Level, k: int, place: int) -> Choice:
    """k pieces are one iteration; the long pause is in piece `place`, so that the next one begins it."""
    why = f"times repeat every {k} pieces"
    return Choice("found", level=level, every=k, phase=(place + 1) % k, method="timing", why=why)


def _with_pauses(c: Columns, level: Level, facts: _Facts, at: I64, final: bool) -> Choice:
    """For pieces of several calls: whether a pause with every k-th of them is the optimizer's step."""
    out = Choice("found", level=level)
    own = pause.own_pause(c, level) >= pause.DISTINCT
    found = pause.repeats(c, level, at, COUNTS)
    if found is None or found.excess < (PAUSE_LEAST if own else PAUSE_FOUND):
        if not facts.reduces and level.calls < 2 * facts.kinds:
            state = "wait" if level.count < 8 * POOR_REPEATS and not final else "unknown"
            return Choice(state, level=level, why="it reduces nothing and has no pause: it may be one micro-batch")
        return out
    if own and facts.weak:
        return out
    if found.excess > 1.0 and own:
        return out
    if found.excess > 1.0 + PAUSE_SHARE * found.every:
        return Choice("unknown", level=level, every=found.every, why=f"a long pause after every {found.every}")
    return _composed(level, found.every, found.place)


def accumulates(k: int) -> bool:
    """Whether k is how people count micro-batches of a step, rather than steps between two logs or checkpoints."""
    return k in COUNTS
