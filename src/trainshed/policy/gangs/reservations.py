"""Where and when the first gang in line can start at the latest, and what later ones may take beside it.

EASY backfill over several nodes: a later gang may start if it has ended by then, or takes on each reserved
node no more than what is left beside the gang that comes first (c5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from math import inf

from trainshed.model.resources import Amounts
from trainshed.policy.gangs.layout import Layout, capacity
from trainshed.policy.gangs.openings import Gain, Step
from trainshed.policy.gangs.snapshot import Choice, Group, Kept, Shape


class Spare:
    """What a reserved node will have left at the reserved time."""

    __slots__ = ("at", "free_until", "id", "kind", "left", "queued_at")

    def __init__(
        self,
        id_: str,
        kind: int,
        at: float,
        left: Amounts,
        queued_at: float,
        *,
        free_until: float | None = None,
    ) -> None:
        """``free_until``: what ends by then delays nothing; by default the reserved time, if it is known."""
        self.id = id_
        self.kind = kind
        self.at = at
        self.left = left
        self.queued_at = queued_at
        known = at if at != inf else -inf
        self.free_until = known if free_until is None else free_until

    def fit(self, kind: int, shape: Shape, fit: int, end: float) -> int:
        """How many of ``fit`` replicas delay nothing."""
        if end <= self.free_until:
            return fit
        left = self.left
        gpus = left.gpus if kind == self.kind else 1 << 20
        return min(fit, capacity(shape, gpus, left.cpus, left.memory_mb, left.storage_mb, left.shm_mb))

    def take(self, kind: int, amounts: Amounts, end: float) -> None:
        """Account for a replica that starts on this node."""
        if end > self.free_until:
            self.left -= amounts if kind == self.kind else replace(amounts, gpus=0)


class Bounds:
    """What bounds one task beside what is free: nodes it must not use, and who comes first."""

    __slots__ = ("end", "excluded", "queued_at", "spares")

    def __init__(
        self, spares: Mapping[int, Sequence[Spare]], excluded: frozenset[int], end: float, queued_at: float
    ) -> None:
        self.spares = spares
        self.excluded = excluded
        self.end = end
        self.queued_at = queued_at

    def most(self, node: int, kind: int, shape: Shape, fit: int) -> int:
        """How many of the ``fit`` replicas that would fit on a node may be there."""
        if node in self.excluded:
            return 0
        for spare in self.spares.get(node, ()):
            if self.queued_at >= spare.queued_at:
                fit = spare.fit(kind, shape, fit, self.end)
        return fit


class Earliest:
    """The search for the earliest start of one gang."""

    def __init__(
        self,
        layout: Layout,
        *,
        openings: Callable[[int, Shape], Sequence[Gain]],
        steps: Callable[[int, int, Shape], list[Step]],
        apart: Collection[int],
        left: Callable[[int, int, float], Amounts],
        bounds: Bounds,
        held: Callable[[int, int], int],
        now: float,
    ) -> None:
        """``openings`` knows in order what fits on each node from when on, but for those ``apart``.

        These are bounded, or this pass has changed them: ``steps`` looks at one of them. ``left`` is what is
        free on a node at a time, ``held`` what of it is not free soon.
        """
        self.layout = layout
        self.openings = openings
        self.steps = steps
        self.apart = apart
        self.left = left
        self.bounds = bounds
        self.held = held
        self.now = now

    def find(self, pool: str, choice: Choice) -> tuple[float, dict[int, tuple[int, int, Amounts]]] | None:
        """``(time, node -> (replicas, kind, what they take))``; ``None`` if the gang never fits."""
        at = self.now
        nodes: dict[int, tuple[int, int, Amounts]] = {}
        for group in choice.groups:
            found = min(
                (
                    one
                    for kind in self.layout.meaning(pool, group.gpu_model)
                    if (one := self._group(kind, group, nodes)) is not None
                ),
                key=lambda one: one[0],
                default=None,
            )
            if found is None:
                return None
            at = max(at, found[0])
            for node, fit in found[2].items():
                count, kind, taken = nodes.get(node, (0, found[1], Amounts()))
                nodes[node] = (count + fit, kind, taken + group.amounts * fit)
        return at, nodes

    def _group(
        self, kind: int, group: Group, nodes: Mapping[int, tuple[int, int, Amounts]]
    ) -> tuple[float, int, dict[int, int]] | None:
        shape, count = group.shape, group.count
        apart = {*self.apart, *nodes}
        chosen: dict[int, int] = {}
        total = 0
        at = self.now
        for at, _, gain, node in merge(  # noqa: B007 - the last time is the answer
            self._together(kind, shape, apart), self._apart(kind, shape, apart, nodes)
        ):
            chosen[node] = chosen.get(node, 0) - gain
            total -= gain
            if total >= count:
                break
        if total < count:
            return None
        for node in sorted(chosen, key=lambda n: (chosen[n], -n)):
            spare = min(total - count, chosen[node])
            total -= spare
            chosen[node] -= spare
            if not chosen[node]:
                del chosen[node]
        return at, kind, chosen

    def _together(self, kind: int, shape: Shape, apart: Collection[int]) -> Iterator[Gain]:
        """What opens on the nodes that are as they were before this pass."""
        now = self.now
        return (
            (max(now, at), still, gain, node)
            for at, still, gain, node in self.openings(kind, shape)
            if node not in apart
        )

    def _apart(
        self,
        kind: int,
        shape: Shape,
        apart: Iterable[int],
        nodes: Mapping[int, tuple[int, int, Amounts]],
    ) -> list[Gain]:
        """What opens on the others, in order."""
        gains: list[Gain] = []
        for node in apart:
            before = 0
            there = self.layout.has(node, kind)
            steps = self._beside(node, kind, shape, nodes) if node in nodes and there else ()
            if node not in nodes and there:
                steps = self.steps(node, kind, shape)
            for at, fit in steps:
                most = self.bounds.most(node, kind, shape, fit) if fit else fit
                if most > before:
                    # Among those that nobody can say anything about, nodes with least on them drain first.
                    still = self.held(node, kind) if at == inf else 0
                    gains.append((max(self.now, at), still, before - most, node))
                    before = most
        return sorted(gains)

    def _beside(
        self, node: int, kind: int, shape: Shape, nodes: Mapping[int, tuple[int, int, Amounts]]
    ) -> list[Step]:
        """What fits beside the replicas that are to go to a node already."""
        left = self.left(node, nodes[node][1], inf) - nodes[node][2]
        gpus = left.gpus if kind == nodes[node][1] else 1 << 20
        fit = capacity(shape, gpus, left.cpus, left.memory_mb, left.storage_mb, left.shm_mb)
        return [(self.now, fit)]


def spare_of(kept: Kept, layout: Layout) -> tuple[int, Spare] | None:
    """What a reservation of the pass over Runner Trials means here; ``None`` if its node is not here."""
    node = layout.numbers.get(kept.node)
    if node is None:
        return None
    kinds = [kind for kind in layout.node_kinds[node] if layout.models[kind] == kept.model]
    return node, Spare(kept.id, kinds[0] if kinds else -1, kept.at, kept.left, kept.queued_at)
