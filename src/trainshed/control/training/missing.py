"""What a waiting task names and the catalogue that counts no longer has: it is `Misconfigured` then (c2).

A catalogue may change under tasks that it accepted. What was frozen at acceptance (an image's address, the
files of a content) stays; what is looked up when a task starts has to be there, and still for its project.
"""

from __future__ import annotations

from trainshed.model.training.catalog import Catalog, Pool
from trainshed.model.training.codes import SpecFaults
from trainshed.model.training.resolve_parts import resolve_image, resolve_mounts, resolve_shared_storage
from trainshed.model.training.spec import TaskSpec
from trainshed.store.records import Task

_SHOWN = 5


def missing_of(spec: TaskSpec, task: Task, catalog: Catalog) -> str:
    """What keeps a task that was accepted from ever starting, in words; empty: nothing."""
    pool = catalog.pool(task.pool)
    if catalog.cluster(task.cluster) is None:
        found = [f"there is no cluster {task.cluster} any more"]
    elif pool is None or pool.cluster != task.cluster:
        found = [f"there is no pool {task.pool} in cluster {task.cluster} any more"]
    else:
        found = _in_pool(spec, task, catalog, pool)
    faults = SpecFaults()
    resolve_image(spec, catalog, task.cluster, faults)
    resolve_mounts(spec, catalog, task.cluster, task.project_id, faults)
    resolve_shared_storage(spec, catalog, task.cluster, task.project_id, faults)
    found += [fault.message for fault in faults.faults]
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(dict.fromkeys(found[:_SHOWN])) + more


def _in_pool(spec: TaskSpec, task: Task, catalog: Catalog, pool: Pool) -> list[str]:
    found = []
    if task.resource_type not in pool.resource_types:
        found.append(f"pool {pool.id} no longer offers {task.resource_type}")
    lists = dict.fromkeys((spec.instance.specs, spec.head_instance.specs))
    for names in lists:
        if not any(is_offered(name, catalog, pool) for name in names):
            many = "spec" if len(names) == 1 else "specs"
            found.append(f"pool {pool.id} no longer offers the {many} {', '.join(names)}")
    return found


def is_offered(spec: str, catalog: Catalog, pool: Pool | None) -> bool:
    """Whether something may start on a spec of this pool."""
    return catalog.spec(spec) is not None and (pool is None or spec in pool.specs)
