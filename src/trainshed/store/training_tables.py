"""The tables of training tasks (contract C), of the catalogue and of alarms."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from trainshed.store.columns import BigKey, metadata, partial_index

# Trials of the kinds `pytorch` and `ray` (contract C); everything up to `totals` is frozen.
tasks = Table(
    "tasks",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False, unique=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("task_uuid", String, nullable=False, unique=True),
    Column("name", String, nullable=False, unique=True),
    Column("kind", String, nullable=False),
    Column("owner", String, nullable=False),
    # The effective spec without hidden values, and those apart, encrypted.
    Column("spec", Text, nullable=False),
    Column("secrets", Text),
    # What an identical submission would have (C56).
    Column("spec_sha256", String(64), nullable=False),
    Column("region", String, nullable=False),
    Column("cluster", String, nullable=False),
    Column("pool", String, nullable=False),
    Column("resource_type", String, nullable=False),
    Column("guarantee", Boolean, nullable=False),
    Column("catalog_revision", Integer, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("totals", Text, nullable=False),
    # How it goes.
    Column("public", Boolean, nullable=False),
    Column("priority_class", String, nullable=False),
    Column("priority", Integer, nullable=False),
    # Kept over preemption and automatic resubmission (c5).
    Column("queued_at", Double, nullable=False),
    Column("next_cause", String, nullable=False, server_default="initial"),
    Column("resubmissions", Integer, nullable=False, server_default="0"),
    Column("excluded_nodes", Text, nullable=False, server_default="[]"),
    Column("chosen_spec", String),
    # Where it will start once its victims are gone.
    Column("plan", Text),
    Column("stage", String),
    Column("retained_until", Double),
    Column("deleted_at", Double),
    Column("deleted_by", String),
    # How many workers the load wants of it, and who joined (C51).
    Column("scaling", Text),
    Index("ix_tasks_newest", "project_id", "job_id"),
    Index("ix_tasks_same_spec", "owner", "spec_sha256", "submitted_at"),
)

task_labels = Table(
    "task_labels",
    metadata,
    Column("trial_id", ForeignKey("tasks.trial_id"), primary_key=True),
    Column("key", String, primary_key=True),
    Column("value", Text, nullable=False),
    Index("ix_task_labels_value", "key", "value"),
)

task_shares = Table(
    "task_shares",
    metadata,
    Column("trial_id", ForeignKey("tasks.trial_id"), primary_key=True),
    Column("user", String, primary_key=True),
)

catalogs = Table(
    "catalogs",
    metadata,
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
    # Values that reads never show, encrypted.
    Column("secrets", Text),
    Column("applied_at", Double, nullable=False),
    Column("applied_by", String, nullable=False),
)

cordons = Table(
    "cordons",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    Column("cluster", String, nullable=False),
    Column("node", String, nullable=False),
    # One GPU of it, or the whole node.
    Column("gpu", Integer),
    Column("reason", Text, nullable=False),
    Column("trial_id", String),
    Column("at", Double, nullable=False),
    Column("by", String, nullable=False),
    Column("cleared_at", Double),
    Column("cleared_by", String),
    partial_index("ix_cordons_standing", "cluster", where="cleared_at IS NULL"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", BigKey, primary_key=True, autoincrement=True),
    # An event, or what a rule saw without one (`queued_over:1`): told to a channel once.
    Column("trial_id", ForeignKey("tasks.trial_id"), nullable=False),
    Column("subject", String, nullable=False),
    Column("channel", String, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("delivered_at", Double),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("next_at", Double, nullable=False),
    Column("last_error", Text),
    UniqueConstraint("trial_id", "subject", "channel"),
    partial_index("ix_deliveries_due", "next_at", where="delivered_at IS NULL"),
)

idle_samples = Table(
    "idle_samples",
    metadata,
    Column("pool", String, primary_key=True),
    Column("spec", String, primary_key=True),
    Column("at", Double, primary_key=True),
    Column("units", Integer, nullable=False),
)
