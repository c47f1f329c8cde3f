"""The nodes by number, and what does not change while they stay: pools, racks, GPU models.

A *kind* is one GPU model within one pool, or the CPUs of one pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from trainshed.policy.gangs.snapshot import Choice, Group, PlaceNode, Shape
from trainshed.policy.gpus import matching_models

MANY = 1 << 30
"""Replicas, where nothing limits them."""
_name = attrgetter("node.name")


class Layout:
    """The nodes, by number in the order of their names."""

    def __init__(self, nodes: Iterable[PlaceNode], before: Layout | None = None) -> None:
        """``before`` lends what is known of nodes that it has as well, and its numbers of kinds and looks."""
        self.nodes = tuple(sorted(nodes, key=_name))
        self.names = tuple(map(_name, self.nodes))
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.pools = tuple([place.pool for place in self.nodes])
        self.pool_nodes: dict[str, list[int]] = {}
        self.kinds: dict[tuple[str, str | None], int] = {} if before is None else before.kinds.copy()
        self.models: list[str | None] = [] if before is None else before.models.copy()
        self.all_gpus: list[list[int]] = [[0] * len(self.nodes) for _ in self.models]
        """``all_gpus[kind][node]``: every GPU of the kind on the node, as a mask."""
        self.kind_nodes: list[list[int]] = [[] for _ in self.models]
        self.node_kinds: list[list[int]] = [[] for _ in self.nodes]
        self.racks = tuple([place.rack for place in self.nodes])
        self.gpu_counts = tuple([len(place.node.gpus) for place in self.nodes])
        self.masks: list[tuple[tuple[str, int], ...]] = []
        """Of each node: every model and its GPUs as a mask."""
        for number, place in enumerate(self.nodes):
            self.pool_nodes.setdefault(place.pool, []).append(number)
            masks = self._masks_of(place, before)
            self.masks.append(masks)
            for model, mask in masks:
                kind = self._kind(place.pool, model)
                self.kind_nodes[kind].append(number)
                self.node_kinds[number].append(kind)
                self.all_gpus[kind][number] = mask
        for pool, numbers in self.pool_nodes.items():
            kind = self._kind(pool, None)
            self.kind_nodes[kind] = numbers
        self.has_racks = {
            pool: len({self.racks[n] for n in numbers}) > 1 for pool, numbers in self.pool_nodes.items()
        }
        there = [kind for kind, numbers in enumerate(self.kind_nodes) if numbers]
        self.order = tuple(sorted(there, key=self._first))
        """The kinds that have nodes, by where each is met first."""
        same = before is not None and before.order == self.order
        self.meanings: dict[tuple[str, str | None], tuple[int, ...]] = (
            before.meanings if before is not None and same else {}
        )
        self.looks: dict[Choice, int] = {} if before is None else before.looks
        self.groups: dict[tuple[Group, ...], int] = {} if before is None else before.groups

    @staticmethod
    def _masks_of(place: PlaceNode, before: Layout | None) -> tuple[tuple[str, int], ...]:
        number = None if before is None else before.numbers.get(place.node.name)
        if before is not None and number is not None and before.nodes[number].node.gpus is place.node.gpus:
            return before.masks[number]
        masks: dict[str, int] = {}
        for gpu in place.node.gpus:
            masks[gpu.model] = masks.get(gpu.model, 0) | 1 << gpu.index
        return tuple(masks.items())

    def _first(self, kind: int) -> tuple[int, int]:
        number = self.kind_nodes[kind][0]
        of = self.node_kinds[number]
        return number, of.index(kind) if kind in of else len(of)

    def _kind(self, pool: str, model: str | None) -> int:
        found = self.kinds.get((pool, model))
        if found is None:
            found = self.kinds[pool, model] = len(self.models)
            self.models.append(model)
            self.all_gpus.append([0] * len(self.nodes))
            self.kind_nodes.append([])
        return found

    def meaning(self, pool: str, gpu_type: str | None) -> tuple[int, ...]:
        """The kinds of a pool that a GPU type means; ``None`` means its CPUs."""
        known = self.meanings.get((pool, gpu_type))
        if known is None:
            of = {kind: model for (at, model), kind in self.kinds.items() if at == pool}
            here = {of[kind]: kind for kind in self.order if kind in of}
            names: Sequence[str | None] = (
                (None,) if gpu_type is None else matching_models(gpu_type, [m for m in here if m])
            )
            known = self.meanings[pool, gpu_type] = tuple(here[name] for name in names if name in here)
        return known

    def has(self, node: int, kind: int) -> bool:
        """Whether a node has GPUs of a kind, or is in its pool where that is one of CPUs."""
        if self.models[kind] is not None:
            return bool(self.all_gpus[kind][node])
        numbers = self.kind_nodes[kind]
        return bool(numbers) and self.pools[numbers[0]] == self.pools[node]

    def looks_of(self, choice: Choice) -> int:
        """A number that is equal for choices that look the same to nodes."""
        known = self.looks.get(choice)
        if known is None:
            known = self.groups.setdefault(choice.groups, len(self.groups))
            self.looks[choice] = known
        return known

    def node_ever(self, node: int, kind: int, shape: Shape) -> int:
        """Replicas of a shape that one node could serve if it were empty."""
        room = self.nodes[node].node.amounts
        return capacity(
            shape,
            self.all_gpus[kind][node].bit_count(),
            room.cpus,
            room.memory_mb,
            room.storage_mb,
            room.shm_mb,
        )


def capacity(shape: Shape, gpus: int, cpus: int, memory_mb: int, storage_mb: int, shm_mb: int) -> int:
    """Replicas of a shape that fit in free amounts."""
    g, c, m, s, h = shape
    fit = MANY
    if g:
        fit = gpus // g
    if c and cpus // c < fit:
        fit = cpus // c
    if m and memory_mb // m < fit:
        fit = memory_mb // m
    if s and storage_mb // s < fit:
        fit = storage_mb // s
    if h and shm_mb // h < fit:
        fit = shm_mb // h
    return max(fit, 0)
