"""Where training tasks can run: clusters, pools, quotas, cordons, the catalogue (contract C)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape, Time
from trainshed.server.shapes.tasks import ResourceWord


class PoolSpec(Shape):
    """Units of one instance spec in a pool: a reference value, not a reservation (C24)."""

    spec: str
    type: Literal["gpu", "cpu"]
    gpu_model: str | None
    gpus: int
    cpus: int
    memory_gib: int
    total: int = Field(description="Units that its nodes would hold, were they up and empty.")
    free: int = Field(description="Units that fit now. Specs share nodes: what one takes, others lack.")
    in_use: int = Field(description="Units of running tasks.")
    cordoned: int
    as_of: Time


class Pool(Shape):
    """Nodes that are shared under one set of quotas."""

    id: str
    cluster: str
    region: str
    resource_types: list[ResourceWord]
    nodes: int
    specs: list[PoolSpec]


class IdleSpec(Shape):
    """What an idle task could get now (C25)."""

    spec: str
    idle_units: int = Field(description="Units that fit now, each alone.")
    stability: Literal["high", "medium", "low"] = Field(
        description="How much of the last 24 h as many units stayed free for an hour: 90 %, 50 %, less."
    )
    fragmentation: float = Field(
        description="Share of the free GPUs (CPU cores) that replicas of that size cannot use, from 0 to 1."
    )
    largest_gang: int = Field(description="Replicas of that size that fit now.")


class Idle(Shape):
    """Idle figures of a pool."""

    pool: str
    as_of: Time
    specs: list[IdleSpec]


class Capability(Shape):
    """Whether an engine honours a field of a task, and for which kinds (c9)."""

    field: str
    kinds: list[Literal["pytorch", "ray"]]
    note: str


class CordonItem(Shape):
    """A node, or one GPU of it, on which nothing starts (C34)."""

    id: int
    cluster: str
    node: str
    gpu: int | None
    reason: str
    trial_id: str | None
    at: Time
    by: str


class ClusterNode(Shape):
    """A node as its engine reports it."""

    name: str
    pool: str | None
    gpus: list[str] = Field(description="The model of each GPU.")
    cpus: int
    memory_mb: int
    simulated: bool
    cordoned: bool


class ClusterItem(Shape):
    """One engine and its place (C1)."""

    id: str
    region: str
    engine: Literal["local", "ray", "kubernetes", "slurm"]
    pools: list[str]
    nodes: int
    cordons: int


class Cluster(Shape):
    """A cluster with everything that is known of it."""

    id: str
    region: str
    engine: Literal["local", "ray", "kubernetes", "slurm"]
    pools: list[str]
    capabilities: list[Capability]
    nodes: list[ClusterNode]
    cordons: list[CordonItem]


class QuotaRow(Shape):
    """One quota of a project and what is used of it (C23)."""

    project: str
    resource_type: ResourceWord
    pool: str
    spec: str
    units: int
    cohort: str | None
    borrowing_limit: int | None
    lending_limit: int | None
    limit: int = Field(description="The most that the project may ever hold, borrowed units included.")
    used: int
    free: int
    borrowed: int


class CatalogView(Shape):
    """The catalogue that counts; URLs of alarm channels are masked."""

    revision: int = Field(description="0: nobody applied one; it is made from what the machine has.")
    document: dict[str, Any]
    applied_at: Time | None
    applied_by: str | None


class CatalogChange(Shape):
    """One difference."""

    action: Literal["added", "removed", "changed", "reordered"]
    what: str
    details: str


class AppliedCatalog(Shape):
    """What applying a catalogue came to."""

    revision: int
    changes: list[CatalogChange]
    applied: bool = Field(description="False for a dry run, and where nothing differs.")


class ClearedCordon(Shape):
    """A cordon that was taken away."""

    id: int
    cleared: Literal[True] = True


class FieldHelp(Shape):
    """What a field of the task file means."""

    field: str
    meaning: str
    type: str
    limits: str
    required: bool
    default: Any
    default_text: str
    kinds: list[str]
    codes: list[str] = Field(description="With which a wrong value is refused.")
    fields: list[str] = Field(description="Those below it.")


class FieldsHelp(Shape):
    """Fields of the task file."""

    items: list[FieldHelp]
