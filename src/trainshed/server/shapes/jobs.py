"""Jobs, Trials and their events (contract E b3, b4)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Reason, Shape, Time

JobStatus = Literal["queued", "running", "stopping", "completed", "failed", "cancelled"]
TrialStatus = Literal["queued", "preparing", "running", "stopping", "succeeded", "failed", "cancelled"]
TrialState = Literal[
    "queued",
    "awaiting_approval",
    "denied",
    "preparing",
    "running",
    "checkpointing",
    "migrating",
    "collecting",
    "stopping",
    "succeeded",
    "failed",
    "cancelled",
]
ShownWord = Literal[
    "Queuing",
    "Starting",
    "PullingImage",
    "Prechecking",
    "Running",
    "Replacing",
    "Stopping",
    "SavingCheckpoint",
    "Finishing",
    "Retaining",
    "Succeeded",
    "Failed",
    "Stopped",
]
"""The words for the state of a training task (contract C, c1)."""
OutputWord = Literal["pending", "collecting", "complete", "partial", "failed", "none"]


class RunnerRef(Shape):
    """The Runner snapshot that a Trial froze (E61)."""

    name: str = Field(examples=["envloop/bash"])
    revision: str = Field(pattern="^[0-9a-f]{40}$")
    selector: str = Field(description="As the caller wrote it.")
    source_ref: str | None = Field(description="The branch or tag that named the Revision, if one did.")
    snapshot_sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Image(Shape):
    """The container image of a Trial (E62)."""

    requested: str
    resolved: str
    digest: str


class Resources(Shape):
    """Effective resources of one Trial (E63). Sizes are MiB."""

    gpu_type: str
    gpus: int
    cpus: int
    memory_mb: int
    storage_mb: int
    shm_mb: int


class Gpu(Shape):
    """The GPUs that a Trial holds or held last."""

    model: str
    indices: list[int]
    simulated: bool = Field(description="True: these GPUs exist only in the accounting.")
    node: str


class Waiting(Shape):
    """Why a Trial has not started yet (promise P10)."""

    code: str
    message: str = Field(description="What blocks it and what would unblock it, with numbers.")
    position: int | None = Field(description="Its place in the queue, counted from 1.")
    estimated_start_at: Time | None


class Attempt(Shape):
    """One try at a Trial on one engine."""

    attempt_id: str
    number: int
    engine: str
    started_at: Time | None
    ended_at: Time | None
    ended_by: str | None
    usage: dict[str, Any] | None
    enforcement: dict[str, str] | None = Field(description="How each limit is enforced, or `not enforced`.")


class OutputProblem(Shape):
    """One declared output that could not be kept."""

    name: str
    code: str
    message: str


class Trial(Shape):
    """One independent run of a frozen spec (contract E b4)."""

    trial_id: str
    job_id: str
    type: Literal["train"] = "train"
    name: str
    status: TrialStatus
    state: TrialState | ShownWord = Field(description="Of a training task: the page's word.")
    tags: dict[str, str]
    runner: RunnerRef | None = Field(description="Null for a training task.")
    image: Image | None
    resources: Resources
    timeout_seconds: int
    entrypoint: Literal["main.sh", "main.py"] | None = Field(description="Null for a training task.")
    command: str | None
    profile: dict[str, Any] | None = Field(None, description="The frozen Job Profile.")
    profile_sha256: str | None = Field(None, description="SHA-256 of its canonical JSON.")
    resume_from: str | None = Field(description="The Checkpoint that it resumes from.")
    exit_code: int | None
    exit_signal: int | None
    output_status: OutputWord
    outputs: list[str] = Field(description="The declared output patterns.")
    problems: list[OutputProblem]
    cleanup_confirmed: bool = Field(
        description="True only when the release of everything it held was observed; independent of status."
    )
    user_code_started: bool
    gpu: Gpu | None
    waiting: Waiting | None
    attempts: list[Attempt]
    created_at: Time
    updated_at: Time
    started_at: Time | None
    finished_at: Time | None
    error: Reason | None


class Training(Shape):
    """The Trials of a Job."""

    trials: list[Trial]
    counts: dict[TrialStatus, int]
    spec: dict[str, Any] = Field(default_factory=dict)


class Job(Shape):
    """One accepted submission (contract E b3)."""

    job_id: str = Field(
        pattern="^job_[0-7][0-9A-HJKMNP-TV-Z]{25}$", examples=["job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"]
    )
    type: Literal["train"] = "train"
    request_id: str
    name: str | None = Field(None, description="Of a training task; null for all others.")
    status: JobStatus
    state: JobStatus | ShownWord = Field(description="As `status`; of a training task the page's word.")
    tags: dict[str, str] = Field(description="The tags of the first Trial.")
    error: Reason | None
    created_at: Time
    updated_at: Time
    finished_at: Time | None
    training: Training


class CheckpointRef(Shape):
    """A durable state that a Trial produced; the list of Checkpoints tells more."""

    checkpoint_id: str
    trial_id: str
    uri: str
    durable: bool
    folder: str
    step: int | None
    metric: str | None
    metric_value: float | None
    pinned: bool
    superseded: str | None


class JobResult(Job):
    """A Job with its Checkpoints; answers the current state while it runs."""

    checkpoints: list[CheckpointRef]


class TreeFile(Shape):
    """One file of a Runner Revision."""

    path: str
    mode: Literal["100644", "100755"]
    size: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class TrialSnapshot(Shape):
    """What was frozen at acceptance and what runs, byte for byte (promise P7)."""

    trial_id: str
    job_id: str
    name: str
    runner: RunnerRef | None = Field(description="Null for a training task.")
    image: Image | None
    resources: Resources
    timeout_seconds: int
    entrypoint: str
    command: str | None
    params: dict[str, Any]
    outputs: list[str]
    tags: dict[str, str]
    profile: dict[str, Any] | None = Field(description="What the Runner reads, wholly.")
    profile_sha256: str | None = Field(
        description="SHA-256 of the profile's canonical JSON, the file that the program reads."
    )
    resume_from: str | None = Field(description="The Checkpoint that it resumes from.")
    files: list[TreeFile]


class Event(Shape):
    """One thing that happened to a Job or a Trial; kept for good."""

    event_id: str
    resource_id: str = Field(description="The Trial's id, or the Job's where no Trial is meant.")
    status: TrialStatus | None = Field(description="The status after it, where it changed one.")
    at: Time
    source: str = Field(description="Which part caused it: `controller`, `human`, `service` or `agent`.")
    code: str
    message: str
    actor: str
    trial_id: str | None


class Artifact(Shape):
    """One declared output of a Trial (contract E b6)."""

    artifact_id: str
    trial_id: str
    name: str
    size: int
    sha256: str | None
    upload_state: Literal["pending", "uploading", "uploaded", "failed", "deleted"]
    state: Literal["pending", "uploading", "uploaded", "failed", "deleted"]
    created_at: Time
    deleted_at: Time | None
    deletion: str | None = Field(description="Of a deleted one: with what, by whom or by which rule.")


class ArtifactsDeleted(Shape):
    """What was deleted, or would be."""

    job_id: str
    trial_id: str | None = Field(description="Null for all Trials of the Job.")
    artifacts: int
    size_bytes: int
    kept_bytes: int = Field(description="Of these bytes: what Checkpoints keep that are not deleted.")
    dry_run: bool


class Metric(Shape):
    """A value that the program declared as a metric. Program text never becomes one (E72)."""

    name: str
    value: float
    at: Time


class TrainingModel(Shape):
    """A base model offered for training."""

    name: str


class TrainingModels(Shape):
    """Base models offered for training: none for Runner training."""

    items: list[TrainingModel]
