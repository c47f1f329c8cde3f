"""The waiting tasks as classes of equal ones, in their order (c5).

Within a queue - pool, resource type, project - priority decides, then the first submission, which a task
keeps over preemption and automatic resubmission. Queues of one pool are tried by resource type, the one that
may preempt the others first (c3), and then by the same rule.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.snapshot import GangClass, Waiting

if TYPE_CHECKING:
    from trainshed.policy.gangs.standing import Notes

Rank = tuple[int, int, float, str]
"""Lower goes first: tier of the resource type, priority, first submission, id."""
QueueKey = tuple[str, ResourceType, str]
"""Pool, resource type, project."""

TIERS: Mapping[ResourceType, int] = MappingProxyType(
    {ResourceType.RESERVED: 0, ResourceType.ONDEMAND: 1, ResourceType.SPOT: 2, ResourceType.IDLE: 3}
)


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a task stands; both count from 1 (c2)."""

    in_queue: int
    """Among the tasks of its pool, resource type and project that would be tried earlier."""
    in_project: int
    queue_length: int
    ahead: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Priority -> tasks ahead in the queue; numbers only, whoever they belong to."""


def rank(waiting: Waiting) -> Rank:
    """A task's place in the order of its pool."""
    key = waiting.key
    return (TIERS[key.resource_type], -key.priority, waiting.queued_at, waiting.id)


class GangLine:
    """The waiting tasks of one class, first come first."""

    __slots__ = ("entries", "key", "notes", "place")

    def __init__(self, key: GangClass) -> None:
        self.key = key
        self.place = (TIERS[key.resource_type], -key.priority)
        self.entries: list[tuple[float, str]] = []
        """``(queued at, id)``, ascending."""
        self.notes: Notes | None = None
        """What passes remember of the class."""


class GangQueue:
    """All tasks that wait. Not thread-safe; the controller owns one."""

    def __init__(self, waiting: Iterable[Waiting] = ()) -> None:
        self.tasks: dict[str, Waiting] = {}
        self.planned: dict[str, Waiting] = {}
        """Those with a plan, which are served first."""
        self.lines: dict[GangClass, GangLine] = {}
        self._queues: dict[QueueKey, dict[GangClass, GangLine]] = {}
        self._heads: list[tuple[Rank, GangLine]] = []
        self._asleep: list[tuple[float, str]] = []
        self.sleeping: dict[str, Waiting] = {}
        """Those whose back-off is not over."""
        self.simulated: dict[GangClass, dict[int, tuple[float, int, float | None]]] = {}
        """When a preemption for a choice of a class was last simulated in vain, on which version of the
        cluster, and when another gang will be old enough to be a victim."""
        for one in waiting:
            self.add(one)

    def __len__(self) -> int:
        return len(self.tasks)

    def __contains__(self, waiting_id: object) -> bool:
        return waiting_id in self.tasks

    def add(self, waiting: Waiting) -> None:
        """Add a task; a known id is replaced (its priority changed, or it got a plan)."""
        self.remove(waiting.id)
        self.tasks[waiting.id] = waiting
        if waiting.not_before is not None:
            self.sleeping[waiting.id] = waiting
            heapq.heappush(self._asleep, (waiting.not_before, waiting.id))
            return
        self._insert(waiting)

    def remove(self, waiting_id: str) -> None:
        """Take out a task that was admitted or stopped; unknown ids are ignored."""
        waiting = self.tasks.pop(waiting_id, None)
        if waiting is None:
            return
        self.planned.pop(waiting_id, None)
        if self.sleeping.pop(waiting_id, None) is not None:
            return
        line = self.lines[waiting.key]
        entry = (waiting.queued_at, waiting_id)
        number = bisect.bisect_left(line.entries, entry)
        if number:
            del line.entries[number]
            return
        self._drop_head(line)
        del line.entries[0]
        if line.entries:
            self._add_head(line)
        else:
            del self.lines[line.key]
            self.simulated.pop(line.key, None)
            del self._queues[_queue_of(line.key)][line.key]

    def wake(self, now: float) -> None:
        """Let those in whose back-off is over; every pass begins with it."""
        while self._asleep and self._asleep[0][0] <= now:
            at, waiting_id = heapq.heappop(self._asleep)
            waiting = self.sleeping.get(waiting_id)
            if waiting is not None and waiting.not_before == at:
                del self.sleeping[waiting_id]
                self._insert(waiting)

    @property
    def next_wake(self) -> float | None:
        """The end of the next back-off."""
        while self._asleep and self._asleep[0][1] not in self.sleeping:
            heapq.heappop(self._asleep)
        return self._asleep[0][0] if self._asleep else None

    @property
    def heads(self) -> Sequence[tuple[Rank, GangLine]]:
        """The first task of every class in their order."""
        return self._heads

    def in_order(self) -> Iterator[Waiting]:
        """Every task that is awake, in the order in which passes try them."""
        lines = (((*line.place, *entry), line) for line in self.lines.values() for entry in line.entries)
        return (self.tasks[found[3]] for found, _ in sorted(lines, key=lambda one: one[0]))

    def place(self, waiting_id: str) -> QueuePlace:
        """Where a task stands, from 1 (c2); raises `KeyError` for one that is not here."""
        waiting = self.tasks[waiting_id]
        mine, key = rank(waiting), waiting.key
        ahead: dict[int, int] = {}
        queue_length = in_project = 0
        for (_, _, project), lines in self._queues.items():
            if project != key.project:
                continue
            for line in lines.values():
                before = _before(line, mine)
                in_project += before
                if line.key.pool == key.pool and line.key.resource_type is key.resource_type:
                    queue_length += len(line.entries)
                    if before:
                        ahead[line.key.priority] = ahead.get(line.key.priority, 0) + before
        if waiting_id in self.sleeping:
            queue_length += 1
        return QueuePlace(sum(ahead.values()) + 1, in_project + 1, queue_length, MappingProxyType(ahead))

    def _insert(self, waiting: Waiting) -> None:
        if waiting.plan is not None:
            self.planned[waiting.id] = waiting
        line = self.lines.get(waiting.key)
        if line is None:
            line = self.lines[waiting.key] = GangLine(waiting.key)
            self._queues.setdefault(_queue_of(waiting.key), {})[waiting.key] = line
        entry = (waiting.queued_at, waiting.id)
        if line.entries and entry > line.entries[0]:
            bisect.insort(line.entries, entry)
            return
        if line.entries:
            self._drop_head(line)
        line.entries.insert(0, entry)
        self._add_head(line)

    def _add_head(self, line: GangLine) -> None:
        bisect.insort(self._heads, ((*line.place, *line.entries[0]), line), key=_first)

    def _drop_head(self, line: GangLine) -> None:
        place = (*line.place, *line.entries[0])
        del self._heads[bisect.bisect_left(self._heads, place, key=_first)]


def _first(head: tuple[Rank, GangLine]) -> Rank:
    return head[0]


def _queue_of(key: GangClass) -> QueueKey:
    return (key.pool, key.resource_type, key.project)


def _before(line: GangLine, mine: Rank) -> int:
    """How many tasks of a line would be tried before a place in the order."""
    if line.place != mine[:2]:
        return len(line.entries) if line.place < mine[:2] else 0
    return bisect.bisect_left(line.entries, mine[2:])
