"""Parts of `resolve`: where a task runs, and what it refers to there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainshed.model.training.catalog import ANY, Catalog, Cluster, Pool, named
from trainshed.model.training.codes import SpecFaults
from trainshed.model.training.reading_environment import CONTENT_KINDS, content_reference
from trainshed.model.training.spec import HOST_IMAGE, Mount, MountType, TaskSpec

SHARED_STORAGE_PATH = "/tmp/ray"  # noqa: S108 - where Ray looks, inside of the replicas


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task runs, as far as it is known."""

    cluster: Cluster | None
    pool: Pool | None


@dataclass(frozen=True, slots=True)
class EffectiveVariable:
    """A variable as replicas get it. Either ``value`` or ``secret`` (see `catalog.TaskEnvVar`) is set."""

    name: str
    value: str | None = field(repr=False)
    hidden: bool = False
    secret: str | None = None
    source: str = "task"
    """`task`, or `project` where it comes from TaskEnv."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": None if self.hidden else self.value,
            "hidden": self.hidden,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class ResolvedMount:
    """A mount and what it is: a folder of the nodes, or a content."""

    mount: Mount
    place: int = 0
    """Which of the document's mounts it is."""
    path: str | None = None
    """Of a volume: where it is on a node, without ``sub_path``."""
    content: str | None = None
    """Of a dataset or model: its `envloop://` URI, not yet pinned or checked for access."""


def resolve_place(task: TaskSpec, catalog: Catalog, broken: Collection[str], faults: SpecFaults) -> Place:
    """C1, C24: region, cluster and pool, filled in where there is one."""
    region = task.region
    if region is not None and catalog.region(region) is None:
        said = f"there is no region {region}; there are: {_names(row.id for row in catalog.regions)}"
        faults.add("spec.region", "UNKNOWN_REGION", said)
        region = None
    cluster = None
    if "cluster" not in broken:
        cluster = _given_cluster(task.cluster, region, catalog, faults) if task.cluster else None
        if task.cluster is None:
            near = [row for row in catalog.clusters if region in (None, row.region)]
            cluster = near[0] if len(near) == 1 else None
            if cluster is None and not (task.region and region is None):
                said = f"`cluster` is missing; there are: {_names(row.id for row in near)}"
                faults.add("spec.cluster", "FIELD_REQUIRED", said)
    if "pool" in broken:
        return Place(cluster, None)
    return Place(cluster, _pool(task.pool, cluster, catalog, faults))


def _given_cluster(name: str, region: str | None, catalog: Catalog, faults: SpecFaults) -> Cluster | None:
    cluster = catalog.cluster(name)
    if cluster is None:
        said = f"there is no cluster {name}; there are: {_names(row.id for row in catalog.clusters)}"
        faults.add("spec.cluster", "UNKNOWN_CLUSTER", said)
    elif region not in (None, cluster.region):
        said = f"cluster {name} is in region {cluster.region}, not {region}"
        faults.add("spec.cluster", "CLUSTER_NOT_IN_REGION", said)
    return cluster


def _pool(name: str | None, cluster: Cluster | None, catalog: Catalog, faults: SpecFaults) -> Pool | None:
    if name is None:
        pools = catalog.pools_of(cluster.id) if cluster else ()
        if cluster is not None and len(pools) != 1:
            said = f"`pool` is missing; cluster {cluster.id} has: {_names(row.id for row in pools)}"
            faults.add("spec.pool", "FIELD_REQUIRED", said)
        return pools[0] if len(pools) == 1 else None
    pool = catalog.pool(name)
    if pool is None:
        rows = catalog.pools_of(cluster.id) if cluster else catalog.pools
        said = f"there is no pool {name}; there are: {_names(row.id for row in rows)}"
        faults.add("spec.pool", "UNKNOWN_POOL", said)
    elif cluster is not None and pool.cluster != cluster.id:
        _elsewhere("spec.pool", f"pool {name}", cluster.id, (pool.cluster,), faults)
        return None
    return pool


def resolve_image(task: TaskSpec, catalog: Catalog, cluster: str | None, faults: SpecFaults) -> str:
    """C7: the address of a preset image; `host` where it is allowed."""
    if task.image == HOST_IMAGE:
        if cluster is not None and not named(catalog.allow_host_image, cluster):
            said = f"`host` is not allowed on cluster {cluster}; name an image"
            faults.add("spec.image", "IMAGE_REQUIRED", said)
        return task.image
    preset = catalog.image(task.image)
    if preset is None:
        return task.image
    if cluster is not None and not named(preset.clusters, cluster):
        _elsewhere("spec.image", f"image {preset.id}", cluster, preset.clusters, faults)
    return preset.address


_DECLARED = (
    "a server without a catalogue of its own has the volumes of its setting "
    '`[training] volumes = ["ID=/FOLDER"]`, '
    "another those under `volumes` of its catalogue"
)
"""How a volume comes to be there. It names none: what is there may be others'."""


def resolve_mounts(
    task: TaskSpec,
    catalog: Catalog,
    cluster: str | None,
    project: str,
    faults: SpecFaults,
    places: Sequence[int] | None = None,
) -> tuple[ResolvedMount, ...]:
    """C11: what each mount is. Whether a content may be read is for whoever knows contents to say."""
    found = []
    for place, mount in zip(places or range(len(task.mounts)), task.mounts, strict=True):
        where = f"spec.mounts[{place}].ref"
        if mount.type in CONTENT_KINDS:
            uri = content_reference(mount.type, mount.ref)
            alias = None if uri else catalog.alias(mount.ref, mount.type)
            if uri is None and _granted(alias, mount.type, mount.ref, cluster, project, where, faults):
                uri = content_reference(mount.type, alias.ref) if alias else None
            found.append(ResolvedMount(mount, place, content=str(uri) if uri else None))
            continue
        volume = catalog.volume(mount.ref)
        _granted(volume, mount.type, mount.ref, cluster, project, where, faults)
        found.append(ResolvedMount(mount, place, path=volume.path if volume else None))
    return tuple(found)


def resolve_shared_storage(
    task: TaskSpec, catalog: Catalog, cluster: str | None, project: str, faults: SpecFaults
) -> ResolvedMount | None:
    """C48."""
    storage = task.shared_storage
    if storage is None:
        return None
    where = "spec.shared_storage.ref"
    volume = catalog.volume(storage.ref)
    known = _granted(volume, MountType.VOLUME, storage.ref, cluster, project, where, faults)
    if known and volume is not None and not volume.multi_writer:
        said = f"volume {volume.id} may be written by one pod at a time"
        faults.add(where, "SHARED_STORAGE_NOT_RWX", said)
    mount = Mount(MountType.VOLUME, storage.ref, SHARED_STORAGE_PATH)
    return ResolvedMount(mount, path=volume.path if volume else None)


def _granted(
    row: Any, kind: MountType, ref: str, cluster: str | None, project: str, where: str, faults: SpecFaults
) -> bool:
    """Whether a row of the catalogue exists for this project and cluster. Unknown and denied sound alike."""
    if row is None or not named(row.projects, project):
        how = f"; {_DECLARED}" if kind is MountType.VOLUME else ""
        said = f"there is no {kind} {ref}, or project {project} may not use it{how}"
        faults.add(where, "MOUNT_DENIED", said)
        return False
    if cluster is not None and not named(row.clusters, cluster):
        _elsewhere(where, f"{kind} {ref}", cluster, row.clusters, faults)
        return False
    return True


def check_labels(task: TaskSpec, catalog: Catalog, faults: SpecFaults) -> None:
    """C6, where an administrator maintains labels."""
    if not catalog.label_validation:
        return
    rules = {row.key: row for row in catalog.label_rules}
    for key, value in task.labels.items():
        rule = rules.get(key)
        if rule is None:
            said = f"{key} is no maintained label; there are: {_names(rules)}"
            faults.add(f"spec.labels.{key}", "LABEL_NOT_ALLOWED", said)
        elif rule.values and value not in rule.values:
            said = f"{key} may be {_names(rule.values)}"
            faults.add(f"spec.labels.{key}", "LABEL_NOT_ALLOWED", said)
    for rule in catalog.label_rules:
        if rule.required and rule.key not in task.labels:
            said = f"the label {rule.key} is required" + (
                f"; it may be {_names(rule.values)}" if rule.values else ""
            )
            faults.add(f"spec.labels.{rule.key}", "LABEL_REQUIRED", said)


def check_alarms(task: TaskSpec, catalog: Catalog, project: str, faults: SpecFaults) -> None:
    """C40. Channels of other projects are not spoken of."""
    mine = [row.id for row in catalog.alarm_channels if named(row.projects, project)]
    for place, alarm in enumerate(task.alarms):
        for name in alarm.channels:
            if name not in mine:
                said = f"project {project} has no alarm channel {name}; it has: {_names(mine)}"
                faults.add(f"spec.alarms[{place}].channels", "ALARM_CHANNEL_UNKNOWN", said)


def merged_environment(task: TaskSpec, catalog: Catalog, project: str) -> tuple[EffectiveVariable, ...]:
    """C10: variables of all projects, of the project, of the task; the later wins. By name."""
    found: dict[str, EffectiveVariable] = {}
    for owner in (ANY, project):
        for row in catalog.task_env:
            if row.project == owner:
                found[row.name] = EffectiveVariable(row.name, row.value, row.hidden, row.secret, "project")
    for each in task.env:
        found[each.name] = EffectiveVariable(each.name, each.value, each.hidden)
    return tuple(found[name] for name in sorted(found))


def _elsewhere(path: str, what: str, cluster: str, clusters: Collection[str], faults: SpecFaults) -> None:
    said = f"{what} is not in cluster {cluster}; it is in {_names(clusters)}"
    faults.add(path, "NOT_IN_CLUSTER", said)


def _names(names: Any) -> str:
    listed = list(names)
    shown = ", ".join(listed[:10]) or "none"
    return f"{shown} and {len(listed) - 10} more" if len(listed) > 10 else shown  # noqa: PLR2004 - fits a line
