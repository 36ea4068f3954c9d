# SPDX-License-Identifier: Apache-2.0
"""What gh-run says beside a job: that it is watched, what an iteration is, and a summary at the end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.records import PHASE_CODE, Alert, Change, Iters, Job, Period, Record

from .sentence import one_line
from .text import duration

KEEP_ITERATIONS = 1 << 20  # 8 MiB; beyond it every second one is dropped, again and again


@dataclass
class Episode:
    """One slow time of the whole job."""

    onset_index: int
    onset_t_ns: int
    before_ns: int
    after_ns: int
    end_index: int | None = None
    lost_ns: int = 0
    parts: list[str] = field(default_factory=list)


def part_text(part: dict[str, Any]) -> str:
    """A part that an alert names, in a few words: `rank 2, compute 2.9x slower, confirmed`."""
    ranks, hosts, ratio = part.get("ranks"), part.get("hosts"), part.get("ratio")
    who = ", ".join(map(str, ranks[:8])) if isinstance(ranks, list) and ranks else ""
    where = " <-> ".join(map(str, hosts[:2])) if isinstance(hosts, list) and hosts else ""
    slower = f" {ratio:.1f}x slower" if isinstance(ratio, int | float) and ratio > 0 else ""
    words = [f"{part.get('what', '')} {who}".strip() + (f" ({where})" if where else "")]
    words += [f"{part.get('cause', '')}{slower}", str(part.get("verdict") or f"found by {part.get('by', '')}")]
    return one_line(", ".join(words))


class Summary:
    """Collects a stream in bounded memory; `feed` yields lines for people as there is something to say."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._watching = ""
        self._said_period: tuple[int, int] | None = None
        self._ranks_found = 0
        self._rank: int | None = None
        self._keep_every = 1
        self._seen = 0
        self._durations = array("q")
        self.total_ns = 0
        self.iterations = 0
        self.calls = 0
        self.episodes: dict[int, Episode] = {}
        self._job_level = False

    def feed(self, record: Record) -> Iterator[str]:
        """Take one record of the chain's output."""
        if isinstance(record, Job):
            yield from self._job(record)
        elif isinstance(record, Period):
            yield from self._period(record)
        elif isinstance(record, Iters):
            self._iters(record)
        elif isinstance(record, Change):
            self._change(record)
        elif isinstance(record, Alert) and record.level == "job" and record.episode in self.episodes:
            self.episodes[record.episode].parts = [part_text(part) for part in record.suspects]

    def _job(self, record: Job) -> Iterator[str]:
        size = record.world_size or len(record.ranks)
        text = f"watching job {record.job}: {size} ranks, {record.backend or 'library unknown'}, shim {self._version}"
        here = len({rank.get("rank") for rank in record.ranks})
        if here < size:
            if here < self._local(record):
                return
            text += f" ({here} of them on this host)"
        if text != self._watching:
            self._watching = text
            yield text

    @staticmethod
    def _local(record: Job) -> int:
        """Ranks to wait for on this host before the job is announced: as many as the greatest local rank tells."""
        local = [rank.get("local_rank") for rank in record.ranks]
        numbers = [number for number in local if isinstance(number, int)]
        return max(numbers, default=-1) + 1

    def _period(self, record: Period) -> Iterator[str]:
        if record.rank != -1:
            return
        if record.state == "found":
            key = (record.calls, 1)
            if self._said_period != key:
                self._said_period = key
                yield f"iteration found: {duration(record.dur_ns)}, {record.calls} calls, all ranks agree"
        elif record.state == "rearm" and self._said_period is not None:
            self._said_period = None
            yield "the pattern of calls changed; looking for the iteration again"

    def _iters(self, record: Iters) -> None:
        if self._rank is None or record.rank < self._rank:
            # The lowest rank stands for the job: iterations end together on all of them.
            self._rank, self._seen, self.total_ns, self.iterations = record.rank, 0, 0, 0
            del self._durations[:]
        if record.rank != self._rank:
            return
        good = (record.dur_ns > 0) & (record.phase != PHASE_CODE["gap"])
        self.iterations += int(good.sum())
        self.total_ns += int(record.dur_ns[good].sum())
        for taken in record.dur_ns[good].tolist():
            if self._seen % self._keep_every == 0:
                self._durations.append(taken)
            self._seen += 1
        if len(self._durations) > KEEP_ITERATIONS:
            self._durations = self._durations[::2]
            self._keep_every *= 2

    def _change(self, record: Change) -> None:
        if record.stage != "confirmed" or record.level != "job":
            return
        if record.type == "onset" and record.verdict == "fail-slow":
            known = self.episodes.get(record.episode)
            if known is None:
                self.episodes[record.episode] = Episode(
                    record.onset_index, record.onset_t_ns, record.before_ns, record.after_ns
                )
            else:
                known.after_ns = record.after_ns
        elif record.type == "relief" and record.episode in self.episodes:
            episode = self.episodes[record.episode]
            episode.end_index, episode.lost_ns = record.onset_index, record.lost_ns

    def _open_loss(self, episode: Episode) -> int:
        """Loss of an episode that had not ended, from the level it had and the iterations since."""
        since = max(self.iterations - episode.onset_index, 0)
        return max(since * (episode.after_ns - episode.before_ns), 0)

    def final(self, how: str, extras: list[str]) -> str:
        """The last line: iterations, median, episodes and what they cost; `extras` name files that were written."""
        parts = [f"job ended ({how})"]
        tail = f"; {', '.join(extras)}" if extras else ""
        if not self._watching and not self.iterations:
            return f"{parts[0]}: no communication call was seen (gh-doctor says what can be hooked){tail}"
        if not self.iterations:
            return parts[0] + ": no iteration was found in its calls (gh-period --explain says what was seen)" + tail
        median = float(np.median(np.frombuffer(self._durations, np.int64)))
        lost = sum(e.lost_ns if e.end_index is not None else self._open_loss(e) for e in self.episodes.values())
        count = len(self.episodes)
        text = f"{self.iterations} iterations, median {duration(median)}, {count or 'no'} episode{'s' * (count != 1)}"
        if count:
            text += f", {lost / 1e9:.0f} s lost ({100 * lost / max(self.total_ns, 1):.0f} %)"
            if any(e.end_index is None for e in self.episodes.values()):
                text += ", still slow at the end"
        return f"{parts[0]}: {text}{tail}"

    def episode_lines(self) -> list[str]:
        """One line an episode: start, end, ratio, loss."""
        lines = []
        for episode in self.episodes.values():
            open_ = episode.end_index is None
            lost = self._open_loss(episode) if open_ else episode.lost_ns
            lines.append(
                f"episode: iterations {episode.onset_index} to {'the end' if open_ else episode.end_index}, "
                f"{duration(episode.before_ns)} -> {duration(episode.after_ns)} "
                f"({episode.after_ns / max(episode.before_ns, 1):.2f}x), {lost / 1e9:.1f} s lost"
                + "".join(f"; {part}" for part in episode.parts)
            )
        return lines
