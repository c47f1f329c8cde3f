"""Whether a task could be placed on empty nodes at all (`NEVER_FITS`): necessary, not sufficient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType

from trainshed.model.gpus import matching_models
from trainshed.model.resources import Node
from trainshed.model.training.catalog import Catalog, Engine, InstanceSpec, Pool
from trainshed.model.training.spec import Role, RoleGroup, SpecChoice, TaskSpec


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node and its labels."""

    node: Node
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


Fleet = Mapping[str, Sequence[FleetNode]]
"""The nodes of each cluster that is known; one that is missing is not judged."""
Finding = tuple[str, str, str]
"""Path below `spec`, code and message."""
_SHOWN = 10


def pool_nodes(catalog: Catalog, pool: Pool, fleet: Fleet) -> list[Node]:
    """The nodes that a pool has: those that it covers and no earlier pool does."""
    earlier = _earlier_pools(catalog, pool)
    return [
        each.node
        for each in _covered(catalog, pool, fleet)
        if not any(first.nodes.covers(each.node.name, each.labels) for first in earlier)
    ]


def _covered(catalog: Catalog, pool: Pool, fleet: Fleet) -> list[FleetNode]:
    cluster = catalog.cluster(pool.cluster)
    selector = cluster.node_selector if cluster else {}
    return [
        each
        for each in fleet.get(pool.cluster, ())
        if pool.nodes.covers(each.node.name, each.labels)
        and all(each.labels.get(key) == value for key, value in selector.items())
    ]


def _earlier_pools(catalog: Catalog, pool: Pool) -> list[Pool]:
    """Pools that come first where both cover a node: clusters may share an engine, and so its nodes."""
    clusters = {
        each.id
        for each in catalog.clusters
        if _engine_of(catalog, each.id) == _engine_of(catalog, pool.cluster)
    }
    before = takewhile(lambda each: each.id != pool.id, catalog.pools)
    return [each for each in before if each.cluster in clusters]


def _engine_of(catalog: Catalog, name: str) -> tuple[str, str]:
    cluster = catalog.cluster(name)
    if cluster is None or cluster.engine is Engine.LOCAL:
        return Engine.LOCAL, ""
    return cluster.engine, cluster.address or cluster.id


def replicas_on(node: Node, spec: InstanceSpec, units: int) -> int:
    """How many replicas of ``units`` of a spec an empty node holds, by its totals."""
    need = spec.amounts(units)
    rooms = [node.amounts.cpus // need.cpus, node.amounts.memory_mb // need.memory_mb]
    if need.gpus:
        models = {gpu.model for gpu in node.gpus}
        meant = matching_models(spec.gpu_model or "", models)
        rooms.append(sum(gpu.model in meant for gpu in node.gpus) // need.gpus)
    return min(rooms)


def fit_faults(
    task: TaskSpec,
    choice: SpecChoice,
    specs: Mapping[str, InstanceSpec],
    pool: Pool,
    catalog: Catalog,
    fleet: Fleet | None,
) -> Iterator[Finding]:
    """Why a task can never be placed under one choice: a replica, or all of a role together."""
    nodes = pool_nodes(catalog, pool, fleet) if fleet is not None else []
    if not nodes:
        if fleet is not None and _covered(catalog, pool, fleet):
            first = ", ".join(each.id for each in _earlier_pools(catalog, pool)[:_SHOWN])
            yield "pool", "NEVER_FITS", f"pool {pool.id} has no nodes: all belong to earlier pools ({first})"
        return
    charged = [group for group in task.roles(choice) if group.charged]
    counts: dict[tuple[str, int], int] = {}
    for group in charged:
        alike = (group.spec, group.units)
        counts[alike] = counts.get(alike, 0) + group.count
    for group in charged:
        count = counts.pop((group.spec, group.units), 0)
        if not count:
            continue
        spec = specs[group.spec]
        rooms = [replicas_on(node, spec, group.units) for node in nodes]
        if not any(rooms):
            yield _too_large(task, group, spec, pool, nodes)
        elif sum(rooms) < count:
            said = (
                f"{count} replicas of {group.units} x {spec.name} are wanted; all nodes of pool "
                f"{pool.id} together hold {sum(rooms)}"
            )
            yield "workers", "NEVER_FITS", said


def _too_large(
    task: TaskSpec, group: RoleGroup, spec: InstanceSpec, pool: Pool, nodes: Sequence[Node]
) -> Finding:
    own_head = group.role is Role.HEAD and task.head.instance is not None
    path = "head.instance" if own_head else "instance"
    need = spec.amounts(group.units)
    gpus = f"{need.gpus} GPUs {spec.gpu_model}, " if need.gpus else ""
    most = max(nodes, key=lambda node: (node.amounts.gpus, node.amounts.cpus, node.name))
    said = (
        f"one replica needs {gpus}{need.cpus} CPUs, {need.memory_mb} MiB ({group.units} x {spec.name}) on "
        f"one node; the largest node of pool {pool.id}, {most.name}, has {most.amounts.gpus} GPUs, "
        f"{most.amounts.cpus} CPUs, {most.amounts.memory_mb} MiB"
    )
    return f"{path}.count_per_node", "NEVER_FITS", said
