"""Content: manifests and what they hold, named versions, what Trials consume, Checkpoints.

Runners that were published before get their manifests, so that nothing of theirs counts as unused.
"""

import json

from alembic import op
import sqlalchemy as sa

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "manifests",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("let_go_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_manifests")),
    )
    op.create_table(
        "project_blobs",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_project_blobs_project_id")),
        sa.PrimaryKeyConstraint("project_id", "sha256", name=op.f("pk_project_blobs")),
    )
    op.create_index("ix_project_blobs_sha256", "project_blobs", ["sha256"], unique=False)
    op.create_table(
        "plugin_approvals",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("approved_at", sa.Double(), nullable=False),
        sa.Column("approved_by", sa.String(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("revoked_by", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("name", "manifest_sha256", name=op.f("pk_plugin_approvals")),
    )
    op.create_table(
        "manifest_blobs",
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["manifest_sha256"], ["manifests.sha256"], name=op.f("fk_manifest_blobs_manifest_sha256")
        ),
        sa.PrimaryKeyConstraint("manifest_sha256", "sha256", name=op.f("pk_manifest_blobs")),
    )
    op.create_index("ix_manifest_blobs_sha256", "manifest_blobs", ["sha256"], unique=False)
    op.create_table(
        "operations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("resource_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("errors", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_operations_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index("ix_operations_resource", "operations", ["resource_id"], unique=False)
    op.create_table(
        "contents",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("visibility", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["namespace"], ["namespaces.name"], name=op.f("fk_contents_namespace")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_contents_project_id")),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_contents")),
    )
    op.create_table(
        "content_grants",
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["kind", "name"], ["contents.kind", "contents.name"], name="fk_content_grants_content"
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_content_grants_project_id")),
        sa.PrimaryKeyConstraint("kind", "name", "project_id", name=op.f("pk_content_grants")),
    )
    op.create_table(
        "content_versions",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("about", sa.Text(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("published_at", sa.Double(), nullable=False),
        sa.Column("published_by", sa.String(), nullable=False),
        sa.Column("withdrawn_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["kind", "name"], ["contents.kind", "contents.name"], name="fk_content_versions_content"
        ),
        sa.ForeignKeyConstraint(
            ["manifest_sha256"], ["manifests.sha256"], name=op.f("fk_content_versions_manifest_sha256")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_content_versions")),
        sa.UniqueConstraint("kind", "name", "version", name=op.f("uq_content_versions_kind_name_version")),
    )
    op.create_index(
        op.f("ix_content_versions_manifest_sha256"), "content_versions", ["manifest_sha256"], unique=False
    )
    op.create_table(
        "trial_contents",
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["manifest_sha256"], ["manifests.sha256"], name=op.f("fk_trial_contents_manifest_sha256")
        ),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_trial_contents_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", "role", name=op.f("pk_trial_contents")),
    )
    op.create_index(
        op.f("ix_trial_contents_manifest_sha256"), "trial_contents", ["manifest_sha256"], unique=False
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("trial_id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("checkpoint_type", sa.String(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("lora_rank", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("metric", sa.String(), nullable=True),
        sa.Column("metric_value", sa.Double(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("superseded", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column("deleted_by", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_checkpoints_attempt_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_checkpoints_project_id")),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_checkpoints_trial_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("trial_id", "folder", name=op.f("uq_checkpoints_trial_id_folder")),
    )
    op.create_index("ix_checkpoints_newest", "checkpoints", ["project_id", "id"], unique=False)
    op.create_index("ix_checkpoints_of_job", "checkpoints", ["job_id", "id"], unique=False)
    _create_partial_index(
        "ix_checkpoints_superseded", "checkpoints", "id", "superseded IS NOT NULL AND deleted_at IS NULL"
    )
    op.create_table(
        "checkpoint_files",
        sa.Column("checkpoint_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_checkpoint_files_checkpoint_id")
        ),
        sa.PrimaryKeyConstraint("checkpoint_id", "name", name=op.f("pk_checkpoint_files")),
    )
    op.create_index(op.f("ix_checkpoint_files_sha256"), "checkpoint_files", ["sha256"], unique=False)
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"], unique=False)
    op.add_column("blobs", sa.Column("touched_at", sa.Double(), nullable=True))
    op.add_column("blobs", sa.Column("deleting_at", sa.Double(), nullable=True))
    op.create_index(
        "ix_blobs_deleting",
        "blobs",
        ["deleting_at"],
        unique=False,
        sqlite_where=sa.text("deleting_at IS NOT NULL"),
        postgresql_where=sa.text("deleting_at IS NOT NULL"),
    )
    op.add_column("runner_revisions", sa.Column("tree_id", sa.String(length=40), nullable=True))
    op.create_index(
        "ix_runner_revisions_snapshot_sha256", "runner_revisions", ["snapshot_sha256"], unique=False
    )
    op.add_column("jobs", sa.Column("platform_version", sa.String(), nullable=True))
    op.add_column("projects", sa.Column("max_content_bytes", sa.BigInteger(), nullable=True))
    op.add_column("trials", sa.Column("image_requested", sa.String(), nullable=True))
    op.add_column("trials", sa.Column("image_resolved", sa.String(), nullable=True))
    op.add_column("trials", sa.Column("image_digest", sa.String(), nullable=True))
    op.add_column("trials", sa.Column("profile", sa.Text(), nullable=True))
    op.add_column("trials", sa.Column("profile_sha256", sa.String(length=64), nullable=True))
    op.add_column("trials", sa.Column("resume_from", sa.String(), nullable=True))
    _create_partial_index("ix_trials_resume_from", "trials", "resume_from", "resume_from IS NOT NULL")
    _backfill_manifests()
    _backfill_permissions()


def _create_partial_index(name: str, table: str, column: str, where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, [column], sqlite_where=condition, postgresql_where=condition)


def _backfill_manifests() -> None:
    connection = op.get_bind()
    revisions = connection.execute(
        sa.text(
            "SELECT snapshot_sha256, MIN(manifest), MIN(published_at) "
            "FROM runner_revisions GROUP BY snapshot_sha256"
        )
    ).all()
    manifests = sa.table(
        "manifests",
        sa.column("sha256", sa.String),
        sa.column("kind", sa.String),
        sa.column("size", sa.BigInteger),
        sa.column("created_at", sa.Double),
    )
    held = sa.table("manifest_blobs", sa.column("manifest_sha256", sa.String), sa.column("sha256", sa.String))
    for sha256, manifest, at in revisions:
        size = len(manifest.encode())
        op.bulk_insert(manifests, [{"sha256": sha256, "kind": "runners", "size": size, "created_at": at}])
        blobs = sorted({file["sha256"] for file in json.loads(manifest)["files"]})
        op.bulk_insert(held, [{"manifest_sha256": sha256, "sha256": blob} for blob in blobs])
    connection.execute(sa.text("UPDATE blobs SET touched_at = created_at"))


def _backfill_permissions() -> None:
    """Who could read or publish Runners could read or publish all there was; that stays so."""
    connection = op.get_bind()
    twins = {"runner.read": "content.read", "runner.publish": "content.publish"}
    for key_id, text in connection.execute(sa.text("SELECT id, permissions FROM keys")).all():
        words = set(json.loads(text))
        more = sorted(words | {twin for word, twin in twins.items() if word in words})
        connection.execute(
            sa.text("UPDATE keys SET permissions = :words WHERE id = :id"),
            {"words": json.dumps(more), "id": key_id},
        )
