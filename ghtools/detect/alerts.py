# SPDX-License-Identifier: Apache-2.0
"""Changes to alerts: one alert when something gets slow, one when that changes by much, one when it is over.

Only confirmed changes count, and the verdict decides: warm-up, restart, planned and blip are no alerts.
The job's level is preferred. A rank's change comes before the job's consensus, so an onset of one rank is
held back until the job's record covers it (then it is dropped) or shows that it does not, or until
`HOLD_ITERS` iterations have passed on the clock; what stays alone is alerted as that rank's. Whatever was
alerted as slow is always closed by a `recovered` alert of the same id, if relief is ever seen.

Suspects and findings of an episode name the slow part in alerts of the same id. A suspect that comes before its
episode is confirmed waits for that; one that belongs to no episode alerts nobody, unless it has stalled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ghtools.stream.records import Alert, Change, Finding, Job, Suspect

from .alert_text import cost_text, percent_text, span_text
from .naming import Key, Parts, Places, key_of, short

HOLD_ITERS = 8  # a rank's change this many iterations from the job's is the same event
HOLD_MIN_S = 5.0  # and it waits at least this long for the job's
UPDATE_SHARE = 0.25  # an episode's level must move by this share to be worth another alert
HELD_MAX = 16  # changes of one rank held back at a time
WAITING_MAX = 32  # suspects whose episode is not confirmed
STALLED_MAX = 256
CLOSED = 4  # episodes that are over and may still get a name
NO_ALERT = ("warm-up", "restart", "planned", "blip")


@dataclass
class Episode:
    """Something slow that was alerted and is not over."""

    id: str
    number: int  # the change's own
    severity: str
    before_ns: int
    after_ns: int  # the level last alerted
    onset_index: int
    parts: Parts = field(default_factory=Parts)


@dataclass
class _Held:
    """Changes of one rank that wait for the job's consensus."""

    changes: list[Change] = field(default_factory=list)
    until_s: float = 0.0


class Alerts:
    """Episodes of one stream section.

    `wall` turns nanoseconds since the epoch into the time of day of a sentence, `clock` gives seconds that
    only grow (for holding back), `note` hears what is no alert but may interest (`gh-alert -v`).
    """

    def __init__(
        self,
        job: str,
        wall: Callable[[int], str],
        clock: Callable[[], float],
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.job = job
        self.open: dict[tuple[str, int], Episode] = {}
        self._wall, self._clock, self._note = wall, clock, note
        self._held: dict[int, _Held] = {}
        self._past: deque[tuple[int, int]] = deque(maxlen=16)  # iterations of the job's past episodes
        self.places = Places()
        self._waiting: dict[Key, list[Suspect | Finding]] = {}  # a suspect, and what a test said of it
        self._closed: deque[tuple[str, int, Episode]] = deque(maxlen=CLOSED)  # level, rank, episode; the newest first
        self._stalled: dict[Key, str] = {}

    def feed(self, record: Change | Suspect | Finding | Job) -> Iterator[Alert]:
        """Alerts that follow from one record."""
        if isinstance(record, Job):
            self.places.job(record)
        elif not isinstance(record, Change):
            yield from self._part(record)
        else:
            yield from self._change(record)
            yield from self._owed()

    def _change(self, change: Change) -> Iterator[Alert]:
        if change.level == "job":
            yield from self._job(change)
        elif change.rank in self._held or self._must_wait(change):
            yield from self._hold(change)
        else:
            yield from self._make(change)

    def tick(self) -> Iterator[Alert]:
        """Alerts of changes that have waited long enough; to be called about once a second."""
        now = self._clock()
        for rank in [rank for rank, held in self._held.items() if held.until_s <= now]:
            yield from self._release(rank)
        yield from self._owed()

    def finish(self) -> Iterator[Alert]:
        """Alerts still owed at the end of the section."""
        for rank in list(self._held):
            yield from self._release(rank)
        yield from self._owed()

    def still_slow(self) -> list[str]:
        """One sentence for each open episode that is a warning (an uncertain one makes nothing fail)."""
        return [
            f"still {_who(level, rank)}SLOW at the end, since iteration {e.onset_index}: "
            f"{span_text(e.before_ns, e.after_ns)} ({percent_text(e.after_ns / max(e.before_ns, 1))})"
            + "".join(f"; {short(part, self.places)}" for part in e.parts.named.values())
            for (level, rank), e in self.open.items()
            if e.severity == "warning"
        ] + [f"still STALLED at the end: {text}" for text in self._stalled.values()]

    # -- which part it is ---------------------------------------------------------------------------

    def _owed(self) -> Iterator[Alert]:
        """Names that have waited for their episode to be confirmed."""
        for key, records in list(self._waiting.items()) if self.open else ():
            if self._episode_of(records[0]) is not None:
                del self._waiting[key]
                for one in records:
                    yield from self._part(one)

    def _part(self, record: Suspect | Finding) -> Iterator[Alert]:
        """One suspect or finding to at most one alert."""
        if isinstance(record, Suspect) and record.cause == "stalled":
            yield from self._stall(record)
            return
        found = self._episode_of(record)
        key = key_of(record)
        if found is None:
            self._wait(key, record)
            return
        level, rank, episode = found
        if (said := episode.parts.take(record, self.places)) is not None:
            t_ns = record.t_ns
            yield Alert(
                id=episode.id, state=said[0], severity="info" if said[0] != "named" else episode.severity,
                text=f"{self._wall(t_ns)} {said[1]}", job=self.job, level=level, rank=rank, episode=episode.number,
                t_ns=t_ns, before_ns=episode.before_ns, after_ns=episode.after_ns, onset_index=episode.onset_index,
                ratio=episode.after_ns / max(episode.before_ns, 1), suspects=episode.parts.plain(),
            )  # fmt: skip
        elif record.verdict == "could not tell":
            self._note(f"{self._wall(record.t_ns)} a test could not tell: {record.text}")

    def _wait(self, key: Key, record: Suspect | Finding) -> None:
        """Keep what may belong to an episode that is not confirmed yet; what clears a part ends its waiting."""
        suspected = type(record.evidence.get("episode")) is int and record.verdict == "attributed"
        if record.verdict == "confirmed" and key in self._waiting:
            self._waiting[key] = [self._waiting[key][0], record]
        elif record.verdict != "could not tell":
            self._waiting.pop(key, None)
            if suspected and len(self._waiting) < WAITING_MAX:
                self._waiting[key] = [record]

    def _episode_of(self, record: Suspect | Finding) -> tuple[str, int, Episode] | None:
        """The episode a suspect was found for: the job's first, then a rank's, open or just over; None if none fits."""
        number, index = record.evidence.get("episode"), record.evidence.get("onset_index")
        known = [(level, rank, episode) for (level, rank), episode in self.open.items()] + list(self._closed)
        key = key_of(record)
        for level, rank, episode in sorted(known, key=lambda one: one[0]):  # "job" comes before "rank"
            if record.verdict == "cleared" and key in episode.parts.named:
                return level, rank, episode
            near = type(index) is int and abs(index - episode.onset_index) <= HOLD_ITERS
            if near or (level == "job" and number == episode.number):
                return level, rank, episode
            if isinstance(record, Finding) and number is None:  # a test that somebody ran by hand
                return level, rank, episode
        return None

    def _stall(self, record: Suspect) -> Iterator[Alert]:
        """Ranks that have come to a halt are an alert by themselves."""
        key = key_of(record)
        if record.verdict != "attributed" or key in self._stalled or len(self._stalled) >= STALLED_MAX:
            return
        ranks = ",".join(map(str, record.ranks[:16]))
        text = record.text if record.text.isprintable() else ascii(record.text)
        self._stalled[key] = f"{record.what} {ranks}"
        yield Alert(
            id=f"{self.job}/stalled/{record.what}/{ranks}", state="stalled", severity="critical", job=self.job,
            text=f"{self._wall(record.t_ns)} STALLED: {text[:400]}", t_ns=record.t_ns,
            level="rank" if len(record.ranks) == 1 else "job", rank=record.ranks[0] if len(record.ranks) == 1 else -1,
            suspects=[{"what": record.what, "ranks": record.ranks, "hosts": record.hosts, "cause": "stalled"}],
        )  # fmt: skip

    # -- the job's level ----------------------------------------------------------------------------

    def _job(self, change: Change) -> Iterator[Alert]:
        was = self.open.get(("job", -1))
        yield from self._make(change)
        now = self.open.get(("job", -1))
        if now is not None and was is None:
            self._cover(now.onset_index, change.said_index)
        elif was is not None and now is None:
            self._past.append((was.onset_index, change.said_index))
            self._cover(was.onset_index, change.said_index)
        if change.stage == "confirmed":
            # The job has been looked at up to here: what it did not confirm of a rank's change is that rank's own.
            for rank, held in list(self._held.items()):
                if held.changes[0].said_index + HOLD_ITERS <= change.said_index:
                    yield from self._release(rank)

    def _cover(self, first: int, last: int) -> None:
        """Drop what is held of ranks whose onset lies in the job's episode."""
        for rank, held in list(self._held.items()):
            if first - HOLD_ITERS <= held.changes[0].onset_index <= last + HOLD_ITERS:
                del self._held[rank]

    def _is_covered(self, change: Change) -> bool:
        job = self.open.get(("job", -1))
        if job is not None and change.onset_index >= job.onset_index - HOLD_ITERS:
            return True
        return any(a - HOLD_ITERS <= change.onset_index <= b + HOLD_ITERS for a, b in self._past)

    # -- one rank's level ---------------------------------------------------------------------------

    def _must_wait(self, change: Change) -> bool:
        """Whether a rank's change would begin an episode of its own."""
        return (
            change.stage == "confirmed"
            and change.type != "relief"
            and change.verdict not in NO_ALERT
            and ("rank", change.rank) not in self.open
        )

    def _hold(self, change: Change) -> Iterator[Alert]:
        if change.stage != "confirmed":
            return
        held = self._held.get(change.rank)
        if held is None:
            if self._is_covered(change):
                return
            wait_s = max(HOLD_MIN_S, HOLD_ITERS * change.after_ns / 1e9)
            held = self._held[change.rank] = _Held(until_s=self._clock() + wait_s)
        held.changes.append(change)
        if len(held.changes) >= HELD_MAX:
            yield from self._release(change.rank)

    def _release(self, rank: int) -> Iterator[Alert]:
        for change in self._held.pop(rank).changes:
            yield from self._make(change)

    # -- both ---------------------------------------------------------------------------------------

    def _make(self, change: Change) -> Iterator[Alert]:
        """One change of one level to at most one alert."""
        key = (change.level, change.rank if change.level == "rank" else -1)
        episode = self.open.get(key)
        if change.stage != "confirmed":
            return
        if change.verdict in NO_ALERT and (episode is None or change.type != "relief"):
            self._note(
                f"{self._wall(change.onset_t_ns)} {_who(*key)}{change.verdict}, no alert, at iteration "
                f"{change.onset_index}: {span_text(change.before_ns, change.after_ns)} ({percent_text(change.ratio)})"
            )
        elif change.type == "relief":
            yield from self._relief(key, change, episode)
        elif change.verdict == "recovered":
            return  # an onset that says recovered contradicts itself
        elif episode is None:
            yield self._onset(key, change)
        elif change.episode != episode.number and change.type != "relief":
            # The detector has begun another one: it saw no relief of the first (a restart), and so do we.
            yield self._lost(key, change, episode)
            yield self._onset(key, change)
        else:
            yield from self._update(key, change, episode)

    def _onset(self, key: tuple[str, int], change: Change) -> Alert:
        who = str(key[1]) if key[0] == "rank" else "-"
        # What could not be told apart from a harmless change is said, but wakes nobody.
        severity = "warning" if change.verdict == "fail-slow" else "info"
        ident = f"{self.job}/{key[0]}/{who}/{change.episode}"
        episode = Episode(
            ident, change.episode, severity, change.before_ns, change.after_ns, change.onset_index,
            Parts(change.onset_index),
        )  # fmt: skip
        self.open[key] = episode
        drift = change.type == "drift"
        text = (
            f"{self._wall(change.onset_t_ns)} {_who(*key)}{'SLOWING DOWN' if drift else 'SLOW'} since iteration "
            f"{change.onset_index}: {span_text(change.before_ns, change.after_ns)} "
            f"({percent_text(change.ratio)}), confirmed at {change.said_index}"
        )
        return self._alert(change, "drift" if drift else "slow", severity, episode.id, text, change.before_ns)

    def _update(self, key: tuple[str, int], change: Change, episode: Episode) -> Iterator[Alert]:
        graver = change.verdict == "fail-slow" and episode.severity == "info"
        if abs(change.after_ns - episode.after_ns) < UPDATE_SHARE * episode.after_ns and not graver:
            return
        worse = change.after_ns > episode.after_ns
        text = (
            f"{self._wall(change.onset_t_ns)} {_who(*key)}STILL SLOW, {'worse' if worse else 'less'} since iteration "
            f"{change.onset_index}: {span_text(episode.after_ns, change.after_ns)} "
            f"({percent_text(change.after_ns / max(episode.before_ns, 1))} since iteration {episode.onset_index}), "
            f"confirmed at {change.said_index}"
        )
        episode.after_ns = change.after_ns
        if graver:
            episode.severity = "warning"
        yield self._alert(change, "update", episode.severity, episode.id, text, episode.before_ns)

    def _relief(self, key: tuple[str, int], change: Change, episode: Episode | None) -> Iterator[Alert]:
        if episode is None:
            if key[0] == "rank":
                return  # the job's episode spoke for it
            if change.verdict != "recovered" or change.n_iters <= 0:
                self._note(
                    f"{self._wall(change.onset_t_ns)} faster since iteration {change.onset_index}: "
                    f"{span_text(change.before_ns, change.after_ns)} ({percent_text(change.ratio)})"
                )
                return
        elif change.verdict != "recovered" and change.episode == episode.number:
            yield from self._update(key, change, episode)
            return
        self._close(key)
        who = str(key[1]) if key[0] == "rank" else "-"
        ident = episode.id if episode else f"{self.job}/{key[0]}/{who}/{change.episode}"
        text = (
            f"{self._wall(change.onset_t_ns)} {_who(*key)}RECOVERED at iteration {change.onset_index}: "
            f"{span_text(change.before_ns, change.after_ns)}"
        )
        iters = change.n_iters or (max(change.onset_index - episode.onset_index, 0) if episode else 0)
        if iters:
            s = "" if iters == 1 else "s"
            text += f"; the episode cost {cost_text(change.lost_ns)} over {iters} iteration{s}"
        alert = self._alert(change, "recovered", "info", ident, text, change.before_ns)
        alert.n_iters, alert.lost_ns = iters, change.lost_ns
        usual = (episode.before_ns if episode else change.after_ns) * iters
        if usual + change.lost_ns > 0:
            alert.lost_pct = 100.0 * change.lost_ns / (usual + change.lost_ns)
        yield alert

    def _close(self, key: tuple[str, int]) -> None:
        if (episode := self.open.pop(key, None)) is not None:
            self._closed.appendleft((*key, episode))

    def _lost(self, key: tuple[str, int], change: Change, episode: Episode) -> Alert:
        """Close an episode whose relief was never told."""
        self._close(key)
        text = (
            f"{self._wall(change.onset_t_ns)} {_who(*key)}the episode since iteration {episode.onset_index} is over, "
            "its relief was not seen"
        )
        return self._alert(change, "recovered", "info", episode.id, text, episode.before_ns)

    def _alert(self, change: Change, state: str, severity: str, ident: str, text: str, before_ns: int) -> Alert:
        known = [*self.open.values(), *(episode for *_, episode in self._closed)]
        episode = next((one for one in known if one.id == ident), None)
        return Alert(
            id=ident,
            state=state,
            severity=severity,
            text=text,
            job=self.job,
            level=change.level,
            rank=change.rank if change.level == "rank" else -1,
            t_ns=change.onset_t_ns,
            ratio=change.after_ns / before_ns if before_ns > 0 else change.ratio,
            before_ns=before_ns,
            after_ns=change.after_ns,
            onset_index=change.onset_index,
            said_index=change.said_index,
            episode=episode.number if episode else change.episode,
            suspects=episode.parts.plain() if episode else [],
        )


def _who(level: str, rank: int) -> str:
    return f"rank {rank} " if level == "rank" else ""
