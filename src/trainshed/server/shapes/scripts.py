"""Script Jobs (contract G, a.1): the document that every door shows. Times are ISO 8601 with ``Z``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape

GTime = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-11-29T12:00:00Z"])]
"""ISO 8601 in UTC, as contract G writes it."""
ScriptWord = Literal[
    "queued",
    "routing",
    "awaiting_approval",
    "provisioning",
    "running",
    "checkpointing",
    "migrating",
    "cancelling",
    "done",
    "failed",
    "cancelled",
    "denied",
]
SourceWord = Literal["agent", "user"]


class Progress(Shape):
    """How far the program says it is."""

    step: float | None
    total: float | None
    source: str | None = Field(description="`helper`, or `output`: guessed from what it printed.")


class BundleSummary(Shape):
    """What was packed, and what to say of it. A list of Jobs has the first of each kind of line alone."""

    manifest_sha256: str
    files: int
    bytes: int
    included: list[str]
    included_not_shown: int = Field(default=0, description="How many more the Job itself shows.")
    left_out: list[str]
    left_out_not_shown: int
    hint: str | None
    warnings: list[str]
    warnings_not_shown: int = Field(default=0, description="How many more the Job itself shows.")
    source: str = Field(description="How it was chosen what ships: `git` or `walk`.")
    untracked: int = Field(description="How many of the files git does not track.")


class ScriptJob(Shape):
    """A script Job as it is now."""

    id: str = Field(description="Twelve hexadecimal digits.", examples=["3fa94c01d2e7"])
    short_id: str = Field(examples=["3fa94c"])
    job_id: str = Field(description="Its id at the other operations.")
    trial_id: str
    name: str
    state: ScriptWord
    source: SourceWord
    request_id: str | None
    project_dir: str
    spec: dict[str, Any]
    spec_hash: str
    bundle_sha256: str
    bundle: BundleSummary
    provider: str | None
    gpu: str | None
    simulated: bool = Field(description="Whether its GPU exists in the accounting only.")
    current_attempt_id: str | None = Field(examples=["3fa94c01d2e7.1"])
    attempt_count: int
    accepted_attempts: int
    route_reason: str | None
    approval_id: int | None = Field(description="The question that waits for a person's answer.")
    approval_reason: str | None
    approved_at: GTime | None
    approved_by: str | None
    not_before: GTime | None
    waiting_since: GTime | None
    cancel_requested_at: GTime | None
    progress: Progress | None
    last_metrics: dict[str, float] | None
    checkpoint_count: int
    last_checkpoint_at: GTime | None
    outputs_dir: str
    outputs_fetched: bool
    outputs_count: int | None
    exit_code: int | None
    failure_kind: str | None
    message: str | None
    created_at: GTime
    updated_at: GTime
    started_at: GTime | None
    finished_at: GTime | None
    version: int = Field(description="Grows with each event; progress does not change it.")


class SubmittedScript(Shape):
    """What a submission came to."""

    job: ScriptJob
    submitted: bool
    duplicate_of: str | None = None
    message: str | None = None
    bundle: BundleSummary = Field(description="Of what was packed now.")


class ScriptEvent(Shape):
    """One transition or note (section b)."""

    id: int
    at: GTime
    kind: Literal["transition", "note"]
    from_: str | None = Field(alias="from")
    to: str | None
    reason: str
    message: str
    actor: str
    attempt: int | None


class ScriptEvents(Shape):
    """Events of a script Job, oldest first."""

    items: list[ScriptEvent]
    next_after: int | None = Field(description="Give this as `after` to read on; null at the end.")


class ScriptAttempt(Shape):
    """One run at one provider."""

    id: str
    number: int
    provider: str
    state: str
    gpu: str | None
    url: str | None
    resumed_from: int | None = Field(description="The number of the checkpoint that it began from.")
    submitted_at: GTime | None
    started_at: GTime | None
    ended_at: GTime | None
    exit_code: int | None
    message: str | None


class ScriptCheckpoint(Shape):
    """A checkpoint that was brought here."""

    number: int
    attempt: int
    step: int | None
    files: int
    bytes: int
    saved_at: GTime


class ScriptCheckpointFile(Shape):
    """One file of a checkpoint."""

    path: str = Field(description="Relative to the checkpoint folder.")
    bytes: int
    sha256: str


class ScriptDetail(Shape):
    """A script Job with its history."""

    job: ScriptJob
    attempts: list[ScriptAttempt]
    checkpoints: list[ScriptCheckpoint]
    events: list[ScriptEvent]
    route: dict[str, Any] | None = Field(description="What routing found last.")


class ScriptPage(Shape):
    """Script Jobs, newest first."""

    items: list[ScriptJob]
    next_cursor: str | None
    counts: dict[str, int] = Field(description="How many of the project's stand at each state.")


class Routed(Shape):
    """What a submission would come to; nothing was created (a.7)."""

    spec: dict[str, Any]
    route: dict[str, Any]
    approval: dict[str, Any] | None


class CancelledScript(Shape):
    """A cancel that was accepted, or of a Job that had ended."""

    job: ScriptJob
    changed: bool


class ScriptOutput(Shape):
    """One file that a script Job wrote; its bytes are those of an Artifact."""

    path: str
    bytes: int
    sha256: str | None
    artifact_id: str
    upload_state: str = Field(description="Of the Artifact; only an `uploaded` one can be fetched.")


class ScriptOutputs(Shape):
    """What a script Job wrote, by path."""

    trial_id: str
    items: list[ScriptOutput]


class ScriptLog(Shape):
    """Lines of a script Job's log (a.3)."""

    attempt: int | None
    provider: str | None
    latest_attempt: int | None
    lines: list[str]
    next_since: str | None
    older_lines_not_shown: int
    finished: bool = Field(description="No more will come: the Job has ended.")
    note: str | None = None
    places: list[str] | None = Field(
        default=None, description="Of each line, the place behind it as `ATTEMPT:OFFSET`; where asked for."
    )


class ScriptSeries(Shape):
    """How one metric went."""

    name: str
    steps: list[float | None] = Field(description="Of each value; null where none was said.")
    values: list[float]


class ScriptMetrics(Shape):
    """How the metrics of a script Job went."""

    source: Literal["helper", "guess"] | None = Field(description="Said by the helper, or read from output.")
    series: list[ScriptSeries]


class FetchAsked(Shape):
    """A fetch that the server makes now."""

    job: ScriptJob
    asked: bool = Field(description="False where nothing had to be asked for.")


class Approval(Shape):
    """A question to a person."""

    id: int
    job_id: str
    short_id: str | None
    kind: str = Field(description="What kind of Job it is about.")
    spec_hash: str
    rules: list[str]
    provider: str | None
    reason: str
    asked_at: GTime
    expires_at: GTime
    answer: Literal["approved", "denied", "expired", "withdrawn"] | None
    answered_at: GTime | None
    answered_by: str | None
    note: str | None


class Challenge(Shape):
    """A one-time code was shown on the person's own channel; it is not in this answer (c.7)."""

    approval_id: int
    channel: str = Field(description="Where it was shown.", examples=["terminal /dev/pts/3"])
    expires_at: GTime


class Provider(Shape):
    """A place where script Jobs run."""

    name: str
    enabled: bool
    health: str
    message: str | None = Field(description="Why it cannot be used, and what to do about it.")
    checked_at: GTime | None
    cooldown_until: GTime | None
    exhausted_until: GTime | None
    gpus: list[dict[str, Any]]
    capabilities: dict[str, Any]
    running: int


class Providers(Shape):
    """Every provider that this server knows."""

    items: list[Provider]


class Quota(Shape):
    """What is used and left at a provider (a.6)."""

    provider: str
    used: float | None
    limit: float | None
    unit: str
    resets_at: GTime | None
    source: Literal["live", "estimate"]
    detail: str
    observed_at: GTime | None


class Quotas(Shape):
    """Quotas of all providers, and a sentence for each."""

    quota: list[Quota]
    summary: list[str]


class SecretName(Shape):
    """A secret, without its value."""

    name: str
    updated_at: GTime


class SecretNames(Shape):
    """Secrets of the caller in this project."""

    items: list[SecretName]


class ApprovalPolicy(Shape):
    """The approval rules that count now, and which of them the project changed."""

    policy: dict[str, Any]
    changed: dict[str, Any]
    updated_at: GTime | None
    updated_by: str | None
