"""Who must go so that a task can start: nobody, unless the task then fits node by node (c4, C30).

Only gangs of lower rank (c3), whole, and only after their minimum run:

| waits    | may evict                                                                                |
| -------- | ---------------------------------------------------------------------------------------- |
| reserved | idle, supplement, spot; other projects' gangs while these borrow, if the task itself      |
|          | stays within its own units; its own project's lower priorities                           |
| ondemand | idle, supplement, spot; ondemand of lower priority                                        |
| spot     | idle, supplement                                                                          |
| idle     | nobody                                                                                   |

A guaranteed gang is nobody's victim. Order: borrowers first, then the lower resource type, the lower
priority, the later admission; then, going back over the list, every victim that is not needed is spared. The
same is tried with fewest lost GPU-seconds instead of the later admission, and the milder outcome is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.candidates import TIER, borrows, tier
from trainshed.policy.gangs.quota import Ledger
from trainshed.policy.gangs.reservations import Bounds
from trainshed.policy.gangs.room import Room, parts_of
from trainshed.policy.gangs.snapshot import Choice, GangClass, GangReason, Part, Running
from trainshed.policy.gangs.usage import line_key

_R = ResourceType


def lost(running: Running, now: float) -> float:
    """GPU-seconds of work since the last checkpoint; for CPU gangs each replica counts as one."""
    saved = running.checkpointed_at
    since = running.admitted_at if saved is None else max(running.admitted_at, saved)
    return max(0.0, now - since) * (running.gpus or len(running.parts))


@dataclass(frozen=True, slots=True)
class Found:
    """Victims, and where the task goes once they are gone."""

    victims: tuple[Running, ...]
    parts: tuple[Part, ...]


@dataclass(slots=True)
class Simulation:
    """What would be free without some gangs; works on copies of its own."""

    room: Room
    ledger: Ledger
    nodes: Mapping[str, int]
    """Nodes on which something may start, by name."""
    key: GangClass
    choice: Choice
    bounds: Bounds
    capacity: dict[str, int]
    now: float
    fit: int = 0
    """Replicas of the largest group that fit."""

    def search(self, candidates: Sequence[Running], going: Sequence[Running]) -> Found | None:
        """The mildest set of victims found; ``going`` are on their way out already and cost nothing."""
        for one in going:
            self._remove(one)
        best: tuple[tuple[object, ...], Found] | None = None
        for order in (self._by_admission, self._by_loss):
            victims = self._victims(sorted(candidates, key=order))
            if victims is None:
                return None
            found = self._place(victims)
            if found is None:
                return None
            severity = (self._severity(victims), len(victims), sum(lost(v, self.now) for v in victims))
            if best is None or severity < best[0]:
                best = (severity, found)
        return None if best is None else best[1]

    def _by_admission(self, one: Running) -> tuple[object, ...]:
        return (*self._class(one), -one.admitted_at, lost(one, self.now), one.id)

    def _by_loss(self, one: Running) -> tuple[object, ...]:
        return (*self._class(one), lost(one, self.now), -one.admitted_at, one.id)

    def _class(self, one: Running) -> tuple[int, int, int]:
        of = tier(one)
        borrower = of == 0 or (one.key.project != self.key.project and of == TIER[_R.RESERVED])
        return (0 if borrower else 1, of, one.key.priority)

    def _severity(self, victims: Sequence[Running]) -> tuple[tuple[int, int, int], ...]:
        return tuple(sorted(map(self._class, victims), reverse=True)[:1])

    def _victims(self, order: Sequence[Running]) -> list[Running] | None:
        """Take gangs away until the task fits, then spare each that it fits without; ends as it began."""
        self.fit = self._count()
        gone: list[Running] = []
        fits = self._fits()
        for one in order:
            if fits:
                break
            if self._reclaimed(one) and not borrows(one, self.ledger):
                continue
            self._counting(one, self._remove)
            gone.append(one)
            fits = self._fits()
        needed = list(gone)
        if fits:
            for one in reversed(gone):
                self._counting(one, self._restore)
                if self._fits():
                    needed.remove(one)
                else:
                    self._counting(one, self._remove)
        for one in needed:
            self._restore(one)
        return needed if fits else None

    def _reclaimed(self, one: Running) -> bool:
        return tier(one) == TIER[_R.RESERVED] and one.key.project != self.key.project

    def _place(self, victims: Sequence[Running]) -> Found | None:
        for one in victims:
            self._remove(one)
        placed = self.room.place(self.key.pool, self.choice, self.bounds)
        found = None
        if placed is not None:
            found = Found(tuple(victims), parts_of(self.room.layout, self.choice, placed))
            self.room.undo(self.choice, placed)
        for one in victims:
            self._restore(one)
        return found

    def _fits(self) -> bool:
        if self.fit < self.choice.groups[0].count:
            return False
        if isinstance(self.ledger.check(self.key, self.choice, self.capacity), GangReason):
            return False
        placed = self.room.place(self.key.pool, self.choice, self.bounds)
        if placed is None:
            return False
        self.room.undo(self.choice, placed)
        return True

    def _kinds(self) -> tuple[int, ...]:
        return self.room.layout.meaning(self.key.pool, self.choice.groups[0].gpu_model)

    def _count(self) -> int:
        """No less than what fits: replicas of one gang never mix GPU models."""
        return sum(self._on(node, (kind,)) for kind in self._kinds() for node in self._of(kind))

    def _of(self, kind: int) -> Sequence[int]:
        return self.room.layout.kind_nodes[kind]

    def _on(self, node: int, kinds: Iterable[int]) -> int:
        shape = self.choice.groups[0].shape
        total = 0
        for kind in kinds:
            fit = self.room.fit(node, kind, shape)
            total += self.bounds.most(node, kind, shape, fit) if fit else 0
        return total

    def _counting(self, one: Running, change: Callable[[Running], None]) -> None:
        """Change one gang and keep count of what fits."""
        nodes = {self.nodes[part.node] for part in one.parts if part.node in self.nodes}
        kinds = self._kinds()
        before = sum(self._on(node, kinds) for node in nodes)
        change(one)
        self.fit += sum(self._on(node, kinds) for node in nodes) - before

    def _remove(self, one: Running) -> None:
        self.room.give_parts(one.parts, self.nodes)
        self._charge(one, -1)

    def _restore(self, one: Running) -> None:
        self.room.take_parts(one.parts, self.nodes)
        self._charge(one, 1)

    def _charge(self, one: Running, sign: int) -> None:
        if one.key.resource_type is not _R.IDLE:
            for spec, units in one.units:
                self.ledger.add(line_key(one.key, spec), sign * units)
        for spec, units in one.supplement:
            self.ledger.add_lent(one.key.pool, spec, sign * units)


def on_the_way_out(running: Iterable[Running], claimed: Iterable[str], now: float) -> Iterator[Running]:
    """Gangs that will be gone soon and that no plan counts on."""
    taken = set(claimed)
    for one in running:
        if one.id not in taken and (one.gone_by is None or one.gone_by >= now):
            yield one
