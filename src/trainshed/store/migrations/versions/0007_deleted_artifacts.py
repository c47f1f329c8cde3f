"""Artifacts can be deleted; Checkpoints say what is wrong with the metric that rules name."""

from alembic import op
import sqlalchemy as sa

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("deleted_at", sa.Double(), nullable=True))
    op.add_column("artifacts", sa.Column("deletion", sa.Text(), nullable=True))
    op.add_column("checkpoints", sa.Column("metric_fault", sa.Text(), nullable=True))
    kept = sa.text("upload_state = 'uploaded'")
    op.create_index(
        "ix_artifacts_kept", "artifacts", ["created_at"], sqlite_where=kept, postgresql_where=kept
    )
