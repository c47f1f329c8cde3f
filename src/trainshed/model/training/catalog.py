"""What an administrator declares: places, instance specs, quotas, and what tasks may refer to.

One frozen value, made by `catalog_reading.read_catalog` from YAML or by `automatic.automatic` from what a
machine has. Units: whole GPUs, whole CPU cores, GiB, units of an instance spec. Ids are unique by kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

from trainshed.model.resources import Amounts
from trainshed.model.training.spec import InstanceType, MountType, ResourceType

ANY = "*"
"""Every project, spec or cluster."""
DEFAULT_MOUNT_ROOTS = ("/volume", "/mnt")
DEFAULT_PRIORITY = "normal"
MB_PER_GIB = 1024
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Engine(StrEnum):
    """What carries the tasks of a cluster."""

    LOCAL = "local"
    RAY = "ray"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class ChannelType(StrEnum):
    """How an alarm goes out (C40)."""

    APPRISE = "apprise"
    WEBHOOK = "webhook"
    MAILTO = "mailto"


@dataclass(frozen=True, slots=True)
class Region:
    """A place where clusters are (C1)."""

    id: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """One engine and how it is reached (C1, c9)."""

    id: str
    region: str
    engine: Engine
    address: str = ""
    """Ray: the head's address; Kubernetes: a context; Slurm: a login host; local: empty."""
    node_selector: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Labels that a node must have to count as ours; none: all nodes."""


@dataclass(frozen=True, slots=True)
class NodeRule:
    """Which nodes of its cluster a pool has: by name, by labels, or all where neither is given."""

    names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    def covers(self, name: str, labels: Mapping[str, str] = _NOTHING) -> bool:
        if self.names and name not in self.names:
            return False
        return all(labels.get(key) == value for key, value in self.labels.items())


@dataclass(frozen=True, slots=True)
class PrecheckThresholds:
    """What a pool demands of a precheck (C31); 0 demands nothing."""

    gemm_tflops: float = 0.0
    """TFLOP/s per GPU."""
    allreduce_gb_per_second: float = 0.0
    """Bus bandwidth in GB/s."""
    timeout_seconds: int = 600


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one cluster that are shared under one set of quotas (C17, C20, C24)."""

    id: str
    cluster: str
    specs: tuple[str, ...]
    """Names of the instance specs offered."""
    resource_types: tuple[ResourceType, ...] = tuple(ResourceType)
    nodes: NodeRule = NodeRule()
    precheck: PrecheckThresholds = PrecheckThresholds()


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What one unit consists of (C20, C21)."""

    name: str
    type: InstanceType
    cpus: int
    memory_gib: int
    gpus: int = 0
    gpu_model: str | None = None
    """As nodes report it, compared without regard to case; ``None`` for CPU specs."""
    price_per_hour: Decimal | None = None
    """Of one unit, in ``currency``."""
    currency: str | None = None

    def amounts(self, units: int = 1) -> Amounts:
        """What ``units`` of this spec take from a node; scratch and shared memory are not part of specs."""
        return Amounts(
            gpus=self.gpus * units, cpus=self.cpus * units, memory_mb=self.memory_gib * MB_PER_GIB * units
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """Units that a project may hold at once, by resource type, pool and spec (C23, c3).

    ``project`` and ``spec`` may be `ANY`: the row then stands for each project or spec that has none of its
    own, one by one, not for all together. ``units`` are owned for `reserved`, a cap for `ondemand` and
    `spot`; without a row a project has none. `idle` has no quota.
    """

    project: str
    resource_type: ResourceType
    pool: str
    spec: str
    units: int
    cohort: str | None = None
    """Quotas of one cohort (and pool, spec) lend to each other; rows of `ANY` project only borrow."""
    borrowing_limit: int | None = None
    """Units above the own ones that may be borrowed; ``None``: all that are lent."""
    lending_limit: int | None = None
    """Own units that may be lent; ``None``: all."""

    @property
    def lendable(self) -> int:
        return self.units if self.lending_limit is None else min(self.units, self.lending_limit)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A name for a priority; a larger value goes first (C29)."""

    name: str
    value: int


DEFAULT_PRIORITY_CLASSES = (
    PriorityClass("low", 100),
    PriorityClass(DEFAULT_PRIORITY, 500),
    PriorityClass("high", 900),
)


@dataclass(frozen=True, slots=True)
class PriorityRange:
    """The priorities that tasks of a project may have, ends included (C29)."""

    project: str
    min: int = 0
    max: int = 1000


@dataclass(frozen=True, slots=True)
class Volume:
    """Storage that outlives tasks (C11, C14, C48)."""

    id: str
    clusters: tuple[str, ...]
    """Clusters that have it; `ANY`: all."""
    path: str
    """Where it is on a node."""
    multi_writer: bool = False
    """Several pods may write at once."""
    projects: tuple[str, ...] = (ANY,)


@dataclass(frozen=True, slots=True)
class ContentAlias:
    """A short name for a dataset or model (C11)."""

    id: str
    type: MountType
    ref: str
    """`ns/name@version` or an `envloop://` URI."""
    clusters: tuple[str, ...] = (ANY,)
    projects: tuple[str, ...] = (ANY,)


@dataclass(frozen=True, slots=True)
class TaskEnvVar:
    """A variable that every task of a project gets below its own (C10)."""

    project: str
    name: str
    value: str | None = field(default=None, repr=False)
    """``None`` where a secret is named."""
    hidden: bool = False
    secret: str | None = None
    """Where the server reads a hidden value: `env:NAME` of its own environment, or `file:/absolute/path`."""


@dataclass(frozen=True, slots=True)
class LabelRule:
    """A maintained label (C6)."""

    key: str
    values: tuple[str, ...] = ()
    """Values allowed; none named: any."""
    required: bool = False


@dataclass(frozen=True, slots=True)
class AlarmChannel:
    """Where alarms go (C40). The URL holds passwords: no `repr` shows it."""

    id: str
    type: ChannelType
    url: str = field(repr=False)
    projects: tuple[str, ...] = (ANY,)


@dataclass(frozen=True, slots=True)
class PresetImage:
    """A short name for an image (C7)."""

    id: str
    address: str
    clusters: tuple[str, ...] = (ANY,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Everything an administrator declares. Orders are kept as declared."""

    regions: tuple[Region, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    pools: tuple[Pool, ...] = ()
    instance_specs: tuple[InstanceSpec, ...] = ()
    quotas: tuple[Quota, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = DEFAULT_PRIORITY_CLASSES
    priority_ranges: tuple[PriorityRange, ...] = (PriorityRange(ANY),)
    volumes: tuple[Volume, ...] = ()
    aliases: tuple[ContentAlias, ...] = ()
    task_env: tuple[TaskEnvVar, ...] = ()
    label_validation: bool = False
    label_rules: tuple[LabelRule, ...] = ()
    alarm_channels: tuple[AlarmChannel, ...] = ()
    images: tuple[PresetImage, ...] = ()
    mount_roots: tuple[str, ...] = DEFAULT_MOUNT_ROOTS
    allow_host_image: tuple[str, ...] = ()
    """Clusters whose tasks may say `image: host`; `ANY`: all (C7)."""
    organization: str = "default"
    """`X_ORG_NAME` of tasks (C45)."""
    tenant: str = "default"
    """`X_TENANT_ID` of tasks (C45)."""

    def region(self, name: str) -> Region | None:
        return next((row for row in self.regions if row.id == name), None)

    def cluster(self, name: str) -> Cluster | None:
        return next((row for row in self.clusters if row.id == name), None)

    def pool(self, name: str) -> Pool | None:
        return next((row for row in self.pools if row.id == name), None)

    def pools_of(self, cluster: str) -> tuple[Pool, ...]:
        return tuple(row for row in self.pools if row.cluster == cluster)

    def spec(self, name: str) -> InstanceSpec | None:
        return next((row for row in self.instance_specs if row.name == name), None)

    def volume(self, name: str) -> Volume | None:
        return next((row for row in self.volumes if row.id == name), None)

    def alias(self, name: str, kind: MountType) -> ContentAlias | None:
        return next((row for row in self.aliases if row.id == name and row.type is kind), None)

    def channel(self, name: str) -> AlarmChannel | None:
        return next((row for row in self.alarm_channels if row.id == name), None)

    def image(self, name: str) -> PresetImage | None:
        return next((row for row in self.images if row.id == name), None)

    def quota(self, project: str, resource_type: ResourceType, pool: str, spec: str) -> Quota | None:
        """The row that counts: own project before `ANY`, then own spec before `ANY`."""
        rows = {
            (row.project, row.spec): row
            for row in self.quotas
            if row.resource_type is resource_type and row.pool == pool
        }
        keys = ((project, spec), (project, ANY), (ANY, spec), (ANY, ANY))
        return next((rows[key] for key in keys if key in rows), None)

    def priority_range(self, project: str) -> PriorityRange:
        rows = {row.project: row for row in self.priority_ranges}
        return rows.get(project) or rows.get(ANY) or PriorityRange(ANY)

    def priority_value(self, priority: str | int | None) -> int | None:
        """The number of a class or number, ``None`` for a class that is not declared (C29)."""
        if isinstance(priority, int):
            return priority
        name = DEFAULT_PRIORITY if priority is None else priority
        return next((row.value for row in self.priority_classes if row.name == name), None)


def named(names: Collection[str], name: str) -> bool:
    """Whether a list of clusters or projects has ``name``, by itself or as `ANY`."""
    return ANY in names or name in names
