# SPDX-License-Identifier: Apache-2.0
"""Several files of one format: a bad one does not keep the others from being read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ghtools.stream.errors import Exit, GhError, InputError
from ghtools.stream.records import Record

from .importers import File

SAY_S = 10.0  # how often progress is told


def each_file(
    files: Sequence[File], read_one: Callable[[File], Iterator[Record]], warn: Callable[[str], None]
) -> Iterator[Record]:
    """Records of all files in order. What is wrong with a file is said when the next bad one is met, or raised at
    the end, so that each gives one line."""
    bad: GhError | None = None
    told = time.monotonic()
    for number, file in enumerate(files):
        if time.monotonic() - told > SAY_S:
            warn(f"{number} of {len(files)} files read")
            told = time.monotonic()
        try:
            yield from read_one(file)
        except GhError as error:
            if error.code != Exit.INPUT:
                raise
            if bad:
                warn(str(bad))
            named = file.name in str(error)
            bad = error if named else GhError(f"{error.what}: {file.name}", error.why, error.try_, error.code)
    if bad:
        raise bad


def read_all(file: File, limit: int) -> bytes:
    """A whole file; InputError if it is larger than `limit` bytes."""
    parts, size = [], 0
    while chunk := file.source.read1(1 << 20):
        size += len(chunk)
        if size > limit:
            raise InputError(f"bad input: {file.name}", f"it is larger than {limit >> 20} MiB")
        parts.append(chunk)
    return b"".join(parts)
