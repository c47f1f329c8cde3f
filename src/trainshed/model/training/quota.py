"""How much a project can ever hold (C23, c3): what is asked beyond that is refused, what is below waits."""

from __future__ import annotations

from dataclasses import dataclass

from trainshed.model.training.catalog import ANY, Catalog, Quota
from trainshed.model.training.spec import ResourceType


@dataclass(frozen=True, slots=True)
class QuotaAnswer:
    """What a task asks of one quota. ``limit`` is ``None`` where nothing but the pool limits it."""

    resource_type: ResourceType
    pool: str
    spec: str
    requested: int
    limit: int | None

    @property
    def exceeded(self) -> bool:
        return self.limit is not None and self.requested > self.limit

    def as_dict(self) -> dict[str, str | int | None]:
        return {
            "resource_type": str(self.resource_type),
            "pool": self.pool,
            "spec": self.spec,
            "requested": self.requested,
            "limit": self.limit,
        }


def ceiling(
    catalog: Catalog,
    project: str,
    resource_type: ResourceType,
    pool: str,
    spec: str,
    *,
    guarantee: bool = False,
    idle_supplement: bool = False,
) -> int | None:
    """The most units that a task can ever be given, if everybody else had none; ``None``: no limit.

    `reserved` has what the project owns (nothing without a row) and, without guarantee, what its cohort
    lends; with `idle_supplement` the rest runs as idle. `ondemand` and `spot` have a cap where a row says
    so. `idle` has no quota.
    """
    row = catalog.quota(project, resource_type, pool, spec)
    if resource_type is not ResourceType.RESERVED:
        return None if resource_type is ResourceType.IDLE or row is None else row.units
    if idle_supplement and not guarantee:
        return None
    if row is None:
        return 0
    return row.units if guarantee else borrowing_ceiling(catalog, row, spec)


def borrowing_ceiling(catalog: Catalog, row: Quota, spec: str) -> int | None:
    """Own units and the most that a quota can borrow of ``spec``; ``None``: no limit.

    Rows of all projects (`ANY`) lend once for each project, and nobody knows how many there will be.
    """
    if row.cohort is None:
        return row.units
    lenders = [
        other
        for other in catalog.quotas
        if other.cohort == row.cohort
        and other.pool == row.pool
        and other.resource_type is row.resource_type
        and other.spec in {spec, ANY}
    ]
    if any(other.project == ANY and other.lendable for other in lenders):
        return None if row.borrowing_limit is None else row.units + row.borrowing_limit
    lent = sum(
        max((other.lendable for other in lenders if other.project == project), default=0)
        for project in {other.project for other in lenders} - {row.project}
    )
    return row.units + (lent if row.borrowing_limit is None else min(lent, row.borrowing_limit))
