# SPDX-License-Identifier: Apache-2.0
"""Text of ghtools(7) that no command can tell by itself."""

CHAIN = """
A training job on many GPUs runs at the pace of its slowest part. A part that fails is noticed; a part that is
merely slow is not. ghtools watches an unmodified job through its communication library, finds the iteration,
notices when it takes longer, and says so within a few iterations.

Each command does one thing and reads and writes one stream of records, so they chain:

    gh-run -- torchrun --nproc-per-node 8 train.py
    gh-trace | gh-bocd | gh-alert
    gh-import series times.txt --unit ms | gh-bocd | gh-show
    gh-import kineto trace/*.json.gz | gh-profile | gh-show

`gh-run` starts a job under the preload shim and runs the chain beside it. `gh-trace` reads the calls of a running
job (they lie in shared memory, one ring a rank), `gh-period` turns calls into iterations, `gh-bocd` finds where the
iteration time changed, `gh-profile` says which rank, link or group it is, `gh-validate-gemm` and `gh-validate-ring`
prove it by a test, alone or inside the job, and `gh-alert` tells people and machines, once an episode.

The shim records the entry of each communication call and nothing else, until it is asked to time executions for a
stretch. On that path it never waits, allocates or prints; if it cannot be set up the job runs as it would have.
Everything else happens in other processes, and the job goes on when they die. Only a test inside the job holds it:
all ranks before the same iteration, for as long as the test renews its lease, and never over two minutes.
"""

STREAM = """
A stream is a sequence of msgpack maps, each with a `kind`. It starts with a head and ends with an end record;
several streams one after another are a stream. A stream without an end was cut: the reader finishes what it has, says
so, passes the reason on in its own end and exits 3.

A filter passes on what it is not made for, unchanged and in order, unknown kinds and keys too; with `--keep` also
what it consumes. Batches (calls, iters, sample) hold their columns as raw little-endian bytes. `gh-show --json` writes
any stream as JSON lines, and `gh-import jsonl` reads them back.

Times are nanoseconds since the epoch, from a clock that never steps back. Clocks of two hosts agree only as well as
they are set.
"""
