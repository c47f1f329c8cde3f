"""The queue: Trials that may start, as classes of equal Trials, in their order.

Equal Trials of one project form a class, so that a pass decides once for all of them. Order is priority,
then first come; inside one class, first come. See `rank`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainshed.model.resources import Amounts
from trainshed.policy.effective import DAY_SECONDS


@dataclass(frozen=True, slots=True)
class TrialClass:
    """What makes two waiting Trials equal to the scheduler."""

    project: str
    priority: int
    """Higher goes first."""
    gpu_type: str
    amounts: Amounts
    timeout_seconds: int
    """An upper bound for every Trial of the class."""

    @property
    def token(self) -> str:
        """The class as text, for keys of JSON objects; equal exactly for equal classes."""
        a = self.amounts
        counts = f"{a.gpus},{a.cpus},{a.memory_mb},{a.storage_mb},{a.shm_mb}"
        return f"{self.priority}|{counts}|{self.timeout_seconds}|{self.gpu_type}|{self.project}"


def rank(priority: int, queued_at: float, worth_seconds: int = DAY_SECONDS) -> float:
    """A Trial's place in the order: lower goes first, Trial ids decide between equals.

    One step of priority is worth ``worth_seconds`` of waiting. Between Trials that came within that time
    of each other priority alone decides; beyond it the older one goes first, so that no stream of
    important Trials can starve the others (promise P11). The rank of a Trial never changes.
    """
    return queued_at - priority * worth_seconds


class Line:
    """The waiting Trials of one class, first come first."""

    __slots__ = ("entries", "key")

    def __init__(self, key: TrialClass) -> None:
        self.key = key
        self.entries: list[tuple[float, str]] = []
        """``(rank, trial id)``, ascending."""


class Queue:
    """All Trials that may start now. Not thread-safe; the controller owns one.

    Trials that wait for a back-off after a failed start are added when it is over, with the time at which
    they were first queued, so that they keep their place.
    """

    def __init__(self, worth_seconds: int = DAY_SECONDS) -> None:
        self._worth = worth_seconds
        self._lines: dict[TrialClass, Line] = {}
        self._where: dict[str, tuple[TrialClass, float]] = {}
        self._heads: list[tuple[float, str, Line]] = []

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._where

    def add(self, trial_id: str, key: TrialClass, queued_at: float) -> None:
        """Add a Trial that was queued at ``queued_at`` (Unix seconds); a known id is replaced."""
        if trial_id in self._where:
            self.remove(trial_id)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key)
        entry = (rank(key.priority, queued_at, self._worth), trial_id)
        self._where[trial_id] = (key, entry[0])
        if line.entries and entry > line.entries[0]:
            bisect.insort(line.entries, entry)
            return
        if line.entries:
            self._drop_head(line)
        line.entries.insert(0, entry)
        self._add_head(line)

    def remove(self, trial_id: str) -> None:
        """Take out a Trial that was placed, stopped or refused; unknown ids are ignored."""
        found = self._where.pop(trial_id, None)
        if found is None:
            return
        key, place = found
        line = self._lines[key]
        number = bisect.bisect_left(line.entries, (place, trial_id))
        if number:
            del line.entries[number]
            return
        self._drop_head(line)
        del line.entries[0]
        if line.entries:
            self._add_head(line)
        else:
            del self._lines[key]

    def key_of(self, trial_id: str) -> TrialClass:
        """The class of a waiting Trial; raises `KeyError` if it is not here."""
        return self._where[trial_id][0]

    def rank_of(self, trial_id: str) -> float:
        """See `rank`; raises `KeyError` for a Trial that is not here."""
        return self._where[trial_id][1]

    @property
    def heads(self) -> Sequence[tuple[float, str, Line]]:
        """The first Trial of every class, ``(rank, trial id, line)``, in their order."""
        return self._heads

    def lines(self) -> Iterator[Line]:
        """Every class with its Trials, in no promised order."""
        return iter(self._lines.values())

    def _add_head(self, line: Line) -> None:
        bisect.insort(self._heads, (*line.entries[0], line))

    def _drop_head(self, line: Line) -> None:
        place, trial_id = line.entries[0]
        # A trial id is in one line only, so the pair finds its line without comparing lines.
        del self._heads[bisect.bisect_left(self._heads, (place, trial_id))]
