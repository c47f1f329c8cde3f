"""Rows as they leave the store. Field names and order are those of the tables (a test compares them)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trainshed.model.resources import Amounts
from trainshed.model.states import AllocationState, OutputStatus, State


@dataclass(frozen=True, slots=True)
class Project:
    """Who owns jobs and content. ``None`` limits mean unlimited."""

    id: str
    name: str
    priority: int
    max_gpus: int | None
    budget_gpu_seconds: float | None
    used_gpu_seconds: float
    created_at: float
    max_content_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A person's role in a project."""

    project_id: str
    user: str
    role: str
    version: int
    added_at: float
    added_by: str


@dataclass(frozen=True, slots=True)
class Key:
    """An API key, of which only the hash is stored."""

    id: str
    hash: str
    project_id: str
    kind: str
    label: str
    user: str | None
    permissions: str
    owner: bool
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None


@dataclass(frozen=True, slots=True)
class Runner:
    """A named Runner; its Revisions are rows of their own."""

    name: str
    namespace: str
    project_id: str
    visibility: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Revision:
    """One published, immutable Revision of a Runner (E8)."""

    id: int
    runner: str
    revision: str
    snapshot_sha256: str
    manifest: str
    definition: str
    source_ref: str | None
    published_at: float
    published_by: str
    withdrawn_at: float | None
    tree_id: str | None = None

    @property
    def selector(self) -> str:
        return f"{self.runner}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Job:
    """One accepted submission."""

    id: str
    project_id: str
    request_id: str
    type: str
    canonical: str
    status: str
    submitted_by: str
    created_at: float
    updated_at: float
    finished_at: float | None
    stop_accepted_at: float | None
    platform_version: str | None = None
    digits: str = ""
    """Twelve random hexadecimal digits; given by the store when the Job is inserted."""
    short_id: str = ""
    """The shortest prefix of ``digits`` that was nobody else's when the Job was inserted."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One independent run: what was frozen, and how it goes."""

    id: str
    job_id: str
    project_id: str
    position: int
    name: str
    state: State
    runner: str
    revision: str
    selector: str
    source_ref: str | None
    snapshot_sha256: str
    entrypoint: str
    command: str | None
    gpu_type: str
    gpus: int
    cpus: int
    memory_mb: int
    storage_mb: int
    shm_mb: int
    timeout_seconds: int
    outputs: str
    params: str
    tags: str
    created_at: float
    priority: int
    queue_rank: float
    not_before: float
    launch_failures: int
    stop_accepted_at: float | None
    started_at: float | None
    finished_at: float | None
    updated_at: float
    user_code_started: bool
    exit_code: int | None
    exit_signal: int | None
    output_status: OutputStatus
    output_problems: str | None
    error_code: str | None
    error_message: str | None
    image_requested: str | None = None
    image_resolved: str | None = None
    """``repository@sha256:…``: what is pulled and run (E42)."""
    image_digest: str | None = None
    profile: str | None = None
    """The snapshot that the Runner is handed, canonical JSON (E91, E103)."""
    profile_sha256: str | None = None
    resume_from: str | None = None
    """A Checkpoint's id."""
    kind: str = "runner"
    """``runner``, or a kind of ``tasks``, which leaves the Runner's fields empty."""

    @property
    def amounts(self) -> Amounts:
        return Amounts(self.gpus, self.cpus, self.memory_mb, self.storage_mb, self.shm_mb)

    @property
    def tag_map(self) -> dict[str, str]:
        return dict(json.loads(self.tags))

    @property
    def output_patterns(self) -> list[str]:
        return list(json.loads(self.outputs))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a Trial on one engine."""

    id: str
    trial_id: str
    number: int
    engine: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    ended_by: str | None
    detail: str | None
    usage: str | None
    enforcement: str | None
    log_deleted_at: float | None
    cause: str = "initial"
    """Why it was opened (contract C33)."""
    exit_class: str | None = None
    """How its end was classified (contract C35)."""
    failed_rank: int | None = None
    """Of a gang that failed: the member whose failure ended it."""
    log_tail: str | None = None
    """The last lines of that member's log."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What an Attempt holds, and the proof that it was released."""

    id: str
    attempt_id: str
    trial_id: str
    project_id: str
    engine: str
    node: str
    gpu_model: str
    gpu_indices: str
    simulated: bool
    gpus: int
    cpus: int
    memory_mb: int
    storage_mb: int
    shm_mb: int
    timeout_seconds: int
    state: AllocationState
    held_at: float
    released_at: float | None
    tries: int
    evidence: str | None
    parts: str | None = None
    """What each member of a gang holds, JSON; the fields above are then their sums and name no GPU."""
    meeting: str | None = None
    evicted_for: str | None = None
    """The Trial for which it was chosen as a victim (contract c4)."""
    evict_reason: str | None = None
    evicted_at: float | None = None
    notice_until: float | None = None
    """Until when its program may save (contract C36)."""
    sources: str | None = None
    """Out of whose units a gang runs (contract c3): JSON list of [spec, own, borrowed, supplement]."""

    @property
    def amounts(self) -> Amounts:
        return Amounts(self.gpus, self.cpus, self.memory_mb, self.storage_mb, self.shm_mb)

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(json.loads(self.gpu_indices))


@dataclass(frozen=True, slots=True)
class Replica:
    """One member of an Attempt."""

    attempt_id: str
    rank: int
    role: str
    node: str
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    unit_id: str | None = None
    """Under which id the engine knows it; the Attempt's own where it runs alone."""
    state: str | None = None
    address: str | None = None
    gpu_indices: str | None = None
    detail: str | None = None
    reports: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """What a Trial of kind ``pytorch`` or ``ray`` is beyond a Trial (contract C)."""

    trial_id: str
    job_id: str
    project_id: str
    task_uuid: str
    name: str
    kind: str
    owner: str
    spec: str
    """The effective spec, canonical JSON, without hidden values."""
    secrets: str | None
    """The hidden values, encrypted."""
    spec_sha256: str
    region: str
    cluster: str
    pool: str
    resource_type: str
    guarantee: bool
    catalog_revision: int
    submitted_at: float
    totals: str
    public: bool
    priority_class: str
    priority: int
    queued_at: float
    """Its place in the queue, kept over preemption and automatic resubmission (contract c5)."""
    next_cause: str
    """Why its next Attempt will be opened (contract C33)."""
    resubmissions: int
    """Counted ones."""
    excluded_nodes: str
    chosen_spec: str | None
    plan: str | None
    """Where it will start once its victims are gone."""
    stage: str | None
    retained_until: float | None
    deleted_at: float | None
    deleted_by: str | None
    scaling: str | None = None
    """How many workers the load wants of it, and who joined (contract C51), JSON."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One declared output of a Trial."""

    id: str
    trial_id: str
    name: str
    size: int
    sha256: str | None
    upload_state: str
    created_at: float
    deleted_at: float | None = None
    deletion: str | None = None
    """Why it is not there any more, a sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class Content:
    """A named Dataset, Model, Recipe or Plugin; its versions are rows of their own."""

    kind: str
    name: str
    namespace: str
    project_id: str
    visibility: str
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class ContentVersion:
    """One published, immutable version of a content."""

    id: int
    kind: str
    name: str
    version: str
    manifest_sha256: str
    about: str
    files: int
    bytes: int
    published_at: float
    published_by: str
    withdrawn_at: float | None

    @property
    def uri(self) -> str:
        return f"envloop://{self.kind}/{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class PluginApproval:
    """A plugin package that this deployment allows under one name, or allowed once."""

    name: str
    manifest_sha256: str
    approved_at: float
    approved_by: str
    revoked_at: float | None
    revoked_by: str | None


@dataclass(frozen=True, slots=True)
class TrialContent:
    """One content that a Trial consumes, frozen at acceptance."""

    trial_id: str
    role: str
    kind: str
    name: str
    version: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A durable, resumable or servable state that a Trial produced (E106)."""

    id: str
    project_id: str
    job_id: str
    trial_id: str
    attempt_id: str
    folder: str
    checkpoint_type: str
    base_model: str
    lora_rank: int | None
    step: int | None
    parent_id: str | None
    metric: str | None
    metric_value: float | None
    pinned: bool
    superseded: str | None
    """Why its Runner's rules do not keep it; deleted once it is neither pinned nor in use."""
    created_at: float
    deleted_at: float | None
    deleted_by: str | None
    metric_fault: str | None = None
    """Why the metric that its Runner's rules name has no value here."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a Checkpoint."""

    checkpoint_id: str
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Operation:
    """The receipt of something that was asked for and may take a while."""

    id: str
    project_id: str
    kind: str
    resource_id: str
    status: str
    errors: str
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, in a code and a sentence; kept for good."""

    id: int
    job_id: str
    trial_id: str | None
    at: float
    actor: str
    code: str
    message: str
    before: str | None
    after: str | None
    level: str = "info"
    replica: int | None = None
    """The rank of the member of a gang that it is about."""


def decoded(text: str | None) -> Any:
    """The value of a JSON column; ``None`` stays ``None``."""
    return None if text is None else json.loads(text)
