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


def _optional(default: Any, **about: Any) -> Any:
    """A key that may be left out; what then counts is decided elsewhere, so no default is documented."""
    return Field(default=default, json_schema_extra=_forget_default, **about)


def _forget_default(schema: dict[str, Any]) -> None:
    del schema["default"]


class RequestedResources(Body):
    """What one Trial asks for; missing values come from the Runner, then from the server. Sizes are MiB."""

    gpu_type: str = _optional("", examples=["H100"])
    gpus: Count = _optional(1, examples=[1])
    cpus: Count = _optional(1, examples=[8])
    memory_mb: Count = _optional(1, examples=[65536])
    storage_mb: Count = _optional(1, examples=[102400])
    shm_mb: Count = _optional(1, examples=[16384])


class TrialSpec(Body):
    """What one Trial runs (contract E b2)."""

    kind: Literal["runner"] = "runner"
    runner: str = Field(description="`namespace/name@revision`", examples=["envloop/bash@main"])
    image: str = _optional("", description="Container image; left out, the Runner's own counts.")
    command: str = _optional("", description="Fills the Runner's `run_command` parameter.")
    resources: RequestedResources = _optional(RequestedResources())
    timeout_seconds: Count = _optional(1, examples=[600])
    timeout_sec: Count = _optional(1, description="Another spelling of `timeout_seconds`.")
    tags: dict[str, str] = _optional({}, max_length=16)
    profile: dict[str, Any] = _optional({}, description="Job Profile document.")


class NamedTrial(Body):
    """One Trial of a submission."""

    name: str = _optional("", max_length=128, description="Unique in the Job; else `trial-<n>`.")
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


class SubmitTask(BaseModel):
    """A training task; `GET /v1/train/schema` describes its `spec` (contract C)."""

    model_config = ConfigDict(extra="allow")

    type: Literal["train"] = "train"
    request_id: str = _optional("", min_length=1, max_length=128)
    spec: TaskSpec
    allow_duplicate: bool = _optional(False)  # noqa: FBT003 - the value of a key


class TaskSpec(BaseModel):
    """What a training task is; the whole table of fields is `GET /v1/train/fields`."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["pytorch", "ray"]
    name_prefix: str = Field(examples=["llama-sft"])
    image: str = Field(examples=["host"])
    cmd: str = Field(examples=["torchrun train.py"])
    resource_type: Literal["reserved", "ondemand", "spot", "idle"]
    instance: dict[str, Any] = Field(examples=[{"specs": ["h200x8"]}])


class ScriptBundle(BaseModel):
    """What was packed, and what to say of it."""

    model_config = ConfigDict(extra="allow")

    manifest_sha256: Digest = Field(description="Of the manifest of the shipped tree, uploaded as a blob.")
    files: int = Field(ge=0)
    bytes: int = Field(ge=0, le=200 * 10**6)


class ScriptSpec(BaseModel):
    """A packed project (contract G). Clients make it of gpu.yaml, arguments and the project's files."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["script"]
    project_dir: str = Field(examples=["/home/ada/project"])
    bundle: ScriptBundle
    script: str = _optional("", examples=["train.py"], description="Exactly one of this and `command`.")
    command: list[str] = _optional([])
    args: list[str] = _optional([])
    hours: float = _optional(1.0, gt=0, le=336)
    vram_gb: float = _optional(1.0, gt=0, le=640)
    gpu: str = _optional("")
    provider: str = _optional("")
    env: dict[str, str] = _optional({})
    secrets: list[str] = _optional([], description="Names, never values.")
    smoke: bool = _optional(False)  # noqa: FBT003 - the value of a key


class SubmitScript(Body):
    """A script Job; without a request id the same spec names the same Job while that has not ended."""

    type: Literal["train"] = "train"
    request_id: str = _optional("", pattern="^[A-Za-z0-9._:-]{1,64}$")
    spec: ScriptSpec


class RouteScript(Body):
    """A script Job that is not submitted."""

    spec: ScriptSpec


class FetchScript(Body):
    """Whether to bring again what was brought."""

    refetch: bool = False


class AnswerApproval(Body):
    """A person's answer; a yes on a person's own server needs the code."""

    answer: Literal["approved", "denied"]
    note: str = _optional("", max_length=1000)
    code: str = _optional("", max_length=64)


class PutSecret(Body):
    """The value of a secret."""

    value: str = Field(min_length=1, max_length=65536)


class ApprovalRules(Body):
    """Rules for one audience."""

    auto_max_hours: float | None = _optional(None, ge=0, le=336)
    unknown_hours: Literal["ask", "auto"] = _optional("ask")
    ask_secrets: bool = _optional(True)  # noqa: FBT003 - the value of a key
    max_quota_share: float | None = _optional(None, ge=0, le=1)
    enforce_hours: bool = _optional(True)  # noqa: FBT003 - the value of a key
    ask_providers: list[str] = _optional([])
    exempt_providers: list[str] = _optional([])


class PutApprovalPolicy(Body):
    """The approval rules of a project; what is left out has its default."""

    version: Literal[1] = _optional(1)
    agent: ApprovalRules = _optional(ApprovalRules())
    user: ApprovalRules = _optional(ApprovalRules())
    overrun_factor: float = _optional(1.5, ge=1, le=10)
    overrun_grace_hours: float = _optional(0.25, ge=0, le=24)
    max_gpu_hours: float | None = _optional(None, ge=0)
    max_cost: float | None = _optional(None, ge=0)
    ask_agents: bool = _optional(False)  # noqa: FBT003 - the value of a key


class Smoke(Body):
    """A copy of the task that ends soon (C16)."""

    minutes: int = _optional(5, ge=1)
    workers: int = _optional(0, ge=0)


class ValidateTask(SubmitTask):
    """A training task to judge; nothing is created."""

    smoke: Smoke | None = _optional(None)


class ChangeTask(Body):
    """What of a task changes; absent keys stay as they are."""

    public: bool | None = None
    priority: str | int | None = None
    shares: list[str] | None = Field(default=None, max_length=100)


class ApplyCatalog(Body):
    """The whole catalogue: what it lacks is removed."""

    document: dict[str, Any]
    expected_revision: int | None = Field(default=None, ge=0)
    dry_run: bool = False


class PutCordon(Body):
    """A node, or one GPU of it, on which nothing may start."""

    cluster: str = Field(max_length=200)
    node: str = Field(max_length=200)
    gpu: int | None = Field(default=None, ge=0)
    reason: str = Field(max_length=200)


class MissingBlobs(Body):
    """Digests to ask for."""

    sha256: list[Digest] = Field(max_length=10_000)


class ReadBlobs(Body):
    """Small files of one version, by digest."""

    sha256: list[Digest] = Field(min_length=1, max_length=200)


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


class PublishContent(Body):
    """One version of a Dataset, Model, Recipe or Plugin."""

    version: str = _optional("", description="A label for good; left out, the manifest's digest.")
    visibility: Literal["public", "project", "projects"] = _optional("project")
    projects: list[str] = _optional([], description="With visibility `projects`, and then needed: which.")
    manifest_sha256: Digest
    manifest: dict[str, Any] = _optional(
        {}, description="The manifest; left out where it was uploaded as a blob or published before."
    )
    bytes: int = _optional(
        0, ge=0, description="Bytes of all files; what exceeds the quota is refused before it is uploaded."
    )


class CreateProject(Body):
    """A new project; absent limits mean unlimited."""

    project_id: str = Field(pattern="^[A-Za-z0-9_:-]{1,128}$")
    name: str = _optional("", max_length=200, description="Else its id.")
    priority: int = 0
    max_gpus: int | None = Field(default=None, ge=0)
    budget_gpu_hours: float | None = Field(default=None, ge=0)
    max_content_bytes: int | None = Field(default=None, ge=0)


class UpdateProject(Body):
    """Changed limits of a project; null means unlimited, absent means unchanged."""

    name: str = _optional("", max_length=200)
    priority: int = _optional(0)
    max_gpus: int | None = _optional(None, ge=0)
    budget_gpu_hours: float | None = _optional(None, ge=0)
    max_content_bytes: int | None = _optional(None, ge=0)


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
