"""The first schema: access, Runners, Jobs and Trials, what they hold, and the table of allowed moves.

The moves and words below are copies on purpose: a migration must not change when the program does.
"""

from alembic import op
import sqlalchemy as sa

revision = "0001"
down_revision = None


MOVES = {
    "queued": "awaiting_approval preparing failed stopping",
    "awaiting_approval": "queued denied failed stopping",
    "preparing": "running queued failed stopping",
    "running": "checkpointing collecting migrating stopping",
    "checkpointing": "running collecting migrating stopping",
    "migrating": "queued collecting failed stopping",
    "collecting": "succeeded failed cancelled migrating stopping",
    "stopping": "cancelled",
}

SQLITE_TRIGGER = """
CREATE TRIGGER trial_move_allowed BEFORE UPDATE OF state ON trials
WHEN OLD.state <> NEW.state
 AND NOT EXISTS (SELECT 1 FROM trial_moves WHERE before = OLD.state AND after = NEW.state)
BEGIN
  SELECT RAISE(ABORT, 'this move of a Trial is not in trial_moves');
END
"""

POSTGRESQL_TRIGGER = """
CREATE FUNCTION trial_move_allowed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state <> NEW.state
     AND NOT EXISTS (SELECT 1 FROM trial_moves WHERE before = OLD.state AND after = NEW.state) THEN
    RAISE EXCEPTION 'this move of a Trial is not in trial_moves: % -> %', OLD.state, NEW.state;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER trial_move_allowed BEFORE UPDATE OF state ON trials
FOR EACH ROW EXECUTE FUNCTION trial_move_allowed()
"""


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_blobs")),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_gpus", sa.Integer(), nullable=True),
        sa.Column("budget_gpu_seconds", sa.Double(), nullable=True),
        sa.Column("used_gpu_seconds", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
    )
    op.create_table(
        "trial_moves",
        sa.Column("before", sa.String(), nullable=False),
        sa.Column("after", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("before", "after", name=op.f("pk_trial_moves")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("canonical", sa.Text(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("submitted_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("stop_accepted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_jobs_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("project_id", "request_id", name=op.f("uq_jobs_project_id_request_id")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_by_status", ["project_id", "status", "id"], unique=False)
        batch_op.create_index("ix_jobs_newest", ["project_id", "id"], unique=False)

    op.create_table(
        "keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=True),
        sa.Column("permissions", sa.Text(), nullable=False),
        sa.Column("owner", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_keys_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_keys_hash")),
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_keys_project_id"), ["project_id"], unique=False)

    op.create_table(
        "members",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.Column("added_by", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_members_project_id")),
        sa.PrimaryKeyConstraint("project_id", "user", name=op.f("pk_members")),
    )
    op.create_table(
        "namespaces",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_namespaces_project_id")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_namespaces")),
    )
    op.create_table(
        "events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("trial_id", sa.String(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("before", sa.String(), nullable=True),
        sa.Column("after", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_of_job", ["job_id", "id"], unique=False)

    op.create_table(
        "runners",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("visibility", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["namespace"], ["namespaces.name"], name=op.f("fk_runners_namespace")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_runners_project_id")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_runners")),
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("runner", sa.String(), nullable=False),
        sa.Column("revision", sa.String(length=40), nullable=False),
        sa.Column("selector", sa.String(), nullable=False),
        sa.Column("source_ref", sa.String(), nullable=True),
        sa.Column("snapshot_sha256", sa.String(length=64), nullable=False),
        sa.Column("entrypoint", sa.String(), nullable=False),
        sa.Column("command", sa.Text(), nullable=True),
        sa.Column("gpu_type", sa.String(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("memory_mb", sa.Integer(), nullable=False),
        sa.Column("storage_mb", sa.Integer(), nullable=False),
        sa.Column("shm_mb", sa.Integer(), nullable=False),
        sa.Column("timeout_seconds", sa.Integer(), nullable=False),
        sa.Column("outputs", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queue_rank", sa.Double(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("launch_failures", sa.Integer(), nullable=False),
        sa.Column("stop_accepted_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("user_code_started", sa.Boolean(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("exit_signal", sa.Integer(), nullable=True),
        sa.Column("output_status", sa.String(), nullable=False),
        sa.Column("output_problems", sa.Text(), nullable=True),
        sa.Column("error_code", sa.String(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "output_status IN ('pending', 'collecting', 'complete', 'partial', 'failed', 'none')",
            name=op.f("ck_trials_output_status"),
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'awaiting_approval', 'denied', 'preparing', 'running', 'checkpointing', "
            "'migrating', 'collecting', 'stopping', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_trials_state"),
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_trials_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_trials_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("job_id", "name", name=op.f("uq_trials_job_id_name")),
        sa.UniqueConstraint("job_id", "position", name=op.f("uq_trials_job_id_position")),
    )
    with op.batch_alter_table("trials", schema=None) as batch_op:
        batch_op.create_index("ix_trials_newest", ["project_id", "id"], unique=False)
        batch_op.create_index("ix_trials_queue", ["state", "queue_rank", "id"], unique=False)
        batch_op.create_index("ix_trials_arrivals", ["state", "id"], unique=False)

    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("upload_state", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_artifacts_trial_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("trial_id", "name", name=op.f("uq_artifacts_trial_id_name")),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("ended_by", sa.String(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("enforcement", sa.Text(), nullable=True),
        sa.Column("log_deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_attempts_trial_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("trial_id", "number", name=op.f("uq_attempts_trial_id_number")),
    )
    op.create_table(
        "runner_grants",
        sa.Column("runner", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_runner_grants_project_id")),
        sa.ForeignKeyConstraint(["runner"], ["runners.name"], name=op.f("fk_runner_grants_runner")),
        sa.PrimaryKeyConstraint("runner", "project_id", name=op.f("pk_runner_grants")),
    )
    op.create_table(
        "runner_refs",
        sa.Column("runner", sa.String(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("revision", sa.String(length=40), nullable=False),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["runner"], ["runners.name"], name=op.f("fk_runner_refs_runner")),
        sa.PrimaryKeyConstraint("runner", "ref", name=op.f("pk_runner_refs")),
    )
    op.create_table(
        "runner_revisions",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("runner", sa.String(), nullable=False),
        sa.Column("revision", sa.String(length=40), nullable=False),
        sa.Column("snapshot_sha256", sa.String(length=64), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("source_ref", sa.String(), nullable=True),
        sa.Column("published_at", sa.Double(), nullable=False),
        sa.Column("published_by", sa.String(), nullable=False),
        sa.Column("withdrawn_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["runner"], ["runners.name"], name=op.f("fk_runner_revisions_runner")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runner_revisions")),
        sa.UniqueConstraint("runner", "revision", name=op.f("uq_runner_revisions_runner_revision")),
    )
    op.create_table(
        "allocations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("gpu_model", sa.String(), nullable=False),
        sa.Column("gpu_indices", sa.Text(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("memory_mb", sa.Integer(), nullable=False),
        sa.Column("storage_mb", sa.Integer(), nullable=False),
        sa.Column("shm_mb", sa.Integer(), nullable=False),
        sa.Column("timeout_seconds", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("held_at", sa.Double(), nullable=False),
        sa.Column("released_at", sa.Double(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('held', 'releasing', 'released', 'leaked')", name=op.f("ck_allocations_state")
        ),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_allocations_attempt_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_allocations_project_id")),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_allocations_trial_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocations")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_allocations_attempt_id")),
    )
    with op.batch_alter_table("allocations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_allocations_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_allocations_trial_id"), ["trial_id"], unique=False)

    op.create_table(
        "replicas",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_replicas_attempt_id")),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name=op.f("pk_replicas")),
    )

    moves = sa.table("trial_moves", sa.column("before", sa.String), sa.column("after", sa.String))
    op.bulk_insert(
        moves,
        [{"before": before, "after": after} for before, words in MOVES.items() for after in words.split()],
    )
    op.execute(SQLITE_TRIGGER if op.get_bind().dialect.name == "sqlite" else POSTGRESQL_TRIGGER)
