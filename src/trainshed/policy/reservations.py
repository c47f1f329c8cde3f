"""Reservations: when and where a Trial that finds no room can start at the latest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from trainshed.model.resources import Amounts
from trainshed.policy.cluster import Cluster, Free, Held, likely_end, rest_fits
from trainshed.policy.waiting import TrialClass


@dataclass(frozen=True, slots=True)
class Reservation:
    """The node kept for the first Trial in line, from the time at which it is free enough."""

    trial_id: str
    key: TrialClass
    models: tuple[int, ...]
    """Every model the Trial could use; others that want these are behind it."""
    node: str
    at: float
    """Unix seconds; infinite if nobody can say."""


class Spare:
    """What a reserved node will have left at the reserved time, beside the Trial it is reserved for."""

    __slots__ = ("at", "left", "model", "rank", "trial_id")

    def __init__(self, trial_id: str, model: int, at: float, left: Amounts, rank: float = -inf) -> None:
        self.trial_id = trial_id
        self.model = model
        self.at = at
        self.left = left
        self.rank = rank
        """A Trial with a lower rank need not respect it: it comes first."""

    def allows(self, model: int, need: Amounts, end: float) -> bool:
        """Whether a Trial that ends by ``end`` delays nothing: gone by then, or small enough beside it."""
        if self.at != inf and end <= self.at:
            return True
        return (model != self.model or need.gpus <= self.left.gpus) and rest_fits(need, self.left)

    def take(self, model: int, need: Amounts, end: float) -> None:
        """Account for a Trial that starts on this node now."""
        if self.at == inf or end > self.at:
            self.left -= need if model == self.model else replace(need, gpus=0)


def earliest(
    cluster: Cluster,
    free: Free,
    started: Mapping[int, Sequence[Held]],
    models: Sequence[int],
    need: Amounts,
    now: float,
) -> tuple[int, int, float, Amounts] | None:
    """The earliest fit as ``(node, model, time, what is left beside it)``; the lowest node among equals.

    ``started`` holds what this pass has placed so far. ``None`` if no node could serve ``need`` even empty.
    """
    best: tuple[int, int, float, Amounts] | None = None
    for model in models:
        for node in cluster.nodes_of[model]:
            enough = cluster.all_gpus[model][node].bit_count() >= need.gpus
            if not enough or not rest_fits(need, cluster.nodes[node].amounts):
                continue
            held = (*cluster.on_node(node), *started.get(node, ()))
            ends = sorted((likely_end(one, now), one.id, one) for one in held)
            limit = inf if best is None else best[2]
            found = _earliest_here(cluster, free, node, model, ends, need, now, limit)
            if found is not None and (best is None or (found[0], node) < (best[2], best[0])):
                best = (node, model, *found)
    return best


def _earliest_here(
    cluster: Cluster,
    free: Free,
    node: int,
    model: int,
    ends: Sequence[tuple[float, str, Held]],
    need: Amounts,
    now: float,
    limit: float,
) -> tuple[float, Amounts] | None:
    """The earliest time on one node, unless it is later than ``limit``."""
    mask = free.masks[model][node]
    room = Amounts(0, free.cpus[node], free.memory_mb[node], free.storage_mb[node], free.shm_mb[node])
    at, number = now, 0
    while True:
        while number < len(ends) and ends[number][0] <= at:
            held = ends[number][2]
            room += held.amounts
            mask |= dict(cluster.masks_of(held)).get(model, 0)
            number += 1
        gpus = mask.bit_count()
        if gpus >= need.gpus and rest_fits(need, room):
            return at, replace(room - need, gpus=gpus - need.gpus)
        if number == len(ends) or ends[number][0] > limit:
            return None
        at = ends[number][0]
