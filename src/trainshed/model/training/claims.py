"""What a packed project takes of a cluster: one unit of an instance spec, out of its project's own quota.

It names no pool and no spec as a task does, so they are found for it, by the catalogue alone: equal
catalogues give equal claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainshed.model.gpus import matching_models
from trainshed.model.training.catalog import Catalog, Engine, InstanceSpec, Pool
from trainshed.model.training.spec import ResourceType

_TYPES = (ResourceType.RESERVED, ResourceType.ONDEMAND)
"""Those that nobody may take back from it, in the order of preference (c3, c4)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One unit of ``spec`` in ``pool``, counted as ``resource_type``."""

    pool: str
    spec: str
    resource_type: ResourceType

    def as_dict(self) -> dict[str, Any]:
        return {"pool": self.pool, "spec": self.spec, "resource_type": self.resource_type.value}

    @staticmethod
    def of(fields: dict[str, Any]) -> Claim:
        """The claim of `as_dict`."""
        return Claim(fields["pool"], fields["spec"], ResourceType(fields["resource_type"]))


def cluster_of(catalog: Catalog, named: str | None) -> str | None:
    """The Ray cluster that packed projects use: the one that is named, or the only one that there is."""
    known = [each.id for each in catalog.clusters if each.engine is Engine.RAY]
    if named is not None:
        return named if named in known else None
    return known[0] if len(known) == 1 else None


def claim_of(catalog: Catalog, cluster: str, project: str, gpu: str | None) -> Claim | None:
    """The claim of a project's Job on one GPU of a model, as nodes report it, or on none.

    The first pool of the cluster in which the project has a unit of its own, and there the smallest spec
    that does; reserved units before others. ``None`` where it has none.
    """
    for pool in catalog.pools_of(cluster):
        for spec in sorted(_specs(catalog, pool, gpu), key=_size):
            for kind in _TYPES:
                row = catalog.quota(project, kind, pool.id, spec.name)
                if kind in pool.resource_types and row is not None and row.units > 0:
                    return Claim(pool.id, spec.name, kind)
    return None


def models_of(catalog: Catalog, cluster: str, project: str) -> tuple[str, ...]:
    """The GPUs that a project's Jobs may have on a cluster, as the catalogue calls them, sorted."""
    declared = {
        spec.gpu_model
        for pool in catalog.pools_of(cluster)
        for spec in map(catalog.spec, pool.specs)
        if spec is not None and spec.gpus == 1 and spec.gpu_model
    }
    return tuple(sorted(m for m in declared if claim_of(catalog, cluster, project, m) is not None))


def _specs(catalog: Catalog, pool: Pool, gpu: str | None) -> Iterator[InstanceSpec]:
    for name in pool.specs:
        spec = catalog.spec(name)
        if spec is None or spec.gpus != (0 if gpu is None else 1):
            continue
        if gpu is None or matching_models(spec.gpu_model or "", [gpu]):
            yield spec


def _size(spec: InstanceSpec) -> tuple[int, int]:
    return spec.cpus, spec.memory_gib
