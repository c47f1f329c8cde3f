"""Units in use, and when what holds something will likely be gone."""

from __future__ import annotations

from math import inf

from trainshed.model.training.spec import ResourceType
from trainshed.policy.gangs.snapshot import GangClass, LineKey, Running


def line_key(key: GangClass, spec: str) -> LineKey:
    return (key.project, key.resource_type, key.pool, spec)


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
