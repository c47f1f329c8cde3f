"""Clusters, pools, quotas and cordons: what there is, what is free, what is closed (contract C1, C23-C25)."""

from __future__ import annotations

import re
from typing import Any

from trainshed.model.access import Permission
from trainshed.model.errors import Refusal
from trainshed.model.training import catalog as kinds
from trainshed.model.training.capabilities import CAPABILITIES
from trainshed.model.training.spec import InstanceType
from trainshed.policy.gangs.figures import DAY_SECONDS, idle_figures, spec_figures
from trainshed.server.bodies import Body
from trainshed.server.documents import Param
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.outlook import Outlook, Yard
from trainshed.server.pages import bounded_number
from trainshed.server.routes.jobs import READ
from trainshed.server.routes.tasks import small
from trainshed.server.shapes import places as shapes
from trainshed.server.shapes import requests
from trainshed.server.shapes.common import Page, iso
from trainshed.store import gangs
from trainshed.store.database import Connection
from trainshed.store.gangs import Cordon

routes = Routes("places")

ADMIN = (Permission.ADMIN,)
_MOST_UNITS = 10_000
_NUMBER = re.compile(r"[0-9]{1,18}")
SPEC = Param("spec", {"type": "string"}, "Only this instance spec.", refuses=("NOT_FOUND",))
UNITS = Param(
    "units",
    {"type": "integer", "minimum": 1, "maximum": _MOST_UNITS},
    "Units of one replica; left out, 1.",
    refuses=("INVALID_LIMIT",),
)
PROJECT = Param(
    "project", {"type": "string"}, "The project; by default the key's.", refuses=("PROJECT_ACCESS_DENIED",)
)


def _outlook(call: Call) -> Outlook:
    with call.services.database.read() as connection:
        return call.services.outlook.read(connection, call.now)


def _not_found(noun: str, name: str) -> Refusal:
    command = "catalog show" if noun == "cluster" else "pool list"
    said = f"there is no {noun} `{name[:80]}` in the catalogue"
    hint = f"`trainshed {command}` shows what there is."
    return Refusal.of("NOT_FOUND", said, path=noun, hint=hint)


@routes.get("/pools", Operation("List pools and what is free in them", answer=Page[shapes.Pool], any_of=READ))
def list_pools(call: Call) -> Page[shapes.Pool]:
    """Figures of this moment, shared by everybody: they reserve nothing (C24)."""
    outlook = _outlook(call)
    return Page(items=[_pool(outlook, pool) for pool in outlook.catalog.pools])


@routes.get(
    "/pools/{pool}", Operation("Read a pool", answer=shapes.Pool, any_of=READ, refuses=("NOT_FOUND",))
)
def read_pool(call: Call, pool: str) -> shapes.Pool:
    """One pool with its figures."""
    outlook = _outlook(call)
    found = outlook.catalog.pool(pool)
    if found is None:
        raise _not_found("pool", pool)
    return _pool(outlook, found)


@routes.get(
    "/pools/{pool}/idle",
    Operation(
        "Read what is idle in a pool",
        answer=shapes.Idle,
        any_of=READ,
        params=(SPEC, UNITS),
        refuses=("NOT_FOUND",),
    ),
)
def read_idle(call: Call, pool: str) -> shapes.Idle:
    """Idle units, how steady they are and how scattered (C25): for reference only."""
    wanted = call.query.get("spec")
    units = bounded_number(call.query, "units", 1, _MOST_UNITS, "INVALID_LIMIT") or 1
    with call.services.database.read() as connection:
        outlook = call.services.outlook.read(connection, call.now)
        found = outlook.catalog.pool(pool)
        if found is None:
            raise _not_found("pool", pool)
        samples = gangs.idle_samples_of(connection, pool, since=outlook.at - DAY_SECONDS)
    if wanted is not None and wanted not in found.specs:
        raise _not_found("spec", wanted)
    yard = outlook.yard_of(found.cluster)
    specs = [] if yard is None else [name for name in found.specs if wanted in {None, name}]
    return shapes.Idle(
        pool=pool,
        as_of=iso(outlook.at),
        specs=[_idle(outlook, yard, pool, name, units, samples.get(name, [])) for name in specs if yard],
    )


def _idle(
    outlook: Outlook, yard: Yard, pool: str, name: str, units: int, samples: list[tuple[float, int]]
) -> shapes.IdleSpec:
    spec = _spec(outlook, name)
    found = idle_figures(
        yard.cluster,
        pool,
        spec.amounts(),
        spec.gpu_model if spec.gpus else None,
        units=units,
        samples=samples,
        now=outlook.at,
    )
    return shapes.IdleSpec(
        spec=name,
        idle_units=found.idle_units,
        stability=found.stability.value,
        fragmentation=found.fragmentation,
        largest_gang=found.largest_gang,
    )


def _pool(outlook: Outlook, pool: kinds.Pool) -> shapes.Pool:
    yard = outlook.yard_of(pool.cluster)
    cluster = outlook.catalog.cluster(pool.cluster)
    every = () if yard is None else tuple(place for place in yard.every if place.pool == pool.id)
    return shapes.Pool(
        id=pool.id,
        cluster=pool.cluster,
        region="" if cluster is None else cluster.region,
        resource_types=[each.value for each in pool.resource_types],
        nodes=len(every),
        specs=[_pool_spec(outlook, yard, pool.id, name) for name in pool.specs],
    )


def _pool_spec(outlook: Outlook, yard: Yard | None, pool: str, name: str) -> shapes.PoolSpec:
    spec = _spec(outlook, name)
    model = spec.gpu_model if spec.gpus else None
    found = None
    if yard is not None:
        every = [place for place in yard.every if place.pool == pool]
        found = spec_figures(yard.cluster, every, pool, name, spec.amounts(), model)
    return shapes.PoolSpec(
        spec=name,
        type="gpu" if spec.type is InstanceType.GPU else "cpu",
        gpu_model=spec.gpu_model,
        gpus=spec.gpus,
        cpus=spec.cpus,
        memory_gib=spec.memory_gib,
        total=0 if found is None else found.total,
        free=0 if found is None else found.free,
        in_use=0 if found is None else found.in_use,
        cordoned=0 if found is None else found.cordoned,
        as_of=iso(outlook.at),
    )


def _spec(outlook: Outlook, name: str) -> kinds.InstanceSpec:
    found = outlook.catalog.spec(name)
    assert found is not None  # noqa: S101 - a catalogue names in its pools what it declares
    return found


@routes.get("/clusters", Operation("List clusters", answer=Page[shapes.ClusterItem], any_of=READ))
def list_clusters(call: Call) -> Page[shapes.ClusterItem]:
    """Where tasks can run (C1)."""
    outlook = _outlook(call)
    return Page(
        items=[
            shapes.ClusterItem(
                id=each.id,
                region=each.region,
                engine=each.engine.value,
                pools=[pool.id for pool in outlook.catalog.pools_of(each.id)],
                nodes=len(outlook.nodes.get(each.id, ())),
                cordons=len([row for row in outlook.cordons if row.cluster == each.id]),
            )
            for each in outlook.catalog.clusters
        ]
    )


@routes.get(
    "/clusters/{cluster}",
    Operation("Read a cluster", answer=shapes.Cluster, any_of=READ, refuses=("NOT_FOUND",)),
)
def read_cluster(call: Call, cluster: str) -> shapes.Cluster:
    """Its engine, what that can do for tasks (c9), its nodes and what of them is closed."""
    outlook = _outlook(call)
    found = outlook.catalog.cluster(cluster)
    if found is None:
        raise _not_found("cluster", cluster)
    yard = outlook.yard_of(cluster)
    pools = {} if yard is None else {place.node.name: place.pool for place in yard.every}
    closed = {row.node for row in outlook.cordons if row.cluster == cluster and row.gpu is None}
    return shapes.Cluster(
        id=found.id,
        region=found.region,
        engine=found.engine.value,
        pools=[pool.id for pool in outlook.catalog.pools_of(cluster)],
        capabilities=[_capability(each.as_dict()) for each in CAPABILITIES[found.engine].values()],
        nodes=[
            shapes.ClusterNode(
                name=node.name,
                pool=pools.get(node.name),
                gpus=[gpu.model for gpu in node.gpus],
                cpus=node.amounts.cpus,
                memory_mb=node.amounts.memory_mb,
                simulated=any(gpu.simulated for gpu in node.gpus),
                cordoned=node.name in closed,
            )
            for node, _ in outlook.nodes.get(cluster, ())
        ],
        cordons=[cordon_view(row) for row in outlook.cordons if row.cluster == cluster],
    )


def _capability(row: dict[str, Any]) -> shapes.Capability:
    return shapes.Capability(field=row["field"], kinds=row["kinds"], note=row["note"])


@routes.get(
    "/quotas",
    Operation(
        "List a project's quotas and what is used of them",
        answer=Page[shapes.QuotaRow],
        any_of=READ,
        params=(PROJECT,),
    ),
)
def list_quotas(call: Call) -> Page[shapes.QuotaRow]:
    """By resource type, pool and spec (C23). Another project's are for the owner key."""
    project = call.query.get("project", call.project)
    if project != call.project and not call.principal.owner:
        raise Refusal.of(
            "PROJECT_ACCESS_DENIED", f"the key belongs to project `{call.project}`", path="project"
        )
    outlook = _outlook(call)
    ledger, items = outlook.ledger(), []
    for pool in outlook.catalog.pools:
        for kind in pool.resource_types:
            for spec in pool.specs:
                line = (project, kind, pool.id, spec)
                row = outlook.quotas.row(line)
                if row is None:
                    continue
                used = outlook.used(line)
                items.append(
                    shapes.QuotaRow(
                        project=project,
                        resource_type=kind.value,
                        pool=pool.id,
                        spec=spec,
                        units=row.units,
                        cohort=row.cohort,
                        borrowing_limit=row.borrowing_limit,
                        lending_limit=row.lending_limit,
                        limit=outlook.quotas.most(line, guarantee=False),
                        used=used,
                        free=max(0, ledger.left(line, guarantee=False)),
                        borrowed=max(0, used - row.units),
                    )
                )
    return Page(items=items)


@routes.get("/cordons", Operation("List what is closed", answer=Page[shapes.CordonItem], any_of=ADMIN))
def list_cordons(call: Call) -> Page[shapes.CordonItem]:
    """Nodes and GPUs on which nothing starts, oldest first (C34)."""
    with call.services.database.read() as connection:
        return Page(items=[cordon_view(row) for row in gangs.standing_cordons(connection)])


@routes.post(
    "/cordons",
    Operation(
        "Close a node or one GPU of it",
        answer=shapes.CordonItem,
        any_of=ADMIN,
        takes=requests.PutCordon,
        max_body=small,
        answers={201: "Closed: nothing starts there any more; what runs goes on."},
        refuses=("INVALID_SPEC", "ALREADY_EXISTS", "NOT_FOUND"),
    ),
)
def put_cordon(call: Call) -> Reply:
    """Until it is cleared. Only the owner key closes nodes: they are shared by all projects."""
    _owner_only(call)
    body = Body(call.object())
    body.known(["cluster", "node", "gpu", "reason"])
    cluster, node = body.required_text("cluster"), body.required_text("node")
    gpu, reason = body.whole("gpu", 0, 10_000), body.required_text("reason")
    body.finish()
    at, by = call.now, call.principal.actor

    def store(connection: Connection) -> Cordon:
        _, catalog = call.services.catalogs.current(connection)
        if catalog.cluster(cluster) is None:
            raise _not_found("cluster", cluster)
        closed = gangs.cordon(
            connection, cluster=cluster, node=node, gpu=gpu, reason=reason, trial_id=None, at=at, by=by
        )
        if not closed:
            raise Refusal.of("ALREADY_EXISTS", f"{node} of {cluster} is closed already", path="node")
        return gangs.standing_cordons(connection)[-1]

    made = call.services.database.write(store)
    call.services.outlook.forget()
    call.services.wake()
    return Reply(cordon_view(made), 201)


@routes.delete(
    "/cordons/{cordon_id}",
    Operation("Open a node or GPU again", answer=shapes.ClearedCordon, any_of=ADMIN, refuses=("NOT_FOUND",)),
)
def clear_cordon(call: Call, cordon_id: str) -> shapes.ClearedCordon:
    """Tasks may start there again."""
    _owner_only(call)
    number = int(cordon_id) if _NUMBER.fullmatch(cordon_id) else -1
    at, by = call.now, call.principal.actor
    if not call.services.database.write(
        lambda connection: gangs.clear_cordon(connection, number, at=at, by=by)
    ):
        raise Refusal.of("NOT_FOUND", f"there is no cordon {cordon_id[:20]}", path="cordon_id")
    call.services.outlook.forget()
    call.services.wake()
    return shapes.ClearedCordon(id=number)


def _owner_only(call: Call) -> None:
    if not call.principal.owner:
        raise Refusal.of("PERMISSION_DENIED", "only the owner key opens and closes nodes")


def cordon_view(row: Cordon) -> shapes.CordonItem:
    return shapes.CordonItem(
        id=row.id,
        cluster=row.cluster,
        node=row.node,
        gpu=row.gpu,
        reason=row.reason,
        trial_id=row.trial_id,
        at=iso(row.at),
        by=row.by,
    )
