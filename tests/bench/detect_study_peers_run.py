# SPDX-License-Identifier: Apache-2.0
"""Runs the peers over series from a file; started by detect_study_peers.py in the interpreter that has them.

Each is used as its documentation or, for Rbeast, the GREYHOUND artifact does; values are logs of the iteration
time in units of the noise of the first 30, and a change that moves the mean by less than 10 % is dropped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Found = list[tuple[int, int]]  # (where, when it was said)
LEARN = 30
PACKAGES = {"Rbeast": "Rbeast", "ruptures": "ruptures", "river": "river", "bayesian_changepoint_detection": "bocd"}


def standard(x: Floats) -> Floats:
    """Logs in units of the noise of the first 30."""
    y = np.log(x)
    first = y[:LEARN]
    middle = np.median(first)
    return np.asarray((y - middle) / max(1.4826 * float(np.median(np.abs(first - middle))), 0.005))


def rbeast(x: Floats) -> Found:
    """As the artifact: the whole series, outliers allowed for, probability over 0.8. Offline."""
    import Rbeast

    got = Rbeast.beast(x, season="none", hasOutlier=True, quiet=True, print_progress=False, print_options=False,
                       print_warning=False)  # fmt: skip
    where, sure = np.asarray(got.trend.cp), np.asarray(got.trend.cpPr)
    good = np.isfinite(where) & (sure > 0.8)
    return [(int(at), int(at)) for at in sorted(where[good])]


def pelt(x: Floats) -> Found:
    """PELT with the kernel of its first example. Offline."""
    import ruptures

    ends = ruptures.Pelt(model="rbf").fit(standard(x)[:, None]).predict(pen=10)
    return [(at, at) for at in ends[:-1]]


def window(x: Floats) -> Found:
    """Window sliding with its documentation's width and penalty. Offline."""
    import ruptures

    ends = ruptures.Window(width=40, model="l2").fit(standard(x)[:, None]).predict(pen=np.log(len(x)))
    return [(at, at) for at in ends[:-1]]


def bocd(x: Floats) -> Found:
    """Run length 10 at look-back 10, probability over 0.5, as its notebook. Recomputed as a whole."""
    import bayesian_changepoint_detection.online_changepoint_detection as online

    mass, _ = online.online_changepoint_detection(
        standard(x), partial(online.constant_hazard, 250), online.StudentT(0.1, 0.01, 1, 0)
    )
    back = 10
    sure = mass[back, back:-1]
    over = np.flatnonzero((sure[1:] > 0.5) & (sure[:-1] <= 0.5)) + 1
    return [(int(at), int(at) + back) for at in over]


def _river(make: Callable[[], object]) -> Callable[[Floats], Found]:
    def run(x: Floats) -> Found:
        detector, out = make(), []
        for at, value in enumerate(standard(x).tolist()):
            detector.update(value)  # type: ignore[attr-defined]
            if detector.drift_detected:  # type: ignore[attr-defined]
                out.append((at, at))
        return out

    return run


def adwin(x: Floats) -> Found:
    from river import drift

    return _river(drift.ADWIN)(x)


def page_hinkley(x: Floats) -> Found:
    from river import drift

    return _river(drift.PageHinkley)(x)


def kswin(x: Floats) -> Found:
    from river import drift

    return _river(lambda: drift.KSWIN(seed=1))(x)


PEERS: dict[str, tuple[str, bool, Callable[[Floats], Found]]] = {
    "Rbeast": ("Rbeast", False, rbeast),
    "ruptures PELT": ("ruptures", False, pelt),
    "ruptures Window": ("ruptures", False, window),
    "bayesian-changepoint-detection": ("bayesian_changepoint_detection", False, bocd),
    "river ADWIN": ("river", True, adwin),
    "river PageHinkley": ("river", True, page_hinkley),
    "river KSWIN": ("river", True, kswin),
}


def levels(x: Floats, found: Found, online: bool) -> Iterator[tuple[int, int, float]]:
    """(where, said, ratio) of changes that move the mean by 10 %; an online method knows only what it has seen."""
    begin = 0
    for number, (at, said) in enumerate(found):
        end = found[number + 1][0] if number + 1 < len(found) and not online else min(said + 1, len(x))
        before, after = x[begin:at], x[at:end]
        if online and len(after) < 10:  # it does not say where: the last ten
            before, after = x[begin : max(at - 9, begin + 1)], x[max(at - 9, 0) : said + 1]
        if not len(before) or not len(after):
            continue
        begin = at
        ratio = float(after.mean() / before.mean())
        if abs(np.log(ratio)) >= np.log(1.1):
            yield int(at), int(said), ratio


def one(args: tuple[str, Floats]) -> tuple[list[tuple[int, int, float]], float]:
    """What a peer says of one series, and its time in s."""
    name, x = args
    began = time.process_time()
    found = PEERS[name][2](x)
    spent = time.process_time() - began
    return list(levels(x, found, PEERS[name][1])), spent


def long(name: str, n: int) -> tuple[float, float]:
    """(us an observation, MB of memory gained at the peak) over one quiet series of n."""
    import resource

    x = 0.3 * np.exp(0.02 * np.random.default_rng(1).standard_normal(n))
    PEERS[name][2](x[:60])  # what is loaded or compiled at the first use is not what grows
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    PEERS[name][2](x)
    spent = time.process_time() - began
    return 1e6 * spent / n, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def have() -> dict[str, str]:
    """Packages that are here, and their versions."""
    out = {}
    for package in PACKAGES:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def main() -> None:
    """`have`; `long NAME N`; or `IN.npz OUT.json JOBS`."""
    if sys.argv[1] == "have":
        print(json.dumps(have()))
    elif sys.argv[1] == "long":
        print(json.dumps(long(sys.argv[2], int(sys.argv[3]))))
    else:
        series = list(np.load(sys.argv[1]).values())
        here = have()
        out = {}
        with ProcessPoolExecutor(int(sys.argv[3])) as pool:
            for name, (package, _, _) in PEERS.items():
                if package in here:
                    out[name] = list(pool.map(one, [(name, x) for x in series], chunksize=4))
                    print(f"peers: {name} done", file=sys.stderr, flush=True)
        Path(sys.argv[2]).write_text(json.dumps(out))


if __name__ == "__main__":
    main()
