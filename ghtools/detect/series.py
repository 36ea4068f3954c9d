# SPDX-License-Identifier: Apache-2.0
"""One rank's state on the hot path, in C (csrc/native/series.c): values, posterior, reasons to look.

The classes mirror the C structs; tests/detect/test_bocd.py compares the offsets.
"""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ghtools.job.native import lib
from ghtools.stream.errors import InputError
from ghtools.stream.records import Iters

YOUNG, OLD, KEPT, MEMORY = 32, 16, 256, 96
LANES = YOUNG + OLD

# Bits of News.why.
WAKE, NEAR, LOOK, GUARD, FOLLOW, RESTART, REARM = 1, 2, 4, 8, 16, 32, 64

Floats = NDArray[np.float32]


class _Bocd(c.Structure):
    _fields_ = (
        *((name, c.c_float * LANES) for name in ("w", "mu", "beta", "log_beta")),
        ("old_n", c.c_float * OLD),
        ("head", c.c_int32),
        ("keeper", c.c_int32),
    )


class State(c.Structure):
    """struct gh_series; see csrc/native/series.h for what each field means."""

    _fields_ = (
        *((name, c.c_int64) for name in ("count", "wake_at", "look_from", "near_from", "guard_from")),
        *((name, c.c_int64) for name in ("last_index", "last_t_ns")),
        *((name, c.c_int64) for name in ("n_bad", "n_back", "n_repeat", "n_gap", "n_skipped")),
        ("total_ns", c.c_double),
        *((name, c.c_int32) for name in ("armed", "follow", "back_run", "n_filter")),
        *((name, c.c_float) for name in ("raw1", "raw2", "centre", "per_scale", "level", "near_by")),
        *((name, c.c_float) for name in ("slow", "anchor", "guard_by", "look_min", "near_min")),
        *((name, c.c_float) for name in ("mass_near", "mass_look")),
        ("look_by", c.c_float),
        ("bocd", _Bocd),
        ("y", c.c_float * KEPT),
        ("index", c.c_int64 * KEPT),
        ("t_ns", c.c_int64 * KEPT),
        ("total_at", c.c_double * KEPT),
    )


LAYOUT = (
    "count", "wake_at", "look_from", "n_bad", "total_ns", "armed", "centre", "slow", "look_min", "mass_near",
    "bocd", "y", "index", "t_ns", "total_at",
)  # fmt: skip


class News(c.Structure):
    """struct gh_news: the value at which the hot path stopped, and why."""

    _fields_ = (
        *((name, c.c_int64) for name in ("at", "index", "t_ns", "dur_ns")),
        ("why", c.c_int32),
        ("mode", c.c_int32),
        ("near", c.c_float),
        ("look", c.c_float),
    )
    at: int
    index: int
    t_ns: int
    dur_ns: int
    why: int
    mode: int
    near: float
    look: float


for _name, _result in (("size", c.c_int64), ("layout", c.c_int64), ("sound", c.c_int), ("feed", c.c_int64)):
    getattr(lib, f"gh_series_{_name}").restype = _result
lib.gh_series_arm.argtypes = (c.c_void_p, c.c_void_p, c.c_float, c.c_float)
lib.gh_series_replay.argtypes = (c.c_void_p, c.c_void_p, c.c_int64)
lib.gh_series_feed.argtypes = (*(c.c_void_p,) * 2, c.c_int64, *(c.c_void_p,) * 5)
lib.gh_model_size.restype = c.c_int64
lib.gh_model_make.argtypes = (c.c_void_p, *(c.c_double,) * 4)
lib.gh_bocd_posterior.argtypes = (c.c_void_p, c.c_void_p)


@dataclass(frozen=True)
class Prior:
    """The model: constant hazard and a normal-inverse-gamma prior in units of the warm-up's noise.

    A new level has mean ~ N(0, s2 / kappa) about the warm-up level and noise s2 ~ InvGamma(alpha, beta);
    the predictive distribution of a run is then a Student t (ALGORITHMS.md section 1.5).
    """

    hazard: float = 1 / 1000
    kappa: float = 0.01
    alpha: float = 10.0
    beta: float = 10.0


class Model:
    """The prior's tables, made once for all series."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self._memory = (c.c_char * lib.gh_model_size())()
        self.address = c.addressof(self._memory)
        lib.gh_model_make(self.address, prior.hazard, prior.kappa, prior.alpha, prior.beta)


class Series:
    """The values and the posterior of one rank. `at` counts accepted values over its whole life."""

    def __init__(self, model: Model, state: bytes | None = None) -> None:
        """A new series, or one read back; InputError if `state` cannot be one."""
        self.model = model
        if state is None:
            self.state = State()
            self.address = c.addressof(self.state)
            lib.gh_series_begin(c.c_void_p(model.address), c.c_void_p(self.address))
        else:
            if len(state) != c.sizeof(State):
                raise InputError("cannot use the state", f"a series of {len(state)} bytes, not {c.sizeof(State)}")
            self.state = State.from_buffer_copy(state)
            self.address = c.addressof(self.state)
            if not lib.gh_series_sound(c.c_void_p(self.address)):
                raise InputError("cannot use the state", "a series in it is damaged")
        self._y: Floats = np.frombuffer(self.state.y, np.float32)
        self.news = News()
        self._news_address = c.addressof(self.news)

    def feed(self, index: int, t_ns: int, dur_ns: int, phase: int, n: int, start: int) -> int:
        """Take values from `start` on; the columns are addresses. Returns where it stopped; see `news`."""
        return start + int(
            lib.gh_series_feed(
                self.model.address,
                self.address,
                n - start,
                index + 8 * start,
                t_ns + 8 * start,
                dur_ns + 8 * start,
                phase + start,
                self._news_address,
            )
        )

    def arm(self, centre: float, scale: float, replay_from: int) -> None:
        """Start the posterior with this standardisation, then give it the values kept from `replay_from` on."""
        lib.gh_series_arm(self.model.address, self.address, centre, scale)
        lib.gh_series_replay(self.model.address, self.address, replay_from)

    def logs(self, begin: int, end: int) -> Floats:
        """Log durations of values begin..end-1 (those still kept), oldest first."""
        count = self.state.count
        begin, end = max(begin, count - KEPT, 0), min(end, count)
        if end <= begin:
            return np.empty(0, np.float32)
        first, last = begin % KEPT, (end - 1) % KEPT
        if first <= last:
            return self._y[first : last + 1]
        return np.concatenate((self._y[first:], self._y[: last + 1]))

    def index_at(self, at: int) -> int:
        """Iteration index of value `at`."""
        return int(self.state.index[at % KEPT])

    def t_at(self, at: int) -> int:
        """Begin of value `at`, ns."""
        return int(self.state.t_ns[at % KEPT])

    def total_before(self, at: int) -> float:
        """Sum of the durations of all values before `at`, ns (at > 0 must still be kept)."""
        return float(self.state.total_at[(at - 1) % KEPT]) if at > 0 else 0.0

    def posterior(self) -> Floats:
        """P(r) for r = 0 .. 31, then the mass of all longer runs (33 values)."""
        out = np.empty(YOUNG + 1, np.float32)
        lib.gh_bocd_posterior(self.address, out.ctypes.data)
        return out

    def to_bytes(self) -> bytes:
        """The whole state, for `Series(model, state=...)`."""
        return bytes(self.state)


def address(column: NDArray[np.generic], dtype: str) -> tuple[int, NDArray[np.generic]]:
    """Address of a contiguous column of that dtype, and the array that keeps it alive."""
    if column.dtype.str != dtype or not column.flags.c_contiguous:
        column = np.ascontiguousarray(column, dtype)
    return column.__array_interface__["data"][0], column


def columns(rec: Iters) -> tuple[tuple[int, int, int, int], tuple[NDArray[np.generic], ...]]:
    """Addresses of index, t_ns, dur_ns and phase, and the arrays behind them."""
    made = [address(rec.index, "<i8"), address(rec.t_ns, "<i8"), address(rec.dur_ns, "<i8"), address(rec.phase, "|u1")]
    alive = tuple(item[1] for item in made)
    if len({len(column) for column in alive}) != 1:
        raise ValueError("the columns of a batch must be equally long")
    return (made[0][0], made[1][0], made[2][0], made[3][0]), alive
