"""What the nodes have and what is free of it, kept so that a placement pass need not look at every node.

A `Cluster` is built from the nodes and the held allocations, and may be kept up to date with `Cluster.hold`
and `Cluster.release` instead of being built anew: both ways give the same state. A pass works on a copy of
its `Free` part, so deciding changes nothing here.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from trainshed.model.resources import Amounts, Node
from trainshed.policy.gpus import matching_models

NO_GPU = ""
"""The GPU type of a Trial without GPUs, and the model that it is placed on: every node has none of it."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one allocation holds, until its release is confirmed (also while releasing or leaked)."""

    id: str
    """The allocation; unique."""
    trial_id: str
    project: str
    node: str
    gpus: tuple[int, ...]
    """Indices on the node."""
    amounts: Amounts
    expected_end: float | None
    """Unix seconds: start plus timeout plus grace. ``None`` if nobody can say (leaked, say)."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The GPUs that one GPU type means, counted at one instant."""

    models: tuple[str, ...]
    total: int
    free: int
    largest_free: int
    """Most free GPUs of one model on one node."""
    largest_node: int
    """Most GPUs of one model on one node, free or not."""


class Free:
    """Free amounts of every node, by node number, with nodes indexed by how many GPUs of a model are free."""

    __slots__ = ("buckets", "cpus", "gpus", "masks", "memory_mb", "shm_mb", "storage_mb")

    def __init__(self, masks: list[list[int]], room: Sequence[Amounts]) -> None:
        self.masks = masks
        """``masks[model][node]``: bit ``i`` is set if GPU ``i`` is of this model and free."""
        self.cpus = [amounts.cpus for amounts in room]
        self.memory_mb = [amounts.memory_mb for amounts in room]
        self.storage_mb = [amounts.storage_mb for amounts in room]
        self.shm_mb = [amounts.shm_mb for amounts in room]
        self.gpus = [0] * len(masks)
        """Free GPUs of each model, all nodes together."""
        self.buckets: list[list[list[int]]] = []
        """``buckets[model][count]``: the nodes with ``count`` free GPUs of the model, ascending."""
        for model, row in enumerate(masks):
            most = max((mask.bit_count() for mask in row), default=0)
            buckets: list[list[int]] = [[] for _ in range(most + 1)]
            for node, mask in enumerate(row):
                buckets[mask.bit_count()].append(node)
            self.buckets.append(buckets)
            self.gpus[model] = sum(mask.bit_count() for mask in row)

    def copy(self) -> Free:
        other = object.__new__(Free)
        other.masks = [row.copy() for row in self.masks]
        other.cpus = self.cpus.copy()
        other.memory_mb = self.memory_mb.copy()
        other.storage_mb = self.storage_mb.copy()
        other.shm_mb = self.shm_mb.copy()
        other.gpus = self.gpus.copy()
        other.buckets = [[nodes.copy() for nodes in buckets] for buckets in self.buckets]
        return other

    def fits(self, node: int, need: Amounts) -> bool:
        """Whether everything but the GPUs fits on ``node``."""
        return (
            need.cpus <= self.cpus[node]
            and need.memory_mb <= self.memory_mb[node]
            and need.storage_mb <= self.storage_mb[node]
            and need.shm_mb <= self.shm_mb[node]
        )

    def find(
        self,
        models: Sequence[int],
        need: Amounts,
        allowed: Callable[[int, int], bool] | None = None,
    ) -> tuple[int, int] | None:
        """The tightest fit as ``(node, model)``: fewest free GPUs that suffice, then the lowest node."""
        most = max((len(self.buckets[model]) for model in models), default=0)
        for count in range(need.gpus, most):
            for model in models:
                buckets = self.buckets[model]
                if count >= len(buckets):
                    continue
                for node in buckets[count]:
                    if self.fits(node, need) and (allowed is None or allowed(node, model)):
                        return node, model
        return None

    def largest(self, models: Sequence[int]) -> int:
        """Most free GPUs of one of ``models`` on one node."""
        return max(
            (
                count
                for model in models
                for count in range(len(self.buckets[model]) - 1, -1, -1)
                if self.buckets[model][count]
            ),
            default=0,
        )

    def take(self, node: int, model: int, need: Amounts) -> int:
        """Take the lowest ``need.gpus`` free GPUs and the rest of ``need``; returns the GPUs as a mask."""
        mask = self.masks[model][node]
        taken = 0
        for _ in range(need.gpus):
            lowest = mask & -mask
            taken |= lowest
            mask ^= lowest
        self.change_gpus(node, model, mask)
        self.change_room(node, need, -1)
        return taken

    def change_gpus(self, node: int, model: int, mask: int) -> None:
        """Set which GPUs of ``model`` are free on ``node``."""
        before, after = self.masks[model][node].bit_count(), mask.bit_count()
        self.masks[model][node] = mask
        if before == after:
            return
        self.gpus[model] += after - before
        buckets = self.buckets[model]
        while len(buckets) <= after:
            buckets.append([])
        old = buckets[before]
        del old[bisect.bisect_left(old, node)]
        bisect.insort(buckets[after], node)

    def change_room(self, node: int, amounts: Amounts, sign: int) -> None:
        """Give (``sign`` 1) or take (-1) everything but GPUs."""
        self.cpus[node] += sign * amounts.cpus
        self.memory_mb[node] += sign * amounts.memory_mb
        self.storage_mb[node] += sign * amounts.storage_mb
        self.shm_mb[node] += sign * amounts.shm_mb


class Cluster:
    """Nodes, what is held on them, and what is free. Not thread-safe; the controller owns one."""

    def __init__(self, nodes: Iterable[Node], held: Iterable[Held] = ()) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.name))
        self.numbers = {node.name: number for number, node in enumerate(self.nodes)}
        self.models = (*sorted({gpu.model for node in self.nodes for gpu in node.gpus}), NO_GPU)
        self._model_numbers = {model: number for number, model in enumerate(self.models)}
        self.all_gpus = [[0] * len(self.nodes) for _ in self.models]
        """``all_gpus[model][node]``: every GPU of the model on the node, as a mask."""
        for number, node in enumerate(self.nodes):
            for gpu in node.gpus:
                self.all_gpus[self._model_numbers[gpu.model]][number] |= 1 << gpu.index
        self.nodes_of = [[number for number, mask in enumerate(row) if mask] for row in self.all_gpus]
        """``nodes_of[model]``: the numbers of the nodes that have the model, ascending."""
        self.nodes_of[-1] = list(range(len(self.nodes)))
        self._shapes = {
            (tuple(row[number].bit_count() for row in self.all_gpus), node.amounts)
            for number, node in enumerate(self.nodes)
        }
        self._held: dict[str, Held] = {}
        self._on_node: list[dict[str, Held]] = [{} for _ in self.nodes]
        self._of_project: dict[str, dict[str, Held]] = {}
        self._meanings: dict[str, tuple[int, ...]] = {}
        for one in held:
            self._remember(one)
        room = [node.amounts for node in self.nodes]
        self.free = Free([row.copy() for row in self.all_gpus], room)
        for number, here in enumerate(self._on_node):
            if here:
                self._recount(number)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def hold(self, held: Held) -> None:
        """Record an allocation; one with the same id is replaced (its expected end became known, say)."""
        if held.id in self._held:
            self.release(held.id)
        self._remember(held)
        if held.node in self.numbers:
            self._recount(self.numbers[held.node])

    def release(self, held_id: str) -> None:
        """Forget an allocation whose release is confirmed; unknown ids are none of our business."""
        held = self._held.pop(held_id, None)
        if held is None:
            return
        del self._of_project[held.project][held_id]
        if held.node in self.numbers:
            number = self.numbers[held.node]
            del self._on_node[number][held_id]
            self._recount(number)

    def on_node(self, node: int) -> Iterable[Held]:
        """What is held on a node, by its number."""
        return self._on_node[node].values()

    def of_project(self, project: str) -> Iterable[Held]:
        """What a project holds."""
        return self._of_project.get(project, {}).values()

    def meaning(self, gpu_type: str) -> tuple[int, ...]:
        """The numbers of the models that ``gpu_type`` means."""
        known = self._meanings.get(gpu_type)
        if known is None and gpu_type == NO_GPU:
            known = self._meanings[gpu_type] = (self._model_numbers[NO_GPU],)
        if known is None:
            names = matching_models(gpu_type, self.models)
            known = self._meanings[gpu_type] = tuple(self._model_numbers[name] for name in names)
        return known

    def masks_of(self, held: Held) -> list[tuple[int, int]]:
        """The GPUs of an allocation as ``(model, mask)``; GPUs that the node no longer has are left out."""
        node = self.numbers[held.node]
        wanted = 0
        for index in held.gpus:
            wanted |= 1 << index
        found = ((model, row[node] & wanted) for model, row in enumerate(self.all_gpus))
        return [(model, mask) for model, mask in found if mask]

    def ever_fits(self, models: Sequence[int], need: Amounts) -> bool:
        """Whether some node could serve ``need`` if it were empty."""
        for counts, room in self._shapes:
            if rest_fits(need, room):
                for model in models:
                    if counts[model] >= need.gpus:
                        return True
        return False

    def pool(self, gpu_type: str, free: Free | None = None) -> Pool:
        """The GPUs that ``gpu_type`` means, counted in ``free`` (by default what is free now)."""
        models = self.meaning(gpu_type)
        state = self.free if free is None else free
        counts = [mask.bit_count() for model in models for mask in self.all_gpus[model]]
        return Pool(
            models=tuple(self.models[model] for model in models),
            total=sum(counts),
            free=sum(state.gpus[model] for model in models),
            largest_free=state.largest(models),
            largest_node=max(counts, default=0),
        )

    def _remember(self, held: Held) -> None:
        self._held[held.id] = held
        self._of_project.setdefault(held.project, {})[held.id] = held
        if held.node in self.numbers:
            self._on_node[self.numbers[held.node]][held.id] = held

    def _recount(self, number: int) -> None:
        """Count a node from scratch: right even if two allocations name one GPU, whichever ends first."""
        used = Amounts()
        taken = 0
        for held in self._on_node[number].values():
            used += held.amounts
            for index in held.gpus:
                taken |= 1 << index
        for model, row in enumerate(self.all_gpus):
            self.free.change_gpus(number, model, row[number] & ~taken)
        room = self.nodes[number].amounts - used
        self.free.cpus[number] = room.cpus
        self.free.memory_mb[number] = room.memory_mb
        self.free.storage_mb[number] = room.storage_mb
        self.free.shm_mb[number] = room.shm_mb


def likely_end(held: Held, now: float) -> float:
    """When an allocation will likely be back: its expected end, later if it is overdue.

    One that is overdue by ``d`` seconds is expected to take ``d`` more, so that nobody waits for ever
    beside a node that never comes back while others do.
    """
    end = held.expected_end
    if end is None:
        return inf
    return end if end >= now else now + (now - end)


def rest_fits(need: Amounts, room: Amounts) -> bool:
    """Whether everything but the GPUs fits in ``room``."""
    return (
        need.cpus <= room.cpus
        and need.memory_mb <= room.memory_mb
        and need.storage_mb <= room.storage_mb
        and need.shm_mb <= room.shm_mb
    )
