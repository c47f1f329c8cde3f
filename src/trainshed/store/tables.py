"""The tables. Times are Unix seconds; JSON columns hold canonical JSON text.

``migrations/`` builds the same schema step by step; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from trainshed.model.states import AllocationState, OutputStatus, State
from trainshed.store.columns import BigKey, metadata, one_of, partial_index

meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", Text, nullable=False))

projects = Table(
    "projects",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("priority", Integer, nullable=False, default=0),
    Column("max_gpus", Integer),
    Column("budget_gpu_seconds", Double),
    Column("used_gpu_seconds", Double, nullable=False, default=0.0),
    Column("created_at", Double, nullable=False),
    Column("max_content_bytes", BigInteger),
)

members = Table(
    "members",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("user", String, primary_key=True),
    Column("role", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("added_at", Double, nullable=False),
    Column("added_by", String, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("hash", String, nullable=False, unique=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False, index=True),
    Column("kind", String, nullable=False),
    Column("label", String, nullable=False),
    Column("user", String),
    Column("permissions", Text, nullable=False),
    Column("owner", Boolean, nullable=False, default=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", String, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", String, primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("created_at", Double, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    # When somebody last asked for it or stored it: what is about to be used is not collected.
    Column("touched_at", Double),
    # Its bytes are being removed; nobody may count on them.
    Column("deleting_at", Double),
    partial_index("ix_blobs_deleting", "deleting_at", where="deleting_at IS NOT NULL"),
)

# Which projects sent the bytes of a blob, or had them checked: they alone may name it in what they publish.
project_blobs = Table(
    "project_blobs",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Index("ix_project_blobs_sha256", "sha256"),
)

# Room of what projects with a quota are sending now. Of those with the same `sent` one counts.
reservations = Table(
    "content_reservations",
    metadata,
    Column("id", String, primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("sent", String, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
)

manifests = Table(
    "manifests",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("kind", String, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    # Nothing named it any more: it keeps no blob, and its rows of `manifest_blobs` go.
    Column("let_go_at", Double),
)

manifest_blobs = Table(
    "manifest_blobs",
    metadata,
    Column("manifest_sha256", ForeignKey("manifests.sha256"), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Index("ix_manifest_blobs_sha256", "sha256"),
)

contents = Table(
    "contents",
    metadata,
    Column("kind", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("namespace", ForeignKey("namespaces.name"), nullable=False),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("visibility", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

content_grants = Table(
    "content_grants",
    metadata,
    Column("kind", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    ForeignKeyConstraint(
        ["kind", "name"], ["contents.kind", "contents.name"], name="fk_content_grants_content"
    ),
)

content_versions = Table(
    "content_versions",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    # A label, or the manifest's digest where the publisher gave none.
    Column("version", String, nullable=False),
    Column("manifest_sha256", ForeignKey("manifests.sha256"), nullable=False, index=True),
    Column("about", Text, nullable=False),
    Column("files", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("published_at", Double, nullable=False),
    Column("published_by", String, nullable=False),
    Column("withdrawn_at", Double),
    UniqueConstraint("kind", "name", "version"),
    ForeignKeyConstraint(
        ["kind", "name"], ["contents.kind", "contents.name"], name="fk_content_versions_content"
    ),
)

plugin_approvals = Table(
    "plugin_approvals",
    metadata,
    Column("name", String, primary_key=True),
    Column("manifest_sha256", String(64), primary_key=True),
    Column("approved_at", Double, nullable=False),
    Column("approved_by", String, nullable=False),
    Column("revoked_at", Double),
    Column("revoked_by", String),
)

runners = Table(
    "runners",
    metadata,
    Column("name", String, primary_key=True),
    Column("namespace", ForeignKey("namespaces.name"), nullable=False),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("visibility", String, nullable=False),
    Column("created_at", Double, nullable=False),
)

runner_grants = Table(
    "runner_grants",
    metadata,
    Column("runner", ForeignKey("runners.name"), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
)

runner_revisions = Table(
    "runner_revisions",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("runner", ForeignKey("runners.name"), nullable=False),
    Column("revision", String(40), nullable=False),
    Column("snapshot_sha256", String(64), nullable=False),
    Column("manifest", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("source_ref", String),
    Column("published_at", Double, nullable=False),
    Column("published_by", String, nullable=False),
    Column("withdrawn_at", Double),
    # Git's id of the published directory; unknown of Revisions that are older than this column.
    Column("tree_id", String(40)),
    UniqueConstraint("runner", "revision"),
    Index("ix_runner_revisions_snapshot_sha256", "snapshot_sha256"),
)

runner_refs = Table(
    "runner_refs",
    metadata,
    Column("runner", ForeignKey("runners.name"), primary_key=True),
    Column("ref", String, primary_key=True),
    Column("revision", String(40), nullable=False),
    Column("moved_at", Double, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String, primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("request_id", String, nullable=False),
    Column("type", String, nullable=False),
    Column("canonical", Text, nullable=False),
    Column("status", String, nullable=False),
    Column("submitted_by", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("stop_accepted_at", Double),
    Column("platform_version", String),
    # Twelve random hexadecimal digits, and the shortest prefix of them that was nobody else's at creation.
    Column("digits", String(12)),
    Column("short_id", String(12)),
    UniqueConstraint("project_id", "request_id"),
    Index("uq_jobs_digits", "digits", unique=True),
    Index("uq_jobs_short_id", "short_id", unique=True),
    Index("ix_jobs_newest", "project_id", "id"),
    Index("ix_jobs_by_status", "project_id", "status", "id"),
)

trials = Table(
    "trials",
    metadata,
    Column("id", String, primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    # What was frozen at acceptance (E31); none of these columns is ever updated.
    Column("runner", String, nullable=False),
    Column("revision", String(40), nullable=False),
    Column("selector", String, nullable=False),
    Column("source_ref", String),
    Column("snapshot_sha256", String(64), nullable=False),
    Column("entrypoint", String, nullable=False),
    Column("command", Text),
    Column("gpu_type", String, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("storage_mb", Integer, nullable=False),
    Column("shm_mb", Integer, nullable=False),
    Column("timeout_seconds", Integer, nullable=False),
    Column("outputs", Text, nullable=False),
    Column("params", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    # How it goes.
    Column("priority", Integer, nullable=False),
    Column("queue_rank", Double, nullable=False),
    Column("not_before", Double, nullable=False, default=0.0),
    Column("launch_failures", Integer, nullable=False, default=0),
    Column("stop_accepted_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("updated_at", Double, nullable=False),
    Column("user_code_started", Boolean, nullable=False, default=False),
    Column("exit_code", Integer),
    Column("exit_signal", Integer),
    Column("output_status", String, nullable=False),
    Column("output_problems", Text),
    Column("error_code", String),
    Column("error_message", Text),
    # Frozen at acceptance like the columns above; they came with a later schema.
    Column("image_requested", String),
    Column("image_resolved", String),
    Column("image_digest", String),
    Column("profile", Text),
    Column("profile_sha256", String(64)),
    Column("resume_from", String),
    # `runner`, or a kind of `tasks`, which leaves the Runner's columns empty.
    Column("kind", String, nullable=False, server_default="runner"),
    UniqueConstraint("job_id", "position"),
    UniqueConstraint("job_id", "name"),
    Index("ix_trials_queue", "state", "queue_rank", "id"),
    Index("ix_trials_arrivals", "state", "id"),
    Index("ix_trials_newest", "project_id", "id"),
    partial_index("ix_trials_resume_from", "resume_from", where="resume_from IS NOT NULL"),
    one_of("state", State),
    one_of("output_status", OutputStatus),
)

trial_moves = Table(
    "trial_moves",
    metadata,
    Column("before", String, primary_key=True),
    Column("after", String, primary_key=True),
    # A move of training tasks that Trials of Runners do not have.
    Column("tasks_only", Boolean, nullable=False, server_default="0"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String, primary_key=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("engine", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("ended_by", String),
    Column("detail", Text),
    Column("usage", Text),
    Column("enforcement", Text),
    Column("log_deleted_at", Double),
    # Why it was opened (contract C33), and how its end was classified (C35).
    Column("cause", String, nullable=False, server_default="initial"),
    Column("exit_class", String),
    # Of a gang that failed: whose failure ended it, and the end of that member's log.
    Column("failed_rank", Integer),
    Column("log_tail", Text),
    UniqueConstraint("trial_id", "number"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("attempt_id", ForeignKey("attempts.id"), primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("role", String, nullable=False),
    Column("node", String, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("exit_code", Integer),
    # Of the members of a gang; empty for a Trial that runs alone.
    Column("unit_id", String),
    Column("state", String),
    Column("address", String),
    Column("gpu_indices", Text),
    Column("detail", Text),
    # How many of its reports became events.
    Column("reports", Integer, nullable=False, server_default="0"),
)

allocations = Table(
    "allocations",
    metadata,
    Column("id", String, primary_key=True),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False, unique=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False, index=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("engine", String, nullable=False),
    Column("node", String, nullable=False),
    Column("gpu_model", String, nullable=False),
    Column("gpu_indices", Text, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory_mb", Integer, nullable=False),
    Column("storage_mb", Integer, nullable=False),
    Column("shm_mb", Integer, nullable=False),
    Column("timeout_seconds", Integer, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("held_at", Double, nullable=False),
    Column("released_at", Double),
    Column("tries", Integer, nullable=False, default=0),
    Column("evidence", Text),
    # What each member of a gang holds; the columns above are then their sums, and name no GPU.
    Column("parts", Text),
    Column("meeting", Text),
    # Chosen as a victim: for which Trial, why and since when; until when it may save.
    Column("evicted_for", String),
    Column("evict_reason", Text),
    Column("evicted_at", Double),
    Column("notice_until", Double),
    # Out of whose units a gang runs (contract c3), JSON.
    Column("sources", Text),
    one_of("state", AllocationState),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", String, primary_key=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", String(64)),
    Column("upload_state", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("deleted_at", Double),
    # What it was deleted with or by whom, a sentence without its full stop.
    Column("deletion", Text),
    UniqueConstraint("trial_id", "name"),
    Index("ix_artifacts_sha256", "sha256"),
    partial_index("ix_artifacts_kept", "created_at", where="upload_state = 'uploaded'"),
)

trial_contents = Table(
    "trial_contents",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    # What the Trial uses it as: `recipe`, `input:NAME`, `plugin:NAME`, `dependency:NAME`, `mount:PATH`.
    Column("role", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    Column("version", String, nullable=False),
    Column("manifest_sha256", ForeignKey("manifests.sha256"), nullable=False, index=True),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", String, primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False),
    # The folder among the Trial's outputs; empty for the top.
    Column("folder", Text, nullable=False),
    Column("checkpoint_type", String, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("lora_rank", Integer),
    Column("step", Integer),
    Column("parent_id", String),
    Column("metric", String),
    Column("metric_value", Double),
    Column("pinned", Boolean, nullable=False, default=False),
    # Why its Runner's rules do not keep it; deleted once it is neither pinned nor in use.
    Column("superseded", Text),
    Column("created_at", Double, nullable=False),
    Column("deleted_at", Double),
    Column("deleted_by", String),
    # Why the metric that its Runner's rules name has no value here.
    Column("metric_fault", Text),
    UniqueConstraint("trial_id", "folder"),
    Index("ix_checkpoints_newest", "project_id", "id"),
    Index("ix_checkpoints_of_job", "job_id", "id"),
    partial_index("ix_checkpoints_superseded", "id", where="superseded IS NOT NULL AND deleted_at IS NULL"),
)

checkpoint_files = Table(
    "checkpoint_files",
    metadata,
    Column("checkpoint_id", ForeignKey("checkpoints.id"), primary_key=True),
    Column("name", String, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False, index=True),
)

events = Table(
    "events",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("trial_id", String),
    Column("at", Double, nullable=False),
    Column("actor", String, nullable=False),
    Column("code", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("before", String),
    Column("after", String),
    Column("level", String, nullable=False, server_default="info"),
    # The rank of the member of a gang that it is about.
    Column("replica", Integer),
    Index("ix_events_of_job", "job_id", "id"),
)
