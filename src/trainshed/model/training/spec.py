"""A training task as its owner wrote it: frozen, typed, free of faults that can be seen without a catalogue.

`reading.read_task` makes a `TaskRequest` from a document, `resolve.resolve` judges it against a catalogue.
Units: seconds, whole replicas, whole units of an instance spec. Serves the contract "Create Training" (b).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

HOST_IMAGE = "host"
"""The word for the machine's own environment instead of an image (C7)."""
MAX_WORKERS = 9_999
MAX_RESUBMISSIONS = 100
MAX_NOTICE_SECONDS = 600
DEFAULT_IMAGE_PULL_RETRIES = 3
DEFAULT_RESUBMISSIONS = 3
DEFAULT_RETENTION_SECONDS = 600
DEFAULT_IDLE_TIMEOUT_SECONDS = 60
SUBMITTER_CPUS = 1
"""What the submitter of a Ray task is shown with; 500m really (C19)."""
SUBMITTER_MEMORY_MB = 256
"""200 MiB really (C19)."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Kind(StrEnum):
    """What runs: the same program on every replica, or a Ray driver on a cluster of its own (C4)."""

    PYTORCH = "pytorch"
    RAY = "ray"


BOTH_KINDS = frozenset(Kind)
TASK_TYPES: Mapping[str, Kind] = MappingProxyType({"PyTorchJob": Kind.PYTORCH, "RayJob": Kind.RAY})
"""The page's words, accepted as `task_type` (C4)."""


class ResourceType(StrEnum):
    """Fixes quota, the choices of Guarantee and who may interrupt (C17, table c3)."""

    RESERVED = "reserved"
    ONDEMAND = "ondemand"
    SPOT = "spot"
    IDLE = "idle"

    # That of Enum is written in Python; quotas are looked up by it in every pass.
    __hash__ = str.__hash__


GUARANTEE_DEFAULTS: Mapping[ResourceType, bool | None] = MappingProxyType(
    {
        ResourceType.RESERVED: True,
        ResourceType.ONDEMAND: False,
        ResourceType.SPOT: None,
        ResourceType.IDLE: None,
    }
)
"""The default of `guarantee` of each type; ``None`` where it is not offered (C26, c4)."""


class Role(StrEnum):
    """What a replica is within its task (C18, C19)."""

    MASTER = "master"
    WORKER = "worker"
    HEAD = "head"
    SUBMITTER = "submitter"


class InstanceType(StrEnum):
    """First choice of C20."""

    GPU = "gpu"
    CPU = "cpu"


class MountType(StrEnum):
    """What is mounted (C11)."""

    VOLUME = "volume"
    DATASET = "dataset"
    MODEL = "model"


class NoticeSignal(StrEnum):
    """The signal of an exit notice (C36)."""

    SIGUSR1 = "SIGUSR1"
    SIGTERM = "SIGTERM"


class AutoscalingMode(StrEnum):
    """How eagerly Ray asks for workers (C51)."""

    DEFAULT = "Default"
    CONSERVATIVE = "Conservative"
    AGGRESSIVE = "Aggressive"


class AlarmEvent(StrEnum):
    """What an alarm can be about (C40). Those that end in `_over` need a threshold."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    RESUBMITTED = "resubmitted"
    NODE_REPLACED = "node_replaced"
    QUEUED_OVER = "queued_over"
    """Seconds in the queue."""
    GPU_IDLE_OVER = "gpu_idle_over"
    """Seconds without work on any GPU of the task."""
    METRIC_OVER = "metric_over"
    """A value of a metric."""


THRESHOLD_EVENTS = frozenset({AlarmEvent.QUEUED_OVER, AlarmEvent.GPU_IDLE_OVER, AlarmEvent.METRIC_OVER})


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable (C8). A hidden value is write-only: no `repr` shows it (C9)."""

    name: str
    value: str = field(repr=False)
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount (C11-C13): ``ref`` is a volume id, `ns/name@version`, an `envloop://` URI or an alias."""

    type: MountType
    ref: str
    mount_path: str
    sub_path: str | None = None
    """Relative, inside of what is mounted."""
    read_only: bool = False
    """Always true for datasets and models."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What one replica consists of: ``count_per_node`` units of one of ``specs``, on one node (C20, C22)."""

    type: InstanceType | None
    """``None``: left out, that of the specs."""
    specs: tuple[str, ...]
    """In descending preference."""
    count_per_node: int = 1


@dataclass(frozen=True, slots=True)
class Precheck:
    """Checks of GPUs and network before the command; ``env`` is seen by the checks only (C31, C32)."""

    enabled: bool = False
    env: tuple[EnvVar, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultTolerance:
    """Automatic resubmission and replacement of nodes (C33, C34)."""

    enabled: bool = False
    max_resubmissions: int = DEFAULT_RESUBMISSIONS
    replace_node: bool = False
    """Kind pytorch only."""

    @property
    def budget(self) -> int:
        """Automatic resubmissions after failures that this task may have."""
        return self.max_resubmissions if self.enabled else 0


@dataclass(frozen=True, slots=True)
class ExitNotice:
    """Time to save before a preemption, a stop or a deletion (C36)."""

    enabled: bool = False
    timeout_seconds: int = MAX_NOTICE_SECONDS
    signal: NoticeSignal = NoticeSignal.SIGUSR1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A port and path of every replica that serves Prometheus text (C37)."""

    port: int
    path: str = "/metrics"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Custom metrics (C37)."""

    enabled: bool = False
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Alarm:
    """Who hears of what (C40). ``threshold`` is in seconds, or the metric's value for `metric_over`."""

    events: tuple[AlarmEvent, ...]
    channels: tuple[str, ...]
    threshold: float | None = None
    metric: str | None = None
    """The name of the metric for `metric_over`."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a Ray task; without an instance it is as the workers are (C46)."""

    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """A volume at `/tmp/ray` of every pod of a Ray task (C48, C49)."""

    ref: str
    cleanup: bool = False
    """Delete this task's data in it when the task has ended."""


@dataclass(frozen=True, slots=True)
class Debug:
    """Keep the Ray cluster for a while after the end (C50)."""

    enabled: bool = False
    retention_seconds: int = DEFAULT_RETENTION_SECONDS


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Ray workers adjust to load between ``min`` and ``max`` (C51)."""

    enabled: bool
    min: int
    max: int
    idle_timeout_seconds: int = DEFAULT_IDLE_TIMEOUT_SECONDS
    mode: AutoscalingMode = AutoscalingMode.DEFAULT


@dataclass(frozen=True, slots=True)
class Smoke:
    """`validate` only: the same task with one replica (plus ``workers``) and a time limit (C16)."""

    minutes: int
    workers: int = 0


@dataclass(frozen=True, slots=True)
class SpecChoice:
    """One way to fill the wish list of C22: the spec of the gang, and the head's (the same, mostly)."""

    spec: str
    head: str


@dataclass(frozen=True, slots=True)
class RoleGroup:
    """``count`` equal replicas of a task; each needs ``units`` of ``spec`` on one node (C18-C20)."""

    role: Role
    count: int
    spec: str
    """Name of an instance spec; empty for the submitter."""
    units: int
    charged: bool = True
    """False for platform overhead, which is shown and counts against no quota (C19)."""


SUBMITTER = RoleGroup(Role.SUBMITTER, 1, "", 0, charged=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Every field of section (b). ``None`` means left out: `resolve` fills it from the catalogue."""

    kind: Kind
    name_prefix: str
    image: str
    cmd: str
    """Byte for byte as written (C15)."""
    resource_type: ResourceType
    instance: Instance
    region: str | None = None
    cluster: str | None = None
    project: str | None = None
    pool: str | None = None
    public: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    env: tuple[EnvVar, ...] = ()
    mounts: tuple[Mount, ...] = ()
    workers: int = 0
    guarantee: bool | None = None
    """``None``: the default of the resource type (`GUARANTEE_DEFAULTS`)."""
    idle_supplement: bool = False
    """`reserved` only: what is above the own quota runs as `idle` (c3)."""
    priority: str | int | None = None
    """A class of the catalogue or a number; ``None`` is `normal` (C29)."""
    max_run_seconds: int | None = None
    spec_patience_seconds: int = 0
    """How long each spec but the last is held out for (c5)."""
    fault_tolerance: FaultTolerance = FaultTolerance()
    metrics: Metrics = Metrics()
    image_pull_retries: int = DEFAULT_IMAGE_PULL_RETRIES
    """-1: no limit (C38)."""
    ssh: bool = False
    alarms: tuple[Alarm, ...] = ()
    precheck: Precheck = Precheck()
    """Kind pytorch only, as ``exit_notice``."""
    exit_notice: ExitNotice = ExitNotice()
    head: Head = Head()
    """Kind ray only, as all that follow."""
    runtime_env_yaml: str = ""
    shared_storage: SharedStorage | None = None
    debug: Debug = Debug()
    autoscaling: Autoscaling | None = None

    @property
    def replicas(self) -> int:
        """Replicas that consume resources: 1 + workers for both kinds (C18, C19)."""
        return 1 + self.workers

    @property
    def head_instance(self) -> Instance:
        """What the master (pytorch) or the head (ray) runs on (C18, C46)."""
        return self.head.instance or self.instance

    @property
    def autoscales(self) -> bool:
        return self.autoscaling is not None and self.autoscaling.enabled

    def choices(self) -> tuple[SpecChoice, ...]:
        """Every combination of specs in descending preference: the gang's first, then the head's (C22)."""
        if self.head.instance is None:
            return tuple(SpecChoice(name, name) for name in self.instance.specs)
        return tuple(
            SpecChoice(name, head) for name in self.instance.specs for head in self.head.instance.specs
        )

    def roles(self, spec_choice: SpecChoice | str | None = None) -> tuple[RoleGroup, ...]:
        """The groups of replicas under one choice of specs (default: the first), in order of rank.

        Groups without replicas are left out. A name stands for the gang's spec; the head's is then the
        first of its own list, or the same.
        """
        choice = self._choice(spec_choice)
        units = self.instance.count_per_node
        workers = (RoleGroup(Role.WORKER, self.workers, choice.spec, units),) if self.workers else ()
        if self.kind is Kind.PYTORCH:
            return (RoleGroup(Role.MASTER, 1, choice.spec, units), *workers)
        head = RoleGroup(Role.HEAD, 1, choice.head, self.head_instance.count_per_node)
        return (head, *workers, SUBMITTER)

    def _choice(self, given: SpecChoice | str | None) -> SpecChoice:
        if isinstance(given, SpecChoice):
            return given
        name = self.instance.specs[0] if given is None else given
        return SpecChoice(name, name if self.head.instance is None else self.head.instance.specs[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A whole request of `POST /v1/jobs` or `validate`: the spec and what stands beside it."""

    spec: TaskSpec
    request_id: str | None = None
    allow_duplicate: bool | None = None
    """True passes `DUPLICATE_SUSPECTED`, false asks for it even with a request id (C56)."""
    smoke: Smoke | None = None
