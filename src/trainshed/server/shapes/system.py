"""Health and the machine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape


class Health(Shape):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Shape):
    """Whether requests can be served, check by check."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


class SystemGpu(Shape):
    """One GPU of a node."""

    index: int
    model: str
    uuid: str
    memory_mb: int
    simulated: bool


class SystemAmounts(Shape):
    """Countable resources. Sizes are MiB."""

    gpus: int
    cpus: int
    memory_mb: int
    storage_mb: int
    shm_mb: int


class SystemNode(Shape):
    """One machine of the engine."""

    name: str
    gpus: list[SystemGpu]
    simulated: bool
    total: SystemAmounts
    free: SystemAmounts


class DataFolder(Shape):
    """Where the server keeps everything."""

    path: str
    free_bytes: int
    total_bytes: int


class ContentStore(Shape):
    """Where blobs lie."""

    kind: Literal["file", "s3", "gs", "az"]
    place: str = Field(description="For people; holds no credentials.", examples=["s3://bucket/prefix"])


class SystemImages(Shape):
    """Whether Trials can run in images."""

    runtime: str | None = Field(description="What runs them.", examples=["podman 4.3.1"])
    reason: str | None = Field(description="Why none can run; null if they can.")


class System(Shape):
    """What this server runs on and offers."""

    version: str
    role: Literal["all", "api", "controller"]
    database: Literal["sqlite", "postgresql"]
    data_folder: DataFolder
    content_store: ContentStore
    nodes: list[SystemNode]
    simulated: bool = Field(description="True: some GPUs exist only in the accounting.")
    enforcement: dict[str, str] = Field(description="How each limit is enforced, or `not enforced`.")
    isolation: str = Field(description="Whose eyes a Trial sees the machine with.")
    images: SystemImages
    queue: dict[str, Any]
