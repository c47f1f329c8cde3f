"""The tables of script Jobs (contract G), of approvals, providers, secrets and policies."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    text,
)

from trainshed.store.columns import BigKey, metadata, partial_index

# Trials of kind `script`; everything up to `host` is frozen.
scripts = Table(
    "scripts",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False, unique=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("owner", String, nullable=False),
    # `agent` or `user`: who asked for it, and by whose rules it is judged (c.6).
    Column("source", String, nullable=False),
    # The spec (`model.scripts.spec.ScriptSpec`) as canonical JSON, and its hash.
    Column("spec", Text, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("outputs_dir", Text, nullable=False),
    Column("host", String, nullable=False),
    # How it goes.
    Column("phase", String, nullable=False),
    # The word that was last recorded (section b).
    Column("word", String, nullable=False),
    Column("provider", String),
    # The accelerator that was chosen or that is really there.
    Column("gpu", String),
    Column("route", Text),
    Column("route_reason", Text),
    # Until when no other choice is made, and since when it waits for one.
    Column("not_before", Double),
    Column("waiting_since", Double),
    Column("excluded", Text, nullable=False, server_default="{}"),
    Column("placements", Integer, nullable=False, server_default="0"),
    Column("accepted_attempts", Integer, nullable=False, server_default="0"),
    Column("free_attempts", Integer, nullable=False, server_default="0"),
    # Seconds of running time of ended Attempts, and whether a person let it go on past its hours.
    Column("ran_seconds", Double, nullable=False, server_default="0"),
    Column("overrun_approved", Boolean, nullable=False, server_default="0"),
    Column("progress", Text),
    Column("metrics", Text),
    Column("failure_kind", String),
    Column("message", Text),
    Column("outputs_fetched", Boolean, nullable=False, server_default="0"),
    Column("outputs_count", Integer),
    Column("cancel_requested_at", Double),
    # Somebody asked for its outputs to be brought (again); the controller clears it.
    Column("fetch_requested_at", Double),
    Column("version", Integer, nullable=False, server_default="1"),
    Index("ix_scripts_newest", "project_id", "job_id"),
    Index("ix_scripts_same_spec", "project_id", "spec_hash"),
    # What the controller looks after, of all projects.
    Index("ix_scripts_words", "word"),
    partial_index("ix_scripts_fetch", "trial_id", where="fetch_requested_at IS NOT NULL"),
    Index("ix_scripts_by_word", "project_id", "word", "job_id"),
)

script_events = Table(
    "script_events",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("trial_id", ForeignKey("scripts.trial_id"), nullable=False),
    Column("at", Double, nullable=False),
    # `transition` or `note`; a transition has both words, the first of them empty at the submission.
    Column("kind", String, nullable=False),
    Column("before", String),
    Column("after", String),
    Column("reason", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("actor", String, nullable=False),
    Column("attempt", Integer),
    Index("ix_script_events_of_trial", "trial_id", "id"),
)

script_attempts = Table(
    "script_attempts",
    metadata,
    Column("attempt_id", ForeignKey("attempts.id"), primary_key=True),
    Column("trial_id", ForeignKey("scripts.trial_id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("key", String, nullable=False, unique=True),
    Column("provider", String, nullable=False),
    Column("state", String, nullable=False),
    Column("remote_ref", Text),
    Column("url", Text),
    Column("gpu_promised", String),
    Column("gpu_real", String),
    # Which checkpoint it began from, and the newest it saved.
    Column("resumed_from", Integer),
    Column("submitted_at", Double),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("exit_code", Integer),
    # Up to where its log was read and understood, together with what was found there (k.5).
    Column("cursor", Text),
    Column("lines", BigInteger, nullable=False, server_default="0"),
    Column("seen_at", Double),
    # Seconds that it could not be reached while the controller ran (k.5).
    Column("unreachable_seconds", Double, nullable=False, server_default="0"),
    Column("message", Text),
    # At most one that may still run (section b).
    Index(
        "uq_script_attempts_live",
        "trial_id",
        unique=True,
        sqlite_where=text("state IN ('submitting', 'submitted', 'running')"),
        postgresql_where=text("state IN ('submitting', 'submitted', 'running')"),
    ),
    Index("ix_script_attempts_of_trial", "trial_id", "number"),
)

script_checkpoints = Table(
    "script_checkpoints",
    metadata,
    Column("trial_id", ForeignKey("scripts.trial_id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("step", BigInteger),
    Column("manifest_sha256", ForeignKey("manifests.sha256"), nullable=False, index=True),
    Column("files", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("saved_at", Double, nullable=False),
    # Its bytes do not match any more, or were let go for newer ones.
    Column("gone_at", Double),
)

# Questions to a person, of Jobs of every kind: one mechanism (promise P13).
approvals = Table(
    "approvals",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    # What the answer binds to: the frozen spec, and the rules that asked.
    Column("spec_hash", String(64), nullable=False),
    Column("rules", Text, nullable=False),
    Column("provider", String),
    Column("reason", Text, nullable=False),
    Column("asked_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    # `approved`, `denied`, `expired`, or `withdrawn`: its Job ended otherwise.
    Column("answer", String),
    Column("answered_at", Double),
    Column("answered_by", String),
    Column("note", Text),
    partial_index("ix_approvals_open", "expires_at", where="answer IS NULL"),
    Index("ix_approvals_of_job", "job_id", "id"),
)

# One-time codes that an answer needs: shown on a person's own channel, kept as a digest (c.7).
confirmations = Table(
    "confirmations",
    metadata,
    Column("approval_id", ForeignKey("approvals.id"), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("used_at", Double),
)

provider_states = Table(
    "provider_states",
    metadata,
    Column("provider", String, primary_key=True),
    Column("enabled", Boolean, nullable=False, server_default="1"),
    Column("health", String, nullable=False, server_default="unknown"),
    Column("message", Text),
    Column("checked_at", Double),
    Column("cooldown_until", Double),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("exhausted_until", Double),
    # What it offers, as it said last (JSON).
    Column("offers", Text),
)

quota_readings = Table(
    "quota_readings",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("provider", String, nullable=False),
    Column("used", Double),
    Column("quota_limit", Double),
    Column("unit", String, nullable=False),
    Column("resets_at", Double),
    Column("live", Boolean, nullable=False),
    Column("detail", Text, nullable=False),
    Column("observed_at", Double, nullable=False),
    Index("ix_quota_readings_newest", "provider", "observed_at"),
)

staged_data = Table(
    "staged_data",
    metadata,
    Column("provider", String, primary_key=True),
    Column("manifest_sha256", String(64), primary_key=True),
    Column("ref", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("staged_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
)

# Values that Jobs list by name; sealed with a key that is not in the database (h.1).
user_secrets = Table(
    "user_secrets",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("owner", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("sealed", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
)

# Approval rules of a project where they differ from the defaults (c.1).
approval_policies = Table(
    "approval_policies",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("document", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("updated_by", String, nullable=False),
)
