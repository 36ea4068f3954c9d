# SPDX-License-Identifier: Apache-2.0
"""Slow, obvious versions of what csrc/native computes for gh-bocd: the posterior and the two-sample statistics."""

from __future__ import annotations

import math
from statistics import median

YOUNG, MEMORY = 32, 96


def posterior(
    z: list[float], hazard: float, kappa0: float = 0.01, alpha0: float = 10.0, beta0: float = 10.0
) -> list[list[float]]:
    """Adams and MacKay with every hypothesis kept: P(r) for r = 0 .. 31 and the rest, after each value.

    A run of MEMORY values or more keeps the weight of MEMORY (it forgets at that rate), as in csrc/native/bocd.c.
    """
    hypotheses: list[tuple[int, int, float, float, float]] = []  # run length, values weighed, mu, beta, log weight
    out = []
    for x in z:
        old = [(r, n, mu, beta, w + math.log(1 - hazard)) for r, n, mu, beta, w in hypotheses]
        scored = []
        for r, n, mu, beta, w in [*old, (0, 0, 0.0, beta0, math.log(hazard))]:
            kappa, alpha = kappa0 + n, alpha0 + n / 2
            scale2 = beta * (kappa + 1) / (alpha * kappa)
            nu = 2 * alpha
            density = (
                math.lgamma((nu + 1) / 2)
                - math.lgamma(nu / 2)
                - 0.5 * math.log(nu * math.pi * scale2)
                - (nu + 1) / 2 * math.log1p((x - mu) ** 2 / (nu * scale2))
            )
            new_beta = beta + kappa * (x - mu) ** 2 / (2 * (kappa + 1))
            new_mu = (kappa * mu + x) / (kappa + 1)
            if n == MEMORY:
                new_beta *= (alpha0 + MEMORY / 2) / (alpha0 + MEMORY / 2 + 0.5)
            scored.append((r + 1, min(n + 1, MEMORY), new_mu, new_beta, w + density))
        most = max(h[4] for h in scored)
        total = most + math.log(sum(math.exp(h[4] - most) for h in scored))
        hypotheses = [(r, n, mu, beta, w - total) for r, n, mu, beta, w in scored]
        row = [hazard] + [0.0] * YOUNG
        for r, _, _, _, w in hypotheses:
            row[min(r, YOUNG)] += (1 - hazard) * math.exp(w)
        out.append(row)
    return out


def median3(y: list[float]) -> list[float]:
    """Causal median of three; the first two values pass."""
    return [v if i < 2 else median(y[i - 2 : i + 1]) for i, v in enumerate(y)]


def mad(y: list[float]) -> float:
    """1.4826 times the median absolute deviation."""
    middle = median(y)
    return 1.4826 * median(abs(v - middle) for v in y)


def rank_z(before: list[float], after: list[float]) -> float:
    """Mann-Whitney's U as a normal deviate with the tie correction, by counting every pair."""
    u = sum((a > b) + 0.5 * (a == b) for a in after for b in before)
    na, nb = len(after), len(before)
    both = before + after
    ties = sum(both.count(v) ** 3 - both.count(v) for v in set(both))
    n = na + nb
    variance = na * nb / 12 * (n + 1 - ties / (n * (n - 1)))
    return (u - na * nb / 2) / math.sqrt(variance) if variance > 0 else 0.0
