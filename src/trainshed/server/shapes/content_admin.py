"""What content takes, collecting garbage, looking for damage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape, Time

KindWord = Literal["datasets", "models", "recipes", "plugins", "runners", "artifacts", "checkpoints"]


class KindUsage(Shape):
    """What a project holds of one kind."""

    kind: KindWord
    items: int = Field(description="Manifests, Revisions, Artifacts or Checkpoints.")
    logical_bytes: int = Field(
        description="The sizes of all files of all of them, and of what was published also of its manifests."
    )
    stored_bytes: int = Field(description="What they take in the store: every blob once.")


class ProjectUsage(Shape):
    """What a project holds, and its quota."""

    project_id: str
    max_content_bytes: int | None = Field(description="Null: unlimited.")
    content_bytes: int = Field(
        description="What counts: published and not withdrawn, each manifest once with its own size."
    )
    kinds: list[KindUsage]


class Freeable(Shape):
    """What collecting garbage would remove."""

    blobs: int = Field(description="Now.")
    bytes: int
    waiting_blobs: int = Field(description="Once nobody has used them for the time of grace.")
    waiting_bytes: int
    grace_hours: float


class ContentUsage(Shape):
    """What content takes. The whole store is shown to the owner key only."""

    projects: list[ProjectUsage]
    stored_blobs: int | None
    stored_bytes: int | None
    garbage: Freeable | None


class GarbageRun(Shape):
    """A pass of the garbage collector: asked for, running or over."""

    request_id: str | None = Field(description="Who asked for it; null for a regular pass.")
    state: Literal["asked", "running", "done", "failed"]
    reason: str | None = Field(description="Why it failed.")
    started_at: Time | None
    updated_at: Time | None
    manifests: int = Field(description="Let go: nothing names them any more.")
    blobs: int = Field(description="Removed.")
    bytes: int
    adopted: int = Field(description="Found in the store without a record; they count as used now.")


class GarbageState(Shape):
    """The newest pass, and the one that was asked for last."""

    newest: GarbageRun | None
    asked: GarbageRun | None


class Named(Shape):
    """Some holders of one kind."""

    shown: list[str]
    count: int


class Affected(Shape):
    """Everything that is made of a blob."""

    versions: Named
    revisions: Named
    jobs: Named
    artifacts: Named
    checkpoints: Named


class VerifyEvent(Shape):
    """One event of a verification."""

    type: Literal["progress", "damage", "stranger"]
    checked: int = Field(description="Blobs and manifests so far.")
    bytes: int = Field(description="Read so far.")
    total_blobs: int = Field(description="Blobs to read.")
    total_bytes: int
    damaged: int
    sha256: str | None = None
    problem: Literal["missing", "changed", "unreadable", "manifest"] | None = None
    message: str | None = None
    advice: str | None = None
    place: str | None = Field(
        None, description="Below the blobs: what lies there and is none. It is passed over and stays."
    )
    affected: Affected | None = None


class TakenOut(Shape):
    """Whether the stored copy of a blob was damaged and is gone now."""

    sha256: str
    damaged: bool
    corrected: bool = Field(description="It was intact, and its record said another size.")
    advice: str = Field(description="What is left to do.")
