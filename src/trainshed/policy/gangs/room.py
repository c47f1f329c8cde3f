"""What is free, node by node, and where the replicas of a gang fit: sums lie (C27).

A `Layout` is what does not change while nodes stay. A `Room` is what is free of it; a pass works on a copy.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from trainshed.model.resources import Amounts
from trainshed.policy.gangs.layout import MANY, Layout, capacity
from trainshed.policy.gangs.snapshot import Choice, Group, Part, Shape

Spot = tuple[int, int]
"""A node by its number, and replicas on it."""
Placed = tuple[int, int]
"""A node by its number, and the GPUs of one replica as a mask."""


class Limits(Protocol):
    """What bounds a gang beside what is free."""

    def most(self, node: int, kind: int, shape: Shape, fit: int) -> int:
        """How many of the ``fit`` replicas that would fit on a node may be there."""


class Room:
    """Free amounts of every node, with nodes indexed by how many GPUs of a kind are free."""

    __slots__ = ("buckets", "cpus", "gpus", "layout", "masks", "memory_mb", "shm_mb", "storage_mb")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.masks = [0] * len(layout.nodes)
        """Bit ``i`` is set if GPU ``i`` of the node is free."""
        self.cpus = [0] * len(layout.nodes)
        self.memory_mb = [0] * len(layout.nodes)
        self.storage_mb = [0] * len(layout.nodes)
        self.shm_mb = [0] * len(layout.nodes)
        self.gpus = [0] * len(layout.models)
        """Free GPUs of each kind, all nodes together."""
        self.buckets: list[list[list[int]]] = [[list(numbers)] for numbers in layout.kind_nodes]
        """``buckets[kind][count]``: the nodes with ``count`` free GPUs of the kind, ascending."""

    @classmethod
    def moved(cls, layout: Layout, before: Room, came_from: Sequence[int]) -> Room:
        """The same free amounts for another layout.

        ``came_from`` has the former number of each node, or -1 for one of which nothing is free yet.
        """
        room = cls(layout)
        for name in ("masks", "cpus", "memory_mb", "storage_mb", "shm_mb"):
            was = getattr(before, name)
            setattr(room, name, [was[number] if number >= 0 else 0 for number in came_from])
        room._index()
        return room

    @classmethod
    def empty(cls, layout: Layout, numbers: Iterable[int]) -> Room:
        """What these nodes have with nothing on them, and nothing of the others."""
        room = cls(layout)
        for number in numbers:
            room.masks[number] = sum(layout.all_gpus[kind][number] for kind in layout.node_kinds[number])
            room.add(number, layout.nodes[number].node.amounts, 1)
        room._index()
        return room

    def _index(self) -> None:
        """Sort the nodes by how many GPUs are free."""
        for kind, numbers in enumerate(self.layout.kind_nodes):
            if self.layout.models[kind] is None:
                continue
            every = self.layout.all_gpus[kind]
            buckets: list[list[int]] = [[]]
            self.gpus[kind] = 0
            for number in numbers:
                count = (self.masks[number] & every[number]).bit_count()
                while len(buckets) <= count:
                    buckets.append([])
                buckets[count].append(number)
                self.gpus[kind] += count
            self.buckets[kind] = buckets

    def copy(self) -> Room:
        other = object.__new__(Room)
        other.layout = self.layout
        other.masks = self.masks.copy()
        other.cpus = self.cpus.copy()
        other.memory_mb = self.memory_mb.copy()
        other.storage_mb = self.storage_mb.copy()
        other.shm_mb = self.shm_mb.copy()
        other.gpus = self.gpus.copy()
        other.buckets = [[nodes.copy() for nodes in buckets] for buckets in self.buckets]
        return other

    def fit(self, node: int, kind: int, shape: Shape) -> int:
        """Replicas of a shape that fit on a node now."""
        free = (self.masks[node] & self.layout.all_gpus[kind][node]).bit_count() if shape[0] else 0
        return capacity(
            shape, free, self.cpus[node], self.memory_mb[node], self.storage_mb[node], self.shm_mb[node]
        )

    def set_mask(self, node: int, mask: int) -> None:
        """Set which GPUs of a node are free."""
        before = self.masks[node]
        self.masks[node] = mask
        for kind in self.layout.node_kinds[node]:
            every = self.layout.all_gpus[kind][node]
            old, new = (before & every).bit_count(), (mask & every).bit_count()
            if old == new:
                continue
            self.gpus[kind] += new - old
            buckets = self.buckets[kind]
            while len(buckets) <= new:
                buckets.append([])
            was = buckets[old]
            del was[bisect.bisect_left(was, node)]
            bisect.insort(buckets[new], node)

    def add(self, node: int, amounts: Amounts, sign: int) -> None:
        """Give (``sign`` 1) or take (-1) everything but GPUs."""
        self.cpus[node] += sign * amounts.cpus
        self.memory_mb[node] += sign * amounts.memory_mb
        self.storage_mb[node] += sign * amounts.storage_mb
        self.shm_mb[node] += sign * amounts.shm_mb

    def take(self, node: int, kind: int, amounts: Amounts) -> int:
        """Take the lowest free GPUs of a kind and the rest; returns the GPUs as a mask."""
        free = self.masks[node] & self.layout.all_gpus[kind][node]
        taken = 0
        for _ in range(amounts.gpus):
            lowest = free & -free
            taken |= lowest
            free ^= lowest
        if taken:
            self.set_mask(node, self.masks[node] & ~taken)
        self.add(node, amounts, -1)
        return taken

    def give(self, node: int, mask: int, amounts: Amounts) -> None:
        """Give back what was taken."""
        if mask:
            self.set_mask(node, self.masks[node] | mask)
        self.add(node, amounts, 1)

    def give_parts(self, parts: Iterable[Part], every: Mapping[str, int]) -> None:
        """Pretend that a gang has gone from the nodes in ``every`` (name to number)."""
        for part in parts:
            node = every.get(part.node)
            if node is not None:
                self.give(node, mask_of(part.gpus), part.amounts)

    def take_parts(self, parts: Iterable[Part], every: Mapping[str, int]) -> None:
        """Undo `give_parts`."""
        for part in parts:
            node = every.get(part.node)
            if node is not None:
                mask = mask_of(part.gpus)
                if mask:
                    self.set_mask(node, self.masks[node] & ~mask)
                self.add(node, part.amounts, -1)

    def fits(self, kind: int, shape: Shape, enough: int = MANY) -> int:
        """Replicas of a shape that fit now on all nodes of a kind; stops counting at ``enough``."""
        total = 0
        for node in self._nodes(kind, shape):
            total += self.fit(node, kind, shape)
            if total >= enough:
                break
        return total

    def _nodes(self, kind: int, shape: Shape) -> Iterable[int]:
        """The nodes that may fit a replica, those with most free GPUs first."""
        if not shape[0]:
            return self.layout.kind_nodes[kind]
        buckets = self.buckets[kind]
        return (node for count in range(len(buckets) - 1, shape[0] - 1, -1) for node in buckets[count])

    def pick(self, kind: int, shape: Shape, count: int, limits: Limits | None) -> list[Spot] | None:
        """Where ``count`` replicas fit: on the tightest node, else in one rack, else on the fewest nodes."""
        if not shape[0]:
            return self._pick_cpus(kind, shape, count, limits)
        if self.gpus[kind] < shape[0] * count:
            return None
        single = self._tightest(kind, shape, count, limits, ())
        if single is not None:
            return [(single, count)]
        if count == 1:
            return None
        if self.layout.has_racks[self.layout.pools[self.layout.kind_nodes[kind][0]]]:
            rack = self._rack(kind, shape, count, limits)
            if rack is not None:
                return self._spread(kind, shape, count, limits, rack)
        return self._spread(kind, shape, count, limits, None)

    def _most(self, node: int, kind: int, shape: Shape, limits: Limits | None) -> int:
        fit = self.fit(node, kind, shape)
        return limits.most(node, kind, shape, fit) if fit and limits is not None else fit

    def _tightest(
        self,
        kind: int,
        shape: Shape,
        count: int,
        limits: Limits | None,
        used: Iterable[int],
        rack: str | None = None,
    ) -> int | None:
        """The node with fewest free GPUs that takes ``count`` replicas."""
        buckets = self.buckets[kind]
        for free in range(shape[0] * count, len(buckets)):
            for node in buckets[free]:
                if node in used or (rack is not None and self.layout.racks[node] != rack):
                    continue
                if self._most(node, kind, shape, limits) >= count:
                    return node
        return None

    def _rack(self, kind: int, shape: Shape, count: int, limits: Limits | None) -> str | None:
        """The rack with the least room that takes them all."""
        sums: dict[str, int] = {}
        for node in self._nodes(kind, shape):
            rack = self.layout.racks[node]
            sums[rack] = sums.get(rack, 0) + self._most(node, kind, shape, limits)
        enough = [(fit, rack) for rack, fit in sums.items() if fit >= count]
        return min(enough)[1] if enough else None

    def _spread(
        self, kind: int, shape: Shape, count: int, limits: Limits | None, rack: str | None
    ) -> list[Spot] | None:
        """Full nodes first, what is left over on the tightest node that takes it."""
        found: dict[int, int] = {}
        left = count
        for node in self._nodes(kind, shape):
            if rack is not None and self.layout.racks[node] != rack:
                continue
            fit = self._most(node, kind, shape, limits)
            if fit >= left:
                last = self._tightest(kind, shape, left, limits, found, rack)
                found[node if last is None else last] = left
                return list(found.items())
            if fit:
                found[node] = fit
                left -= fit
        return None

    def _pick_cpus(self, kind: int, shape: Shape, count: int, limits: Limits | None) -> list[Spot] | None:
        """Replicas without GPUs go to nodes without GPUs first, and then where they fit tightest."""
        found = []
        for node in self.layout.kind_nodes[kind]:
            fit = self._most(node, kind, shape, limits)
            if fit:
                found.append((self.layout.gpu_counts[node] > 0, fit, node))
        tight = [entry for entry in found if entry[1] >= count]
        if tight:
            return [(min(tight)[2], count)]
        found.sort(key=lambda entry: (entry[0], -entry[1], entry[2]))
        spots = []
        for _, fit, node in found:
            spots.append((node, min(fit, count)))
            count -= min(fit, count)
            if not count:
                return spots
        return None

    def place(self, pool: str, choice: Choice, limits: Limits | None) -> tuple[list[Placed], ...] | None:
        """Take room for a whole gang, one list for each group of the choice; nothing at all if it fails.

        Large replicas first; if the small ones then find no room, single ones first, each where the large
        ones lose least. For one group, and for one group beside one single replica, an answer of ``None``
        is exact.
        """
        groups = choice.groups
        order = list(range(len(groups)))
        placed = self._in_order(pool, groups, order, limits)
        if placed is None and len(groups) > 1:
            order.sort(key=lambda number: groups[number].count > 1)
            placed = self._in_order(pool, groups, order, limits, careful=True)
        return placed

    def _in_order(
        self,
        pool: str,
        groups: Sequence[Group],
        order: Sequence[int],
        limits: Limits | None,
        *,
        careful: bool = False,
    ) -> tuple[list[Placed], ...] | None:
        placed: list[list[Placed]] = [[] for _ in groups]
        bulk = max(groups, key=lambda group: group.count)
        for number in order:
            group = groups[number]
            taken = None
            for kind in self.layout.meaning(pool, group.gpu_model):
                if careful and group.count == 1 and group is not bulk:
                    spots = self._beside(pool, kind, group, bulk, limits)
                else:
                    spots = self.pick(kind, group.shape, group.count, limits)
                if spots is not None:
                    taken = [
                        (node, self.take(node, kind, group.amounts))
                        for node, fit in sorted(spots)
                        for _ in range(fit)
                    ]
                    break
            if taken is None:
                for which, spots in enumerate(placed):
                    for node, mask in spots:
                        self.give(node, mask, groups[which].amounts)
                return None
            placed[number] = taken
        return tuple(placed)

    def _beside(
        self, pool: str, kind: int, group: Group, bulk: Group, limits: Limits | None
    ) -> list[Spot] | None:
        """The node on which one replica costs the bulk of its gang least."""
        best: tuple[int, int, int] | None = None
        kinds = self.layout.meaning(pool, bulk.gpu_model)
        for node in self.layout.kind_nodes[kind]:
            if not self._most(node, kind, group.shape, limits):
                continue
            before = sum(self._most(node, other, bulk.shape, limits) for other in kinds)
            mask = self.take(node, kind, group.amounts)
            after = sum(self._most(node, other, bulk.shape, limits) for other in kinds)
            self.give(node, mask, group.amounts)
            entry = (before - after, before, node)
            if best is None or entry < best:
                best = entry
        return None if best is None else [(best[2], 1)]

    def undo(self, choice: Choice, placed: Sequence[Sequence[Placed]]) -> None:
        """Give back a whole gang."""
        for group, spots in zip(choice.groups, placed, strict=True):
            for node, mask in spots:
                self.give(node, mask, group.amounts)


def parts_of(layout: Layout, choice: Choice, placed: Sequence[Sequence[Placed]]) -> tuple[Part, ...]:
    """The replicas of a gang in the order of their ranks, neighbours on one node."""
    where = {(g.gpu_model, g.amounts): iter(spots) for g, spots in zip(choice.groups, placed, strict=True)}
    parts: list[Part] = []
    for need in choice.needs:
        spots = where[need.gpu_model if need.amounts.gpus else None, need.amounts] if need.count else iter(())
        for _ in range(need.count):
            node, mask = next(spots)
            parts.append(
                Part(
                    len(parts),
                    need.role,
                    layout.names[node],
                    gpus_of(mask),
                    need.spec,
                    need.units,
                    need.amounts,
                )
            )
    return tuple(parts)


def gpus_of(mask: int) -> tuple[int, ...]:
    return tuple(index for index in range(mask.bit_length()) if mask >> index & 1)


def mask_of(gpus: Iterable[int]) -> int:
    mask = 0
    for index in gpus:
        mask |= 1 << index
    return mask
