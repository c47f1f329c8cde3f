"""Nodes, the gangs and Runner Trials on them, and what is free: kept up to date, or built anew.

Both ways give the same state. A pass works on copies, so deciding changes nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from trainshed.model.resources import Amounts
from trainshed.model.training.spec import ResourceType
from trainshed.policy.cluster import Held
from trainshed.policy.gangs.room import Layout, Room, mask_of
from trainshed.policy.gangs.snapshot import (
    Choice,
    GangClass,
    Group,
    LineKey,
    PlaceNode,
    Running,
    Shape,
)

__all__ = ["GangCluster", "LineKey", "Step", "add_usage", "likely_end", "line_key", "lines_used", "walk"]

Step = tuple[float, int]
"""From then on so many replicas of a shape fit on a node."""


def line_key(key: GangClass, spec: str) -> LineKey:
    return (key.project, key.resource_type, key.pool, spec)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a class on these nodes; each has one entry for a choice."""

    impossible: tuple[tuple[Group, int] | None, ...]
    """The first group that would not fit on empty nodes, and how much of it would."""
    looks: tuple[tuple[int, str, frozenset[str]], ...]
    """Equal for choices that fit or fail together."""
    kinds: tuple[tuple[int, ...], ...]
    """The kinds on which the largest replicas can run."""


class GangCluster:
    """What holds and what is free. Not thread-safe; the controller owns one."""

    def __init__(
        self,
        nodes: Iterable[PlaceNode],
        *,
        cordoned: Iterable[str] = (),
        running: Iterable[Running] = (),
        others: Iterable[Held] = (),
    ) -> None:
        self.running: dict[str, Running] = {}
        self.others: dict[str, Held] = {}
        self.used: dict[LineKey, int] = {}
        """Units that count against quotas."""
        self.lent: dict[tuple[str, str], int] = {}
        """``(pool, spec)`` -> units that run as idle."""
        self.of_line: dict[LineKey, dict[str, Running]] = {}
        self.of_pool: dict[str, dict[str, Running]] = {}
        self.evicting: dict[str, Running] = {}
        self.version = 0
        """Grows with every change."""
        self._cordoned = frozenset(cordoned)
        for one in running:
            self._remember(one)
        self.others.update((one.id, one) for one in others)
        self.replace(nodes, self._cordoned)

    def replace(self, nodes: Iterable[PlaceNode], cordoned: Iterable[str]) -> None:
        """The nodes there are now, and those of them on which nothing may start; costs a whole build."""
        self.layout = Layout(nodes)
        self.version += 1
        self._cordoned = frozenset(cordoned)
        self.open = {name: n for name, n in self.layout.numbers.items() if name not in self._cordoned}
        """Nodes on which something may start, name to number."""
        self.room = Room(self.layout)
        self.versions = [0] * len(self.layout.nodes)
        """Of each node: grows with every change on it."""
        self._on_node: list[dict[str, Running | Held]] = [{} for _ in self.layout.nodes]
        for running in self.running.values():
            for part in running.parts:
                if part.node in self.layout.numbers:
                    self._on_node[self.layout.numbers[part.node]][running.id] = running
        for held in self.others.values():
            if held.node in self.layout.numbers:
                self._on_node[self.layout.numbers[held.node]][held.id] = held
        self._steps: dict[tuple[int, Shape], dict[int, tuple[int, float, list[Step]]]] = {}
        self._forget_shapes()
        for number in range(len(self.layout.nodes)):
            self._recount(number)

    @property
    def cordoned(self) -> frozenset[str]:
        return self._cordoned

    def cordon(self, names: Iterable[str]) -> None:
        """Nothing starts on these nodes from now on, and on no others that were closed before."""
        changed = self._cordoned ^ frozenset(names)
        self._cordoned = frozenset(names)
        self.version += 1
        self._forget_shapes()
        for name in changed:
            number = self.layout.numbers.get(name)
            if number is None:
                continue
            if name in self._cordoned:
                self.open.pop(name, None)
            else:
                self.open[name] = number
            self._recount(number)

    def admit(self, running: Running) -> None:
        """Record a gang; one with the same id is replaced (it saved, or its notice went out)."""
        before = self.running.get(running.id)
        if before is not None:
            if before.parts == running.parts:
                self._forget(before)
                self._remember(running)
                self._touch(running)
                return
            self.release(running.id)
        self._remember(running)
        self._touch(running)
        for number in self._numbers(running):
            self._recount(number)

    def release(self, running_id: str) -> None:
        """Forget a gang when the release of its last part is confirmed; unknown ids are ignored."""
        running = self.running.get(running_id)
        if running is None:
            return
        self._forget(running)
        for number in self._numbers(running):
            self._on_node[number].pop(running_id, None)
            self._recount(number)

    def hold(self, held: Held) -> None:
        """Record what a Runner Trial holds."""
        self.release_other(held.id)
        self.others[held.id] = held
        self.version += 1
        number = self.layout.numbers.get(held.node)
        if number is not None:
            self._on_node[number][held.id] = held
            self._recount(number)

    def release_other(self, held_id: str) -> None:
        """Forget it; unknown ids are ignored."""
        held = self.others.pop(held_id, None)
        self.version += 1
        number = None if held is None else self.layout.numbers.get(held.node)
        if number is not None:
            self._on_node[number].pop(held_id, None)
            self._recount(number)

    def ever(self, kind: int, shape: Shape) -> int:
        """Replicas of a shape that the open nodes of a kind could serve if they were empty."""
        known = self._ever.get((kind, shape))
        if known is None:
            known = sum(self.layout.node_ever(n, kind, shape) for n in self.open_nodes(kind))
            self._ever[kind, shape] = known
        return known

    def facts(self, key: GangClass) -> Facts:
        """What stays so for a class while no node comes, goes, opens or closes."""
        known = self._facts.get(key)
        if known is None:
            layout = self.layout
            known = self._facts[key] = Facts(
                tuple(self._search_impossible(key, choice) for choice in key.choices),
                tuple((layout.looks_of(choice), key.pool, key.excluded) for choice in key.choices),
                tuple(layout.meaning(key.pool, choice.groups[0].gpu_model) for choice in key.choices),
            )
        return known

    def most_of(self, key: GangClass, number: int) -> tuple[Group, int] | None:
        """The first group that the open nodes could not serve even if empty, and how much of it fits."""
        return self.facts(key).impossible[number]

    def open_nodes(self, kind: int) -> list[int]:
        """The nodes of a kind on which something may start."""
        known = self._open_nodes.get(kind)
        if known is None:
            names = self.layout.names
            known = [n for n in self.layout.kind_nodes[kind] if names[n] in self.open]
            self._open_nodes[kind] = known
        return known

    def _search_impossible(self, key: GangClass, choice: Choice) -> tuple[Group, int] | None:
        layout = self.layout
        for group in choice.groups:
            ever = 0
            for kind in layout.meaning(key.pool, group.gpu_model):
                numbers = (self.open[name] for name in key.excluded if name in self.open)
                gone = sum(layout.node_ever(number, kind, group.shape) for number in numbers)
                ever = max(ever, self.ever(kind, group.shape) - gone)
            if ever < group.count:
                return group, ever
        if len(choice.groups) > 1 and not self._fits_empty(key, choice):
            return choice.groups[0], choice.groups[0].count - 1
        return None

    def _fits_empty(self, key: GangClass, choice: Choice) -> bool:
        """Whether different replicas fit together on open nodes without anything else on them."""
        room = Room(self.layout)
        for name, number in self.open.items():
            if name not in key.excluded:
                place = self.layout.nodes[number].node
                room.set_mask(number, mask_of(gpu.index for gpu in place.gpus))
                room.add(number, place.amounts, 1)
        return room.place(key.pool, choice, None) is not None

    def on_node(self, number: int) -> Iterable[Running | Held]:
        """What is on a node."""
        return self._on_node[number].values()

    def steps(self, number: int, kind: int, shape: Shape, now: float) -> list[Step]:
        """How many replicas of a shape will fit on a node, from when on; kept while nothing changes there.

        What is overdue by ``d`` seconds is expected to take ``d`` more.
        """
        known = self._steps.setdefault((kind, shape), {})
        found = known.get(number)
        if found is not None and found[0] == self.versions[number] and now <= found[1]:
            return found[2]
        ends = self.ends(number, now)
        steps = walk(self.room, number, kind, shape, ends, now)
        # What is overdue is expected later with every second: nothing to keep.
        if all(one.expected_end is None or one.expected_end >= now for one in self.on_node(number)):
            known[number] = (self.versions[number], ends[0][0] if ends else inf, steps)
        return steps

    def all_steps(self, kind: int, shape: Shape, now: float) -> list[tuple[int, list[Step]]]:
        """The same for every open node of a kind."""
        known = self._steps.setdefault((kind, shape), {})
        versions = self.versions
        every: list[tuple[int, list[Step]]] = []
        for number in self.open_nodes(kind):
            found = known.get(number)
            if found is None or found[0] != versions[number] or now > found[1]:
                every.append((number, self.steps(number, kind, shape, now)))
            else:
                every.append((number, found[2]))
        return every

    def ends(self, number: int, now: float) -> list[tuple[float, str, int, Amounts]]:
        """``(time, id, GPUs as a mask, amounts)`` of everything that will leave a node, in order."""
        name = self.layout.names[number]
        found = []
        for one in self._on_node[number].values():
            end = likely_end(one.expected_end, now)
            if isinstance(one, Held):
                found.append((end, one.id, mask_of(one.gpus), one.amounts))
                continue
            mask, amounts = 0, Amounts()
            for part in one.parts:
                if part.node == name:
                    mask |= mask_of(part.gpus)
                    amounts += part.amounts
            found.append((end, one.id, mask, amounts))
        return sorted(found, key=lambda entry: entry[:2])

    def _numbers(self, running: Running) -> Iterator[int]:
        names = {part.node for part in running.parts}
        return (self.layout.numbers[name] for name in sorted(names) if name in self.layout.numbers)

    def _remember(self, running: Running) -> None:
        self.version += 1
        self.running[running.id] = running
        self.of_pool.setdefault(running.key.pool, {})[running.id] = running
        if running.evicted_at is not None:
            self.evicting[running.id] = running
        self._count(running, 1)
        for spec, _ in running.all_units:
            self.of_line.setdefault(line_key(running.key, spec), {})[running.id] = running

    def _forget(self, running: Running) -> None:
        self.version += 1
        del self.running[running.id]
        del self.of_pool[running.key.pool][running.id]
        self.evicting.pop(running.id, None)
        self._count(running, -1)
        for spec, _ in running.all_units:
            del self.of_line[line_key(running.key, spec)][running.id]

    def _count(self, running: Running, sign: int) -> None:
        add_usage(self.used, self.lent, running, sign)

    def _forget_shapes(self) -> None:
        self._ever: dict[tuple[int, Shape], int] = {}
        self._facts: dict[GangClass, Facts] = {}
        self._open_nodes: dict[int, list[int]] = {}

    def _touch(self, running: Running) -> None:
        for number in self._numbers(running):
            self._on_node[number][running.id] = running
            self.versions[number] += 1

    def _recount(self, number: int) -> None:
        """Count a node from scratch: right even if two name one GPU, whichever ends first."""
        self.versions[number] += 1
        place = self.layout.nodes[number].node
        if place.name in self._cordoned:
            room, free = Amounts(), 0
        else:
            free = mask_of(gpu.index for gpu in place.gpus)
            room = place.amounts
            for _, _, mask, amounts in self.ends(number, 0.0):
                free &= ~mask
                room -= amounts
        if free != self.room.masks[number]:
            self.room.set_mask(number, free)
        self.room.cpus[number] = room.cpus
        self.room.memory_mb[number] = room.memory_mb
        self.room.storage_mb[number] = room.storage_mb
        self.room.shm_mb[number] = room.shm_mb


def add_usage(
    used: dict[LineKey, int], lent: dict[tuple[str, str], int], running: Running, sign: int
) -> None:
    """Count a gang's units (1) or take them out again (-1)."""
    key = running.key
    if key.resource_type is not ResourceType.IDLE:
        for spec, units in running.units:
            line = line_key(key, spec)
            used[line] = used.get(line, 0) + sign * units
    for spec, units in running.supplement:
        lent[key.pool, spec] = lent.get((key.pool, spec), 0) + sign * units


def likely_end(end: float | None, now: float) -> float:
    """When what holds resources will likely be gone; infinite if nobody can say."""
    if end is None:
        return inf
    return end if end >= now else now + (now - end)


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


def lines_used(cluster: GangCluster) -> Mapping[LineKey, int]:
    """Units in use by quota."""
    return {line: units for line, units in cluster.used.items() if units}
