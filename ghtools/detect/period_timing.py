# SPDX-License-Identifier: Apache-2.0
"""What the times say where the calls alone do not: repeating patterns in the durations of equal pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
MAX_EVERY = 1024  # longest repetition looked for, in pieces
CLEAR_ACF, NO_ACF = 0.5, 0.3  # autocorrelation that shows a repetition, and one that shows none
CHANCE = -8.0  # log10: a repetition less likely by chance is one
WILD, MANY = 0.5, 256  # spread (log) of gaps that takes so many of them to be called alike
MIN_EFFECT = 0.05  # spread of the positions' levels (log) below which they count as equal


def fold_effect(rows: F64) -> tuple[float, float]:
    """(F statistic, spread) of column effects in `rows`, shape (repeats, positions) of log durations.

    F compares the variance between column means with that within columns; about 1 if the positions are
    exchangeable. The spread is the standard deviation of the column medians.
    """
    n, k = rows.shape
    if n < 3 or k < 2:
        return 0.0, 0.0
    rows = rows - np.median(rows, axis=1, keepdims=True)
    mid = np.median(rows, axis=0)
    scale = 1.4826 * np.median(np.abs(rows - mid)) + 1e-9
    clipped = np.clip(rows, mid - 4 * scale, mid + 4 * scale)
    between = n * clipped.mean(axis=0).var(ddof=1)
    within = float(((clipped - clipped.mean(axis=0)) ** 2).sum() / ((n - 1) * k)) + 1e-12
    return float(between / within), float(np.std(mid))


def autocorrelation(x: F64, lags: int) -> F64:
    """Autocorrelation of `x` at lags 0 to `lags`, adjusted for the shrinking overlap. Shape (lags + 1,)."""
    x = x - x.mean()
    n = len(x)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    raw = np.fft.irfft(spectrum * np.conj(spectrum), size)[: lags + 1]
    variance = float(x @ x) / n
    if variance <= 1e-18:
        return np.zeros(lags + 1)
    return raw / (n - np.arange(lags + 1)) / variance


def spread(durations: NDArray[np.int64]) -> float:
    """Robust standard deviation of the logarithm."""
    x = np.log(np.maximum(durations, 1).astype(float))
    return float(1.4826 * np.median(np.abs(x - np.median(x)))) if len(x) else 0.0


def every(durations: NDArray[np.int64]) -> tuple[int, float]:
    """How many successive equal pieces repeat together in time: (k, clearness).

    k = 1 if the durations are homogeneous, 0 if that is unclear. Needs at least four repetitions of k.
    """
    n = len(durations)
    if n < 12:
        return 0, 0.0
    x = np.log(np.maximum(durations[-8192:], 1).astype(float))
    n = len(x)
    mid = np.median(x)
    scale = 1.4826 * np.median(np.abs(x - mid))
    x = np.clip(x, mid - 6.0, mid + 6.0)
    if np.std(x) < MIN_EFFECT and scale < MIN_EFFECT:
        return 1, 1.0
    lags = min(n // 4, MAX_EVERY)
    acf = autocorrelation(x, lags)
    if lags < 2:
        return 0, 0.0
    top = float(acf[2:].max())
    noise = 3.0 / np.sqrt(n)
    if top < max(CLEAR_ACF, noise):
        _, k, chance = fold(x[:, None], lags)
        if k and chance < CHANCE:
            return _longest(x, _shortest(x, k), lags), top
        if scale > WILD * (1.0 if n < MANY else 1.5):
            return 0, top
        return (1, 1.0 - max(0.0, top)) if top < max(NO_ACF, noise) else (0, top)
    good = np.flatnonzero(acf[2:] >= top - 0.15 * abs(top)) + 2
    for k in good.tolist():
        # A drift or a shift of level correlates too, but at all short lags; a repetition has a valley first.
        valley = float(acf[1:k].min())
        if acf[k] - valley < 0.25:
            continue
        rows = x[: n // k * k].reshape(-1, k)
        f, apart = fold_effect(rows)
        if f > 4.0 and apart > MIN_EFFECT:
            return _longest(x, _shortest(x, k), lags), float(acf[k])
    # Correlated at all lags alike: the pace drifts. Then neighbours tell how much they scatter.
    _, k, chance = fold(x[:, None], lags)
    local = spread(np.exp(np.diff(x) / np.sqrt(2)) * 1e6)
    return (1, 0.5) if local < WILD and not (k and chance < CHANCE) else (0, top)


def _explained(x: F64, k: int) -> float:
    """Share of the variance of `x` between the k positions, corrected for their number."""
    rows = x[: len(x) // k * k].reshape(-1, k)
    total = float(((rows - rows.mean()) ** 2).sum()) + 1e-12
    return len(rows) * float(((rows.mean(axis=0) - rows.mean()) ** 2).sum()) / total - (k - 1) / (rows.size - 1)


def _shortest(x: F64, k: int) -> int:
    """The smallest divisor of k that explains nearly as much of `x`, and by which no position differs clearly."""
    rows = x[: len(x) // k * k].reshape(-1, k)
    mid = np.median(rows, axis=0)
    error = 1.86 * np.median(np.abs(rows - mid), axis=0) / np.sqrt(len(rows))  # of a median
    least = 0.85 * _explained(x, k)
    for d in range(2, k // 2 + 1):
        if k % d or _explained(x, d) < least:
            continue
        off = np.abs(mid - np.roll(mid, -d))
        if (off <= np.maximum(2 * MIN_EFFECT, 5 * np.hypot(error, np.roll(error, -d)))).all():
            return d
    return k


def _longest(x: F64, k: int, most: int) -> int:
    """A multiple of k by which some position clearly differs from those it would equal: a step of 2, 4, ... of k."""
    for times in (16, 12, 8, 6, 4, 3, 2):
        n = k * times
        if n > most:
            continue
        rows = x[: len(x) // n * n].reshape(-1, times, k)
        mid = np.median(rows, axis=0)
        error = 1.86 * np.median(np.abs(rows - mid), axis=0) / np.sqrt(len(rows))
        usual = np.median(mid, axis=0)
        off = mid - usual
        clear = off > np.maximum(4 * MIN_EFFECT, 8 * np.maximum(error, np.median(error, axis=0)))
        if clear.any(axis=1).sum() == 1:  # in one of the `times`: the others are alike
            return n
    return k


def fold(rows_of: F64, most: int, among: frozenset[int] | None = None) -> tuple[int, int, float]:
    """The clearest repetition in any of several series: (series, k, log10 of the chance that there is none).

    `rows_of` has shape (n, series) of log times. The F test of a one-way analysis of variance, for each series and
    each k from 2 to `most` (if given: in `among`), corrected for their number; k is the smallest that explains nearly
    as much as the best.
    """
    from scipy.special import fdtrc

    n, m = rows_of.shape
    x = rows_of - np.median(rows_of, axis=0)
    scale = 1.4826 * np.median(np.abs(x), axis=0) + 1e-6
    x = np.clip(x, -8 * scale, 8 * scale)
    best: tuple[float, int, int, float] = (0.0, 0, 0, 0.0)
    explained = np.zeros((most + 1, m))
    ks = [k for k in range(2, most + 1) if among is None or k in among]
    for k in ks:
        rows = x[: n // k * k].reshape(-1, k, m)
        r = len(rows)
        total = ((rows - rows.mean(axis=(0, 1))) ** 2).sum(axis=(0, 1)) + 1e-12
        between = r * ((rows.mean(axis=0) - rows.mean(axis=(0, 1))) ** 2).sum(axis=0)
        f = (between / (k - 1)) / np.maximum((total - between) / (k * (r - 1)), 1e-12)
        explained[k] = between / total - (k - 1) / (n - 1)
        chance = np.log10(np.maximum(fdtrc(k - 1, k * (r - 1), f) * m * len(ks), 1e-300))
        i = int(np.argmin(chance))
        if chance[i] < best[0]:
            best = (float(chance[i]), i, k, float(explained[k, i]))
    chance_, series, k, much = best
    if k:
        k = int(np.flatnonzero(explained[:, series] >= 0.9 * much)[0])
    return series, k, chance_


def long_position(durations: NDArray[np.int64], k: int) -> tuple[int, float, float]:
    """Which of k positions is longest: (position, excess over the median position / median, share of the whole)."""
    rows = durations[: len(durations) // k * k].reshape(-1, k).astype(float)
    mid = np.median(rows, axis=0)
    at = int(np.argmax(mid))
    usual = float(np.median(mid)) + 1e-9
    return at, float(mid[at] / usual - 1.0), float(mid[at] / max(mid.sum(), 1e-9))
