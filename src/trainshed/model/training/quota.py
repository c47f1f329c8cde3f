"""How much a project can ever hold (C23, c3): what is asked beyond that is refused, what is below waits.

`policy.gangs.quota` decides what it may take now; a test holds the two to one meaning of the rows.
"""

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

    Without a row there is nothing. `reserved` has what the project owns and, without guarantee, what its
    cohort lends; with `idle_supplement` the rest runs as idle. `idle` has no quota.
    """
    if resource_type is ResourceType.IDLE or (idle_supplement and not guarantee):
        return None
    row = catalog.quota(project, resource_type, pool, spec)
    if row is None:
        return 0
    return (
        row.units if guarantee or row.cohort is None else row.units + borrowable(catalog, row, project, spec)
    )


def borrowable(catalog: Catalog, row: Quota, project: str, spec: str) -> int:
    """The most units of ``spec`` that ``project``, whose row this is, can borrow of its cohort.

    Only projects with a row of their own lend: nobody knows how many others there will be.
    """
    others = {each.project for each in catalog.quotas if each.cohort == row.cohort} - {ANY, project}
    lent = 0
    for other in others:
        found = catalog.quota(other, row.resource_type, row.pool, spec)
        if found is not None and found.project != ANY and found.cohort == row.cohort:
            lent += found.lendable
    return lent if row.borrowing_limit is None else min(lent, row.borrowing_limit)
