"""Training tasks, gangs, the catalogue, alarms (contract C)."""

from alembic import op
import sqlalchemy as sa

revision = "0003"
down_revision = "0002"

REOPENINGS = ("succeeded", "failed", "cancelled")

SQLITE_TRIGGER = """
CREATE TRIGGER trial_move_allowed BEFORE UPDATE OF state ON trials
WHEN OLD.state <> NEW.state
 AND NOT EXISTS (
  SELECT 1 FROM trial_moves
  WHERE before = OLD.state AND after = NEW.state AND (tasks_only = 0 OR NEW.kind <> 'runner')
 )
BEGIN
  SELECT RAISE(ABORT, 'this move of a Trial is not in trial_moves');
END
"""

POSTGRESQL_FUNCTION = """
CREATE OR REPLACE FUNCTION trial_move_allowed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state <> NEW.state
     AND NOT EXISTS (
       SELECT 1 FROM trial_moves
       WHERE before = OLD.state AND after = NEW.state AND (NOT tasks_only OR NEW.kind <> 'runner')
     ) THEN
    RAISE EXCEPTION 'this move of a Trial is not in trial_moves: % -> %', OLD.state, NEW.state;
  END IF;
  RETURN NEW;
END $$
"""


def upgrade() -> None:
    op.create_table(
        "catalogs",
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("secrets", sa.Text(), nullable=True),
        sa.Column("applied_at", sa.Double(), nullable=False),
        sa.Column("applied_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_catalogs")),
    )
    op.create_table(
        "cordons",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("gpu", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("trial_id", sa.String(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("cleared_at", sa.Double(), nullable=True),
        sa.Column("cleared_by", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cordons")),
    )
    op.create_index(
        "ix_cordons_standing",
        "cordons",
        ["cluster"],
        unique=False,
        sqlite_where=sa.text("cleared_at IS NULL"),
        postgresql_where=sa.text("cleared_at IS NULL"),
    )
    op.create_table(
        "idle_samples",
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("spec", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "spec", "at", name=op.f("pk_idle_samples")),
    )
    op.create_table(
        "tasks",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("task_uuid", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("secrets", sa.Text(), nullable=True),
        sa.Column("spec_sha256", sa.String(length=64), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("cluster", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("resource_type", sa.String(), nullable=False),
        sa.Column("guarantee", sa.Boolean(), nullable=False),
        sa.Column("catalog_revision", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("totals", sa.Text(), nullable=False),
        sa.Column("public", sa.Boolean(), nullable=False),
        sa.Column("priority_class", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("next_cause", sa.String(), server_default="initial", nullable=False),
        sa.Column("resubmissions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("excluded_nodes", sa.Text(), server_default="[]", nullable=False),
        sa.Column("chosen_spec", sa.String(), nullable=True),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("stage", sa.String(), nullable=True),
        sa.Column("retained_until", sa.Double(), nullable=True),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column("deleted_by", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_tasks_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_tasks_project_id")),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_tasks_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("job_id", name=op.f("uq_tasks_job_id")),
        sa.UniqueConstraint("name", name=op.f("uq_tasks_name")),
        sa.UniqueConstraint("task_uuid", name=op.f("uq_tasks_task_uuid")),
    )
    op.create_index("ix_tasks_newest", "tasks", ["project_id", "job_id"], unique=False)
    op.create_index("ix_tasks_same_spec", "tasks", ["owner", "spec_sha256", "submitted_at"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["tasks.trial_id"], name=op.f("fk_deliveries_trial_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint(
            "trial_id", "subject", "channel", name=op.f("uq_deliveries_trial_id_subject_channel")
        ),
    )
    op.create_index(
        "ix_deliveries_due",
        "deliveries",
        ["next_at"],
        unique=False,
        sqlite_where=sa.text("delivered_at IS NULL"),
        postgresql_where=sa.text("delivered_at IS NULL"),
    )
    op.create_table(
        "task_labels",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["tasks.trial_id"], name=op.f("fk_task_labels_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", "key", name=op.f("pk_task_labels")),
    )
    op.create_index("ix_task_labels_value", "task_labels", ["key", "value"], unique=False)
    op.create_table(
        "task_shares",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["tasks.trial_id"], name=op.f("fk_task_shares_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", "user", name=op.f("pk_task_shares")),
    )
    op.add_column("allocations", sa.Column("parts", sa.Text(), nullable=True))
    op.add_column("allocations", sa.Column("meeting", sa.Text(), nullable=True))
    op.add_column("allocations", sa.Column("evicted_for", sa.String(), nullable=True))
    op.add_column("allocations", sa.Column("evict_reason", sa.Text(), nullable=True))
    op.add_column("allocations", sa.Column("evicted_at", sa.Double(), nullable=True))
    op.add_column("allocations", sa.Column("notice_until", sa.Double(), nullable=True))
    op.add_column("allocations", sa.Column("sources", sa.Text(), nullable=True))
    op.add_column("attempts", sa.Column("cause", sa.String(), server_default="initial", nullable=False))
    op.add_column("attempts", sa.Column("exit_class", sa.String(), nullable=True))
    op.add_column("attempts", sa.Column("failed_rank", sa.Integer(), nullable=True))
    op.add_column("attempts", sa.Column("log_tail", sa.Text(), nullable=True))
    op.add_column("events", sa.Column("level", sa.String(), server_default="info", nullable=False))
    op.add_column("events", sa.Column("replica", sa.Integer(), nullable=True))
    op.add_column("replicas", sa.Column("unit_id", sa.String(), nullable=True))
    op.add_column("replicas", sa.Column("state", sa.String(), nullable=True))
    op.add_column("replicas", sa.Column("address", sa.String(), nullable=True))
    op.add_column("replicas", sa.Column("gpu_indices", sa.Text(), nullable=True))
    op.add_column("replicas", sa.Column("detail", sa.Text(), nullable=True))
    op.add_column("replicas", sa.Column("reports", sa.Integer(), server_default="0", nullable=False))
    op.add_column("trials", sa.Column("kind", sa.String(), server_default="runner", nullable=False))
    op.add_column("trial_moves", sa.Column("tasks_only", sa.Boolean(), server_default="0", nullable=False))
    moves = sa.table(
        "trial_moves",
        sa.column("before", sa.String),
        sa.column("after", sa.String),
        sa.column("tasks_only", sa.Boolean),
    )
    op.bulk_insert(
        moves, [{"before": before, "after": "queued", "tasks_only": True} for before in REOPENINGS]
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER trial_move_allowed")
        op.execute(SQLITE_TRIGGER)
    else:
        op.execute(POSTGRESQL_FUNCTION)
