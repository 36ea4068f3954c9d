# SPDX-License-Identifier: Apache-2.0
"""gh-bocd's speed through the real path: records of iterations in, changes out, one core, warm series.

Prints `name value unit comparison`, one figure a line. The goal is 5 million samples a second at 16,384 ranks
(DESIGN section 10). The peer is pybocd (GPL, pure Python, online), where it is installed; it only scores, while
ours also filters, verifies and forms the job's consensus.
"""

from __future__ import annotations

import importlib.metadata
import io
import sys
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

from ghtools.detect.detector import Detector
from ghtools.detect.stage import BocdStage
from ghtools.stream.pipeline import run_filter
from ghtools.stream.records import End, Head, Iters
from ghtools.stream.writer import Writer

WARM = 128  # iterations a rank has seen before the clock starts
SEED = 20261129


def batches(ranks: int, iters: int, size: int, first: int) -> list[Iters]:
    """`iters` quiet iterations of each rank in records of `size`, in the order in which a job makes them."""
    rng = np.random.default_rng([SEED, ranks, first])
    made = []
    for at in range(first, first + iters, size):
        index = np.arange(at, at + size)
        for rank in range(ranks):
            dur = np.rint(1e9 * np.exp(0.02 * rng.standard_normal(size))).astype("<i8")
            made.append(
                Iters(
                    rank=rank, index=index, t_ns=index * 10**9, dur_ns=dur, phase=np.zeros(size, "u1"),
                    calls=np.zeros(size, "<i4"), seq=index,
                )
            )  # fmt: skip
    return made


def rate(ranks: int, size: int, samples: int) -> float:
    """Samples a second through Detector.feed."""
    detector = Detector()
    for rec in batches(ranks, WARM, WARM, 0):
        for _ in detector.feed(rec):
            pass
    per_rank = max(size, samples // ranks // size * size)
    records = batches(ranks, per_rank, size, WARM)
    began = time.process_time()
    for rec in records:
        for _ in detector.feed(rec):
            pass
    return ranks * per_rank / (time.process_time() - began)


def command_rate(ranks: int, size: int, samples: int) -> float:
    """Samples a second through the whole filter: bytes in, decode, detect, bytes out."""
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.write(Head(tool="bench"))
    per_rank = max(size, samples // ranks // size * size)
    for rec in [*batches(ranks, WARM, WARM, 0), *batches(ranks, per_rank, size, WARM)]:
        writer.write(rec)
    writer.write(End())
    source = io.BytesIO(sink.getvalue())
    began = time.process_time()
    run_filter(
        "gh-bocd", source, Writer(io.BytesIO()), lambda head: BocdStage(head, Detector()), (Iters,),
        keep=False, warn=print,
    )  # fmt: skip
    return ranks * (per_rank + WARM) / (time.process_time() - began)


def peer_rate(samples: int) -> tuple[str, float, float]:
    """pybocd on one series: its version, samples a second over the first 1,000 and the last 1,000 samples."""
    from pybocd import BOCDNIG

    detector = BOCDNIG(0.0, 0.01, 10.0, 10.0, 1000, 1e-5)
    x = np.random.default_rng(SEED).standard_normal(samples)
    marks = [time.process_time()]
    for i, value in enumerate(x):
        detector.add_data(float(value))
        if (i + 1) % 1000 == 0:
            marks.append(time.process_time())
    return importlib.metadata.version("pybocd"), 1000 / (marks[1] - marks[0]), 1000 / (marks[-1] - marks[-2])


def memory_per_rank() -> float:
    """Bytes a rank takes once warm."""
    tracemalloc.start()
    detector = Detector()
    before = tracemalloc.get_traced_memory()[0]
    for rec in batches(256, WARM, WARM, 0):
        list(detector.feed(rec))
    size = (tracemalloc.get_traced_memory()[0] - before) / 256
    tracemalloc.stop()
    return size


def main() -> None:
    try:
        version, start, later = peer_rate(4000)
        peer = f"pybocd {version}: {start:.0f} at the start, {later:.0f} after 4,000"
    except ImportError:
        peer = "no peer: pybocd is not installed here"
    for ranks in (1, 16, 1024, 16384):
        goal = ", goal 5" if ranks == 16384 else ""
        print(f"bocd_{ranks}_ranks {rate(ranks, 256, 4_000_000) / 1e6:.2f} Msamples/s records of 256 iterations{goal}")
    for ranks in (1, 1024, 16384):
        print(f"bocd_live_{ranks}_ranks {rate(ranks, 1, 200_000) / 1e6:.3f} Msamples/s records of 1 iteration")
    print(f"bocd_filter_1024_ranks {command_rate(1024, 256, 2_000_000) / 1e6:.2f} Msamples/s from bytes to bytes, cold")
    print(f"bocd_memory {memory_per_rank() / 1024:.1f} KiB/rank constant")
    print(f"bocd_peer {peer} samples/s")


if __name__ == "__main__":
    main()
