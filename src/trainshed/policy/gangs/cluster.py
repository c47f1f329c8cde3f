"""Nodes, the gangs and Runner Trials on them, and what is free: kept up to date, or built anew.

Both ways give the same state. A pass works on copies, so deciding changes nothing here but what is remembered
for the next one: what was worked out about nodes, kinds and classes that did not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from trainshed.model.resources import Amounts
from trainshed.policy.cluster import Held
from trainshed.policy.gangs.candidates import Candidates
from trainshed.policy.gangs.layout import Layout
from trainshed.policy.gangs.openings import NOW, Ends, Gain, Openings, held_until, walk
from trainshed.policy.gangs.quota import Ledger, QuotaTable
from trainshed.policy.gangs.room import Room, mask_of
from trainshed.policy.gangs.snapshot import (
    Choice,
    GangClass,
    Group,
    LineKey,
    PlaceNode,
    Running,
    Shape,
)
from trainshed.policy.gangs.usage import add_usage, likely_end, line_key

__all__ = ["Ends", "GangCluster", "LineKey", "add_usage"]

_MANY_CLASSES = 20_000
"""With more of them known everything is forgotten at the next change of nodes: most have gone long ago."""
_MANY_SHAPES = 64
"""Of so many the openings are kept, those asked for last."""
_MARGIN = 0.001
"""Seconds: sums of times are not exact."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a class on these nodes; each has one entry for a choice."""

    looks: tuple[int, ...]
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
        self._cordoned: frozenset[str] = frozenset()
        self.layout = Layout(())
        self.room = Room(self.layout)
        self.open: dict[str, int] = {}
        """Nodes on which something may start, name to number."""
        self._on_node: list[dict[str, Running | Held]] = []
        self._shares: list[dict[str, tuple[int, Amounts]]] = []
        """Of each node: what everything on it holds there, GPUs as a mask and the rest."""
        self._ends: list[Ends | None] = []
        self._openings: dict[tuple[int, Shape, float], Openings] = {}
        self._ever: dict[tuple[int, Shape], int] = {}
        self._facts: dict[GangClass, Facts] = {}
        self.known = object()
        """Another one once `facts` may say something else."""
        self._looks: dict[tuple[int, str, frozenset[str]], int] = {}
        self._impossible: dict[int, tuple[Group, int] | None] = {}
        self._ledger: Ledger | None = None
        self._candidates: dict[str, Candidates] = {}
        self._open_nodes: dict[int, list[int]] = {}
        self._empty: Room | None = None
        for one in running:
            self._remember(one)
        self.others.update((one.id, one) for one in others)
        self.replace(nodes, cordoned)

    def replace(self, nodes: Iterable[PlaceNode], cordoned: Iterable[str]) -> None:
        """The nodes there are now, and those of them on which nothing may start.

        What is known of nodes that stay as they are stays known.
        """
        before = self.layout
        known = len(self._facts) < _MANY_CLASSES
        layout = Layout(nodes, before if known else None)
        cordoned = frozenset(cordoned)
        closed = self._cordoned ^ cordoned
        self.version += 1
        old_numbers = [before.numbers.get(name, -1) for name in layout.names]
        stay = [
            old if old >= 0 and name not in closed and _same(before.nodes[old], place) else -1
            for name, place, old in zip(layout.names, layout.nodes, old_numbers, strict=True)
        ]
        self._forget_nodes(set(range(len(before.nodes))).difference(stay))
        self._cordoned = cordoned
        self._move(layout, old_numbers, stay)
        if not known or layout.order != before.order:
            self._facts, self.known = {}, object()
        if not known:
            self._openings, self._ever, self._looks = {}, {}, {}
        for number, old in enumerate(stay):
            if old < 0:
                self._recount(number)
                self._count_ever(number, 1)

    def _forget_nodes(self, gone: Iterable[int]) -> None:
        """Take nodes that go or change out of what is known of all."""
        self._impossible = {}
        self._open_nodes = {}
        self._empty = None
        for number in gone:
            self._count_ever(number, -1)

    def _move(self, layout: Layout, old_numbers: Sequence[int], stay: Sequence[int]) -> None:
        """Carry what is known of each node over to its new number."""
        before = self.layout
        numbers = [layout.numbers.get(name) for name in before.names]
        self.layout = layout
        self.room = Room.moved(layout, self.room, stay)
        self.open = {name: n for name, n in layout.numbers.items() if name not in self._cordoned}
        self._ends = [self._ends[old] if old >= 0 else None for old in old_numbers]
        self._on_node = [self._on_node[old] if old >= 0 else {} for old in old_numbers]
        self._shares = [self._shares[old] if old >= 0 else {} for old in old_numbers]
        fresh = {layout.names[number]: number for number, old in enumerate(old_numbers) if old < 0}
        if fresh:
            self._find_what_is_on(fresh)
        for openings in self._openings.values():
            openings.moved(numbers)

    def _find_what_is_on(self, fresh: Mapping[str, int]) -> None:
        """On nodes that came."""
        for running in self.running.values():
            for name in {part.node for part in running.parts} & fresh.keys():
                self._note(running, fresh[name])
        for held in self.others.values():
            if held.node in fresh:
                self._note(held, fresh[held.node])

    def _note(self, one: Running | Held, number: int) -> tuple[int, Amounts]:
        self._on_node[number][one.id] = one
        share = self._shares[number][one.id] = self._share(one, number)
        return share

    @property
    def cordoned(self) -> frozenset[str]:
        return self._cordoned

    def cordon(self, names: Iterable[str]) -> None:
        """Nothing starts on these nodes from now on, and on no others that were closed before."""
        changed = self._cordoned ^ frozenset(names)
        numbers = [self.layout.numbers[name] for name in sorted(changed) if name in self.layout.numbers]
        self.version += 1
        self._forget_nodes(numbers)
        self._cordoned = frozenset(names)
        for number in numbers:
            name = self.layout.names[number]
            if name in self._cordoned:
                self.open.pop(name, None)
            else:
                self.open[name] = number
            self._recount(number)
            self._count_ever(number, 1)

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
        for number in self._numbers(running):
            self._put(running, number)

    def release(self, running_id: str) -> None:
        """Forget a gang when the release of its last part is confirmed; unknown ids are ignored."""
        running = self.running.get(running_id)
        if running is None:
            return
        self._forget(running)
        for number in self._numbers(running):
            self._take(running_id, number)

    def hold(self, held: Held) -> None:
        """Record what a Runner Trial holds."""
        self.release_other(held.id)
        self.others[held.id] = held
        self.version += 1
        number = self.layout.numbers.get(held.node)
        if number is not None:
            self._put(held, number)

    def release_other(self, held_id: str) -> None:
        """Forget it; unknown ids are ignored."""
        held = self.others.pop(held_id, None)
        self.version += 1
        number = None if held is None else self.layout.numbers.get(held.node)
        if number is not None:
            self._take(held_id, number)

    def ledger(self, table: QuotaTable) -> Ledger:
        """The units in use, to be counted on; what is worked out with it is known to the next one as well."""
        if self._ledger is None or self._ledger.table is not table:
            self._ledger = Ledger(table, self.used, self.lent)
        return self._ledger.copy()

    def candidates(self, pool: str, now: float, min_run_seconds: float) -> Candidates:
        """Who might have to go in a pool."""
        found = self._candidates.get(pool)
        if found is None or found.min_run_seconds != min_run_seconds or now < found.now:
            running = self.of_pool.get(pool, {}).values()
            found = self._candidates[pool] = Candidates(running, now, min_run_seconds)
        return found.at(now)

    def ever(self, kind: int, shape: Shape) -> int:
        """Replicas of a shape that the open nodes of a kind could serve if they were empty."""
        known = self._ever.get((kind, shape))
        if known is None:
            known = sum(self.layout.node_ever(n, kind, shape) for n in self.open_nodes(kind))
            self._ever[kind, shape] = known
        return known

    def facts(self, key: GangClass) -> Facts:
        """What stays so for a class while no kind of nodes comes or goes."""
        known = self._facts.get(key)
        if known is None:
            layout = self.layout
            known = self._facts[key] = Facts(
                tuple(
                    self._looks.setdefault(
                        (layout.looks_of(choice), key.pool, key.excluded), len(self._looks)
                    )
                    for choice in key.choices
                ),
                tuple(layout.meaning(key.pool, choice.groups[0].gpu_model) for choice in key.choices),
            )
        return known

    def most_of(self, key: GangClass, number: int) -> tuple[Group, int] | None:
        """The first group that the open nodes could not serve even if empty, and how much of it fits."""
        looks = self.facts(key).looks[number]
        if looks not in self._impossible:
            self._impossible[looks] = self._search_impossible(key, key.choices[number])
        return self._impossible[looks]

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
        if self._empty is None:
            self._empty = Room.empty(self.layout, self.open.values())
        room = self._empty
        if key.excluded:
            without = (n for name, n in self.open.items() if name not in key.excluded)
            room = Room.empty(self.layout, without)
        placed = room.place(key.pool, choice, None)
        if placed is not None:
            room.undo(choice, placed)
        return placed is not None

    def on_node(self, number: int) -> Iterable[Running | Held]:
        """What is on a node."""
        return self._on_node[number].values()

    def openings(self, kind: int, shape: Shape, now: float, unknown_seconds: float) -> Sequence[Gain]:
        """When replicas of a shape will fit on which open nodes of a kind, in order.

        What is overdue by ``d`` seconds is expected to take ``d`` more. Among nodes of which nobody can say
        when they are free, those go first on which least is left after ``unknown_seconds``.
        """
        key = (kind, shape, unknown_seconds)
        found = self._openings.pop(key, None)
        if found is None:
            found = Openings()
            while len(self._openings) >= _MANY_SHAPES:
                del self._openings[next(iter(self._openings))]
        self._openings[key] = found
        return found.at(now, self.open_nodes(kind), partial(self._look, kind, shape, now, unknown_seconds))

    def _look(
        self, kind: int, shape: Shape, now: float, unknown_seconds: float, number: int
    ) -> tuple[float, list[Gain]]:
        """What opens on one node, and until when that stays so."""
        layout = self.layout
        if not layout.has(number, kind) or layout.names[number] not in self.open:
            return inf, []
        ends = self.ends(number, now)
        until = now if self._ends[number] is None else ends[0][0] if ends else inf
        gains: list[Gain] = []
        before = 0
        for at, fit in walk(self.room, number, kind, shape, ends, now):
            if fit <= before:
                continue
            held = 0
            if at == inf:
                held, changes = held_until(self.room, number, kind, ends, now + unknown_seconds)
                until = min(until, changes - unknown_seconds - _MARGIN)
            gains.append((NOW if at <= now else at, held, before - fit, number))
            before = fit
        return until, gains

    def ends(self, number: int, now: float) -> Ends:
        """What will leave a node and when; kept while nothing changes there and nothing is overdue."""
        known = self._ends[number]
        if known is not None and (not known or now <= known[0][0]):
            return known
        here, shares = self._on_node[number].values(), self._shares[number]
        found: Ends = [(likely_end(one.expected_end, now), one.id, *shares[one.id]) for one in here]
        found.sort(key=_by_end)
        overdue = any(one.expected_end is not None and one.expected_end < now for one in here)
        # What is overdue is expected later with every second: nothing to keep.
        self._ends[number] = None if overdue else found
        return found

    def _share(self, one: Running | Held, number: int) -> tuple[int, Amounts]:
        """The GPUs that something holds on a node, as a mask, and everything else."""
        if isinstance(one, Held):
            return mask_of(one.gpus), one.amounts
        name = self.layout.names[number]
        parts = [part for part in one.parts if part.node == name]
        if len(parts) == 1:
            return mask_of(parts[0].gpus), parts[0].amounts
        mask = 0
        for part in parts:
            mask |= mask_of(part.gpus)
        return mask, sum((part.amounts for part in parts), Amounts())

    def _numbers(self, running: Running) -> Iterator[int]:
        names = {part.node for part in running.parts}
        return (self.layout.numbers[name] for name in sorted(names) if name in self.layout.numbers)

    def _remember(self, running: Running) -> None:
        self.version += 1
        self.running[running.id] = running
        self.of_pool.setdefault(running.key.pool, {})[running.id] = running
        if running.key.pool in self._candidates:
            self._candidates[running.key.pool].add(running)
        if running.evicted_at is not None:
            self.evicting[running.id] = running
        self._count(running, 1)
        for spec, _ in running.all_units:
            self.of_line.setdefault(line_key(running.key, spec), {})[running.id] = running

    def _forget(self, running: Running) -> None:
        self.version += 1
        del self.running[running.id]
        del self.of_pool[running.key.pool][running.id]
        if running.key.pool in self._candidates:
            self._candidates[running.key.pool].discard(running)
        self.evicting.pop(running.id, None)
        self._count(running, -1)
        for spec, _ in running.all_units:
            del self.of_line[line_key(running.key, spec)][running.id]

    def _count(self, running: Running, sign: int) -> None:
        if self._ledger is None:
            add_usage(self.used, self.lent, running, sign)
        else:
            self._ledger.count(running, sign)

    def _count_ever(self, number: int, sign: int) -> None:
        """A node is there (1) for what the nodes could serve if they were empty, or no longer (-1)."""
        if self.layout.names[number] not in self.open:
            return
        for kind, shape in self._ever:
            if self.layout.has(number, kind):
                self._ever[kind, shape] += sign * self.layout.node_ever(number, kind, shape)

    def _changed(self, number: int) -> None:
        """Forget what was worked out about a node."""
        self._ends[number] = None
        for openings in self._openings.values():
            openings.changed(number)

    def _touch(self, running: Running) -> None:
        for number in self._numbers(running):
            self._on_node[number][running.id] = running
            self._changed(number)

    def _put(self, one: Running | Held, number: int) -> None:
        """Take what something holds on a node."""
        mask, amounts = self._note(one, number)
        self._changed(number)
        if self.layout.names[number] in self._cordoned:
            return
        if mask & self.room.masks[number]:
            self.room.set_mask(number, self.room.masks[number] & ~mask)
        self.room.add(number, amounts, -1)

    def _take(self, id_: str, number: int) -> None:
        """Give it back, but for GPUs that something else names as well."""
        self._on_node[number].pop(id_, None)
        share = self._shares[number].pop(id_, None)
        self._changed(number)
        if share is None or self.layout.names[number] in self._cordoned:
            return
        free = share[0] & self._gpus(number) if share[0] else 0
        if free:
            for other, _ in self._shares[number].values():
                free &= ~other
            self.room.set_mask(number, self.room.masks[number] | free)
        self.room.add(number, share[1], 1)

    def _gpus(self, number: int) -> int:
        return sum(self.layout.all_gpus[kind][number] for kind in self.layout.node_kinds[number])

    def _recount(self, number: int) -> None:
        """Count a node from scratch."""
        self._changed(number)
        place = self.layout.nodes[number].node
        if place.name in self._cordoned:
            room, free = Amounts(), 0
        else:
            free = self._gpus(number)
            room = place.amounts
            for mask, amounts in self._shares[number].values():
                free &= ~mask
                room -= amounts
        if free != self.room.masks[number]:
            self.room.set_mask(number, free)
        self.room.cpus[number] = room.cpus
        self.room.memory_mb[number] = room.memory_mb
        self.room.storage_mb[number] = room.storage_mb
        self.room.shm_mb[number] = room.shm_mb


def _same(one: PlaceNode, other: PlaceNode) -> bool:
    return one is other or one == other


def _by_end(entry: tuple[float, str, int, Amounts]) -> tuple[float, str]:
    return entry[:2]
