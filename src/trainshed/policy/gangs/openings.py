"""When and where replicas of one shape will fit, in order: kept between passes, node by node.

A pass that looks for the earliest start of a gang takes the first entries. Only what a change or the clock
has touched is worked out again; the order is that of a search from scratch.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterable, Sequence
from math import inf

from trainshed.model.resources import Amounts
from trainshed.policy.gangs.room import Room
from trainshed.policy.gangs.snapshot import Shape

Gain = tuple[float, int, int, int]
"""Time, what is still held then (where the time is unknown), minus the replicas gained, node."""
Ends = list[tuple[float, str, int, Amounts]]
"""``(time, id, GPUs as a mask, amounts)`` of everything that will leave a node, in order."""
Step = tuple[float, int]
"""From then on so many replicas of a shape fit on a node."""
Look = Callable[[int], tuple[float, list[Gain]]]
"""Works out the entries of a node, and until when (exclusive) they stay so while nothing changes there."""

NOW = -inf
"""The time of what fits already, whenever it is asked."""
_FEW = 8
"""If more than one node in so many is to be worked out, sorting everything is faster."""


class Openings:
    """The entries of every open node of one kind for one shape. Not thread-safe."""

    __slots__ = ("_due", "_entries", "_of", "_seen", "_stale")

    def __init__(self) -> None:
        self._entries: list[Gain] = []
        self._of: dict[int, tuple[float, list[Gain]]] = {}
        self._stale: set[int] = set()
        self._due: list[tuple[float, int]] = []
        self._seen = inf
        """The last time that was asked for; before any, the end of time."""

    def changed(self, number: int) -> None:
        """Something changed on a node, or it opened or closed."""
        self._stale.add(number)

    def moved(self, numbers: Sequence[int | None]) -> None:
        """Nodes have new numbers in the same order: ``numbers`` has them by the old ones, None if gone."""
        self._stale = {new for old in self._stale if (new := numbers[old]) is not None}
        moved: list[Gain] = []
        for at, still, gain, old in self._entries:
            new = numbers[old]
            if new is not None:
                moved.append((at, still, gain, new))
        self._entries = moved
        self._of = {
            new: (until, [(at, still, gain, new) for at, still, gain, _ in entries])
            for old, (until, entries) in self._of.items()
            if (new := numbers[old]) is not None
        }
        self._due = [(until, number) for number, (until, _) in self._of.items() if until != inf]
        heapq.heapify(self._due)

    def at(self, now: float, nodes: Iterable[int], look: Look) -> Sequence[Gain]:
        """Every entry in order, with `NOW` for what fits already; ``nodes`` are the open ones."""
        if now < self._seen:
            self._begin(now, nodes, look)
            return self._entries
        self._seen = now
        stale, self._stale = self._stale, set()
        while self._due and self._due[0][0] <= now:
            until, number = heapq.heappop(self._due)
            if number in self._of and self._of[number][0] == until:
                stale.add(number)
        if len(stale) * _FEW > len(self._of) + _FEW:
            self._begin(now, nodes, look)
            return self._entries
        for number in sorted(stale):
            self._again(number, look)
        return self._entries

    def _begin(self, now: float, nodes: Iterable[int], look: Look) -> None:
        self._seen = now
        self._stale.clear()
        self._of = {number: look(number) for number in nodes}
        self._entries = sorted(entry for _, entries in self._of.values() for entry in entries)
        self._due = [(until, number) for number, (until, _) in self._of.items() if until != inf]
        heapq.heapify(self._due)

    def _again(self, number: int, look: Look) -> None:
        before = self._of.get(number, (inf, []))
        found = self._of[number] = look(number)
        if found[0] != inf:
            heapq.heappush(self._due, (found[0], number))
        if found[1] == before[1]:
            return
        for entry in before[1]:
            del self._entries[bisect.bisect_left(self._entries, entry)]
        for entry in found[1]:
            bisect.insort(self._entries, entry)


def held_until(room: Room, number: int, kind: int, ends: Ends, soon: float) -> tuple[int, float]:
    """What a node has not free soon, GPUs of a kind or cores for one of CPUs, and the next end after that."""
    mask, cpus, following = room.masks[number], room.cpus[number], inf
    for end, _, gpus, amounts in ends:
        if end > soon:
            following = end
            break
        mask |= gpus
        cpus += amounts.cpus
    layout = room.layout
    if layout.models[kind] is None:
        return max(0, layout.nodes[number].node.amounts.cpus - cpus), following
    return (layout.all_gpus[kind][number] & ~mask).bit_count(), following


def walk(
    room: Room,
    number: int,
    kind: int,
    shape: Shape,
    ends: Iterable[tuple[float, str, int, Amounts]],
    now: float,
) -> list[Step]:
    """How many replicas of a shape fit on a node, now and after each end; changes nothing in the end."""
    steps = [(now, room.fit(number, kind, shape))]
    undone: list[tuple[int, Amounts]] = []
    mask_before = room.masks[number]
    for at, _, mask, amounts in ends:
        room.masks[number] |= mask
        room.add(number, amounts, 1)
        undone.append((mask, amounts))
        fit = room.fit(number, kind, shape)
        if fit > steps[-1][1]:
            steps.append((at, fit))
    room.masks[number] = mask_before
    for _, amounts in undone:
        room.add(number, amounts, -1)
    return steps
