# SPDX-License-Identifier: Apache-2.0
"""Cost of a call that is traced by a uprobe: traced minus bare call, same process, alternating (issue 2).

Prints `name value unit comparison`, one figure a line.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the tests' compiler helper
from ghtools.source.uprobe import UprobeSource, check
from ghtools.stream.records import Calls
from tests.csrc.build import HERE as CSRC_TESTS
from tests.csrc.build import cc

CALLS, ROUNDS = 10_000, 15
PROGRAM = r"""
#include <stdio.h>
#include <time.h>
#include "nccl_calls.h"
extern int ncclAllReduce(const void *, void *, size_t, int, int, gh_nccl_comm, gh_stream);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(void)
{
    int comm[2] = {2, 0};
    char a[64] = {0}, b[64];
    puts("up");
    fflush(stdout);
    while (getchar() != EOF) {
        double begin = now();
        for (int i = 0; i < CALLS; i++)
            ncclAllReduce(a, b, 1, 7, 0, comm, NULL);
        printf("%.1f\n", (now() - begin) / CALLS);
        fflush(stdout);
    }
    return 0;
}
"""


def main() -> None:
    """Measure and print."""
    if missing := check():
        print(f"attach.call skipped - {'; '.join(missing)}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "call.c").write_text(PROGRAM)
        library = cc(
            folder / "libnccl.so.2", [CSRC_TESTS / "fakenccl.c"], "-O2", "-DWITH_TWINS", "-Wl,-soname,libnccl.so.2"
        )
        program = cc(folder / "call", [folder / "call.c", library], "-O2", f"-DCALLS={CALLS}", f"-Wl,-rpath,{folder}")
        bare, traced, read_s, got, lost = [], [], 0.0, 0, 0
        with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            stdin, stdout = process.stdin, process.stdout

            def burst() -> float:
                stdin.write("x")
                stdin.flush()
                return float(stdout.readline())

            for _ in range(ROUNDS):
                bare.append(burst())
                source = UprobeSource([process.pid], ring_bytes=16 << 20)
                traced.append(burst())
                began = time.thread_time()
                got += sum(len(r.t_ns) for r in source.poll(1.0) if isinstance(r, Calls))
                read_s += time.thread_time() - began
                lost += source.lost
                source.close()
            stdin.close()
    cost = statistics.median(traced) - statistics.median(bare)
    print(f"attach.call {cost:.0f} ns goal 1000 (about a microsecond, DESIGN section 5)")
    print(f"attach.read {1e9 * read_s / max(got, 1):.0f} ns reader's time a call; {got} read, {lost} lost")


if __name__ == "__main__":
    main()
