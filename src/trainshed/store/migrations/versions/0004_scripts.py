"""Script Jobs, approvals, providers, secrets (contract G); every Job gets twelve random digits."""

import secrets

from alembic import op
import sqlalchemy as sa

from trainshed.model.scripts.refs import new_digits, shortest_unique

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "provider_states",
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default="1", nullable=False),
        sa.Column("health", sa.String(), server_default="unknown", nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("checked_at", sa.Double(), nullable=True),
        sa.Column("cooldown_until", sa.Double(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("exhausted_until", sa.Double(), nullable=True),
        sa.Column("offers", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("provider", name=op.f("pk_provider_states")),
    )
    op.create_table(
        "quota_readings",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("used", sa.Double(), nullable=True),
        sa.Column("quota_limit", sa.Double(), nullable=True),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("resets_at", sa.Double(), nullable=True),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("observed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quota_readings")),
    )
    op.create_index("ix_quota_readings_newest", "quota_readings", ["provider", "observed_at"], unique=False)
    op.create_table(
        "staged_data",
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("staged_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("provider", "manifest_sha256", name=op.f("pk_staged_data")),
    )
    op.create_table(
        "approval_policies",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_approval_policies_project_id")
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_approval_policies")),
    )
    op.create_table(
        "user_secrets",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_user_secrets_project_id")),
        sa.PrimaryKeyConstraint("project_id", "owner", "name", name=op.f("pk_user_secrets")),
    )
    op.create_table(
        "approvals",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("spec_hash", sa.String(length=64), nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("provider", sa.String(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("answer", sa.String(), nullable=True),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.Column("answered_by", sa.String(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_approvals_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_approvals_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index("ix_approvals_of_job", "approvals", ["job_id", "id"], unique=False)
    op.create_index(
        "ix_approvals_open",
        "approvals",
        ["expires_at"],
        unique=False,
        sqlite_where=sa.text("answer IS NULL"),
        postgresql_where=sa.text("answer IS NULL"),
    )
    op.create_table(
        "confirmations",
        sa.Column("approval_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["approval_id"], ["approvals.id"], name=op.f("fk_confirmations_approval_id")),
        sa.PrimaryKeyConstraint("approval_id", name=op.f("pk_confirmations")),
    )
    op.create_table(
        "scripts",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("spec_hash", sa.String(length=64), nullable=False),
        sa.Column("outputs_dir", sa.Text(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("word", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=True),
        sa.Column("gpu", sa.String(), nullable=True),
        sa.Column("route", sa.Text(), nullable=True),
        sa.Column("route_reason", sa.Text(), nullable=True),
        sa.Column("not_before", sa.Double(), nullable=True),
        sa.Column("waiting_since", sa.Double(), nullable=True),
        sa.Column("excluded", sa.Text(), server_default="{}", nullable=False),
        sa.Column("placements", sa.Integer(), server_default="0", nullable=False),
        sa.Column("accepted_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("free_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("ran_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("overrun_approved", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=True),
        sa.Column("failure_kind", sa.String(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("outputs_fetched", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("outputs_count", sa.Integer(), nullable=True),
        sa.Column("cancel_requested_at", sa.Double(), nullable=True),
        sa.Column("fetch_requested_at", sa.Double(), nullable=True),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_scripts_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_scripts_project_id")),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_scripts_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_scripts")),
        sa.UniqueConstraint("job_id", name=op.f("uq_scripts_job_id")),
    )
    op.create_index("ix_scripts_by_word", "scripts", ["project_id", "word", "job_id"], unique=False)
    op.create_index(
        "ix_scripts_fetch",
        "scripts",
        ["trial_id"],
        unique=False,
        sqlite_where=sa.text("fetch_requested_at IS NOT NULL"),
        postgresql_where=sa.text("fetch_requested_at IS NOT NULL"),
    )
    op.create_index("ix_scripts_words", "scripts", ["word"], unique=False)
    op.create_index("ix_scripts_newest", "scripts", ["project_id", "job_id"], unique=False)
    op.create_index("ix_scripts_same_spec", "scripts", ["project_id", "spec_hash"], unique=False)
    op.create_table(
        "script_attempts",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("remote_ref", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("gpu_promised", sa.String(), nullable=True),
        sa.Column("gpu_real", sa.String(), nullable=True),
        sa.Column("resumed_from", sa.Integer(), nullable=True),
        sa.Column("submitted_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("cursor", sa.Text(), nullable=True),
        sa.Column("lines", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=True),
        sa.Column("unreachable_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_script_attempts_attempt_id")),
        sa.ForeignKeyConstraint(["trial_id"], ["scripts.trial_id"], name=op.f("fk_script_attempts_trial_id")),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_script_attempts")),
        sa.UniqueConstraint("key", name=op.f("uq_script_attempts_key")),
    )
    op.create_index("ix_script_attempts_of_trial", "script_attempts", ["trial_id", "number"], unique=False)
    op.create_index(
        "uq_script_attempts_live",
        "script_attempts",
        ["trial_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('submitting', 'submitted', 'running')"),
        postgresql_where=sa.text("state IN ('submitting', 'submitted', 'running')"),
    )
    op.create_table(
        "script_checkpoints",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("saved_at", sa.Double(), nullable=False),
        sa.Column("gone_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["manifest_sha256"], ["manifests.sha256"], name=op.f("fk_script_checkpoints_manifest_sha256")
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["scripts.trial_id"], name=op.f("fk_script_checkpoints_trial_id")
        ),
        sa.PrimaryKeyConstraint("trial_id", "number", name=op.f("pk_script_checkpoints")),
    )
    op.create_index(
        op.f("ix_script_checkpoints_manifest_sha256"), "script_checkpoints", ["manifest_sha256"], unique=False
    )
    op.create_table(
        "script_events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("before", sa.String(), nullable=True),
        sa.Column("after", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["scripts.trial_id"], name=op.f("fk_script_events_trial_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_script_events")),
    )
    op.create_index("ix_script_events_of_trial", "script_events", ["trial_id", "id"], unique=False)
    op.add_column("jobs", sa.Column("digits", sa.String(length=12), nullable=True))
    op.add_column("jobs", sa.Column("short_id", sa.String(length=12), nullable=True))
    _name_old_jobs()
    op.create_index("uq_jobs_digits", "jobs", ["digits"], unique=True)
    op.create_index("uq_jobs_short_id", "jobs", ["short_id"], unique=True)


def _name_old_jobs() -> None:
    """Give digits to the Jobs that are older than them."""
    connection = op.get_bind()
    jobs = sa.table(
        "jobs", sa.column("id", sa.String), sa.column("digits", sa.String), sa.column("short_id", sa.String)
    )
    known: set[str] = set()
    rows = []
    for (job_id,) in connection.execute(sa.select(jobs.c.id)):
        digits = new_digits(secrets.randbits)
        while any(digits[:length] in known for length in range(6, 13)):
            digits = new_digits(secrets.randbits)
        short = shortest_unique(digits, known.__contains__)
        known.update(digits[:length] for length in range(6, 13))
        rows.append({"job": job_id, "new_digits": digits, "new_short": short})
    if rows:
        naming = jobs.update().where(jobs.c.id == sa.bindparam("job"))
        connection.execute(
            naming.values(digits=sa.bindparam("new_digits"), short_id=sa.bindparam("new_short")), rows
        )
