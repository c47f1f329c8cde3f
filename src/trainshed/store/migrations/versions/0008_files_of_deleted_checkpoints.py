"""Artifacts that are files of Checkpoints deleted before schema 0007 are deleted like those of later ones.

Once, not in every sweep: of a Checkpoint that is deleted now they go in the same transaction. What was
collected or brought again after the Checkpoint was deleted stays: somebody wanted it.
"""

import time

from alembic import op
import sqlalchemy as sa

revision = "0008"
down_revision = "0007"

LEFT = """
SELECT a.id, c.id AS checkpoint, c.superseded, c.deleted_by
FROM checkpoints c
JOIN checkpoint_files f ON f.checkpoint_id = c.id
JOIN artifacts a ON a.trial_id = c.trial_id AND a.sha256 = f.sha256
    AND a.name = CASE WHEN c.folder = '' THEN f.name ELSE c.folder || '/' || f.name END
WHERE c.deleted_at IS NOT NULL AND a.upload_state = 'uploaded' AND a.created_at <= c.deleted_at
AND NOT EXISTS (
    SELECT 1 FROM checkpoints l JOIN checkpoint_files g ON g.checkpoint_id = l.id
    WHERE l.trial_id = a.trial_id AND l.deleted_at IS NULL AND g.sha256 = a.sha256
    AND a.name = CASE WHEN l.folder = '' THEN g.name ELSE l.folder || '/' || g.name END
)
"""
RULES = "controller"
"""Who deletes what rules do not keep."""


def upgrade() -> None:
    connection = op.get_bind()
    now = time.time()
    found = {}
    for row in connection.execute(sa.text(LEFT)):
        by_rule = row.deleted_by == RULES and row.superseded
        why = f"by rule: {row.superseded.removesuffix('.')}" if by_rule else f"by {row.deleted_by}"
        found[row.id] = f"deleted with Checkpoint {row.checkpoint} {why}"
    mark = sa.text(
        "UPDATE artifacts SET upload_state = 'deleted', deleted_at = :at, deletion = :why WHERE id = :id"
    )
    if found:
        # The time of grace begins now: a backup from before this needs the bytes.
        connection.execute(mark, [{"id": key, "why": why, "at": now} for key, why in found.items()])
