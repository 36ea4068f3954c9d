# SPDX-License-Identifier: Apache-2.0
"""Lists of ranks as people write them: 0-15,20 (DESIGN section 4)."""

from __future__ import annotations

import re

from ghtools.stream.errors import GhError

MAX_RANKS = 1 << 17
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def parse_ranks(text: str) -> list[int]:
    """The ranks a list names, in order, each once; GhError says what is wrong with it."""
    ranks: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if not match:
            raise GhError(f"cannot read the ranks {text[:80]!r}", f"{part[:40]!r} is no rank", "0-7 or 0,2,4-6")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise GhError(f"cannot read the ranks {text[:80]!r}", f"{part} runs backwards", f"{last}-{first}")
        if last >= MAX_RANKS:
            raise GhError(f"cannot read the ranks {text[:80]!r}", f"ranks go up to {MAX_RANKS - 1}")
        ranks.update(range(first, last + 1))
    return sorted(ranks)
