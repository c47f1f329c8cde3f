"""Request bodies as the OpenAPI document describes them.

They document; what decides is `trainshed.model.submission` and `trainshed.server.bodies`, so every fault is
answered in the one error shape.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Body(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid")


class RequestedResources(Body):
    """What one Trial asks for; missing values come from the Runner, then from the server. Sizes are MiB."""

    gpu_type: str | None = Field(default=None, examples=["H100"])
    gpus: Count = 1
    cpus: Count = 8
    memory_mb: Count = 65536
    storage_mb: Count = 102400
    shm_mb: Count = 16384


class TrialSpec(Body):
    """What one Trial runs (contract E b2)."""

    kind: Literal["runner"] = "runner"
    runner: str = Field(description="`namespace/name@revision`", examples=["envloop/bash@main"])
    image: str = Field(default="", description="Container image; left out, the Runner's own counts.")
    command: str = Field(default="", description="Fills the Runner's `run_command` parameter.")
    resources: RequestedResources = RequestedResources()
    timeout_seconds: Count = 600
    timeout_sec: Count = Field(default=600, description="Another spelling of `timeout_seconds`.")
    tags: dict[str, str] = Field(default_factory=dict, max_length=16)
    profile: dict[str, Any] = Field(default_factory=dict, description="Job Profile document.")


class NamedTrial(Body):
    """One Trial of a submission."""

    name: str = Field(default="", max_length=128, description="Unique in the Job; default `trial-<n>`.")
    spec: TrialSpec


class SubmitTrials(Body):
    """A Job of 1 to 16 Trials (E15)."""

    type: Literal["train"]
    request_id: str = Field(min_length=1, max_length=128, examples=["lr-sweep-1"])
    trials: list[NamedTrial] = Field(min_length=1, max_length=16)


class SubmitOne(Body):
    """A Job of one Trial (E16)."""

    type: Literal["train"]
    request_id: str = Field(min_length=1, max_length=128, examples=["lr-sweep-1"])
    spec: TrialSpec


class MissingBlobs(Body):
    """Digests to ask for."""

    sha256: list[Digest] = Field(max_length=10_000)


class PublishedFile(Body):
    """One file of the tree to publish; its bytes were uploaded before."""

    path: str
    mode: Literal["100644", "100755"]
    size: int = Field(ge=0)
    sha256: Digest


class PublishRevision(Body):
    """A directory of a git commit, with the proof that the commit holds it."""

    commit: str = Field(pattern="^[0-9a-f]{40}$")
    commit_object: str = Field(description="The raw commit object, base64.")
    tree_objects: list[str] = Field(
        description="Raw tree objects from the commit's root down to the published directory, base64."
    )
    subdirectory: str = Field(default="", description="The published directory inside the repository.")
    files: list[PublishedFile]
    source_ref: str | None = Field(default=None, description="Branch or tag that shall point here.")
    visibility: Literal["public", "project", "projects"] | None = None
    dirty: bool = Field(default=False, description="The work tree had changes that were not published.")


class SetVisibility(Body):
    """Who may read a Runner."""

    visibility: Literal["public", "project", "projects"]
    projects: list[str] = Field(default_factory=list, description="For `projects`: who besides the owner.")


class CreateProject(Body):
    """A new project; absent limits mean unlimited."""

    project_id: str = Field(pattern="^[A-Za-z0-9_:-]{1,128}$")
    name: str = Field(default="", max_length=200)
    priority: int = 0
    max_gpus: int | None = Field(default=None, ge=0)
    budget_gpu_hours: float | None = Field(default=None, ge=0)


class UpdateProject(Body):
    """Changed limits of a project; null means unlimited, absent means unchanged."""

    name: str = Field(default="", max_length=200)
    priority: int = 0
    max_gpus: int | None = Field(default=None, ge=0)
    budget_gpu_hours: float | None = Field(default=None, ge=0)


class PutMember(Body):
    """A member's role."""

    role: Literal["viewer", "developer", "admin"]


class CreateKey(Body):
    """A new key: either permissions one by one or all those of a role."""

    label: str = Field(min_length=1, max_length=128)
    kind: Literal["human", "service", "agent"] = "service"
    permissions: list[str] = Field(default_factory=list)
    role: Literal["viewer", "developer", "admin"] | None = None
    user: str | None = Field(default=None, max_length=128)
    expires_in_seconds: float | None = Field(default=None, gt=0)
