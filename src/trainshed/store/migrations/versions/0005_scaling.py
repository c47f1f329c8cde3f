"""How Ray clusters of tasks grow and shrink (contract C51)."""

from alembic import op
import sqlalchemy as sa

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("scaling", sa.Text(), nullable=True))
