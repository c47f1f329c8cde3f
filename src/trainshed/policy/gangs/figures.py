"""Figures of a pool for people: what it has, what is free, how steady and scattered that is (C24, C25, c6).

They are true at one instant and reserve nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainshed.model.resources import Amounts
from trainshed.policy.gangs.cluster import GangCluster
from trainshed.policy.gangs.layout import Layout
from trainshed.policy.gangs.snapshot import PlaceNode, Shape

DAY_SECONDS = 86_400.0
STEADY_SECONDS = 3600.0
"""So long units must stay free to count as steady."""
_HIGH, _MEDIUM = 0.9, 0.5


class Stability(StrEnum):
    """How much of the last day as many units stayed free for an hour and longer."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class SpecFigures:
    """Units of one instance spec in one pool. They overlap with those of other specs on the same nodes."""

    total: int
    """If all nodes were up and empty."""
    free: int
    """That would fit now."""
    in_use: int
    """Of tasks."""
    cordoned: int
    """That closed nodes and GPUs take away from the total."""


@dataclass(frozen=True, slots=True)
class IdleFigures:
    """What an idle task could get now."""

    idle_units: int
    stability: Stability
    fragmentation: float
    """0: all GPUs (or CPU cores) that are free are of use to replicas of the shape asked for; 1: none."""
    largest_gang: int
    """Replicas of that shape that fit now."""


def spec_figures(
    cluster: GangCluster,
    every: Sequence[PlaceNode],
    pool: str,
    spec: str,
    unit: Amounts,
    gpu_model: str | None,
) -> SpecFigures:
    """The figures of ``spec``; ``every`` are the nodes of the site as if nothing was cordoned."""
    shape = shape_of(unit)
    whole = Layout(every)
    total = sum(
        whole.node_ever(number, kind, shape)
        for kind in whole.meaning(pool, gpu_model)
        for number in whole.kind_nodes[kind]
    )
    up = sum(cluster.ever(kind, shape) for kind in cluster.layout.meaning(pool, gpu_model))
    in_use = sum(
        part.units
        for running in cluster.of_pool.get(pool, {}).values()
        for part in running.parts
        if part.spec == spec
    )
    return SpecFigures(total, free_units(cluster, pool, shape, gpu_model), in_use, total - up)


def free_units(cluster: GangCluster, pool: str, shape: Shape, gpu_model: str | None) -> int:
    """Replicas of a shape that fit on the open nodes of a pool now."""
    return sum(cluster.room.fits(kind, shape) for kind in cluster.layout.meaning(pool, gpu_model))


def idle_figures(
    cluster: GangCluster,
    pool: str,
    unit: Amounts,
    gpu_model: str | None,
    *,
    units: int = 1,
    samples: Sequence[tuple[float, int]],
    now: float,
) -> IdleFigures:
    """What is idle of a spec, for replicas of ``units`` units each.

    ``samples`` are ``(Unix seconds, units free)`` of the last day, oldest first.
    """
    kinds = cluster.layout.meaning(pool, gpu_model)
    shape = shape_of(unit)
    free = free_units(cluster, pool, shape, gpu_model)
    fit = free_units(cluster, pool, shape_of(unit * units), gpu_model)
    room = cluster.room
    if unit.gpus:
        there, each = sum(room.gpus[kind] for kind in kinds), unit.gpus
    else:
        there = sum(max(0, room.cpus[n]) for kind in kinds for n in cluster.open_nodes(kind))
        each = unit.cpus
    lost = 0.0 if not there else 1 - min(1.0, fit * units * each / there)
    return IdleFigures(free, stability(samples, free, now), round(lost, 4), fit)


def stability(samples: Iterable[tuple[float, int]], wanted: int, now: float) -> Stability:
    """How much of the last day ``wanted`` units stayed free for an hour; unmeasured time does not count."""
    steady = 0.0
    begun: float | None = None
    for at, free in [*((at, free) for at, free in samples if now - DAY_SECONDS <= at <= now), (now, -1)]:
        if begun is not None and free < wanted:
            steady += at - begun if at - begun >= STEADY_SECONDS else 0.0
            begun = None
        elif begun is None and free >= wanted > 0:
            begun = at
    share = steady / DAY_SECONDS
    return Stability.HIGH if share >= _HIGH else Stability.MEDIUM if share >= _MEDIUM else Stability.LOW


def shape_of(amounts: Amounts) -> Shape:
    """Amounts as room is counted in."""
    return (amounts.gpus, amounts.cpus, amounts.memory_mb, amounts.storage_mb, amounts.shm_mb)
