"""The approval rules of projects where they differ from the defaults (contract G, c.1)."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, select

from trainshed.model.strict_json import canonical_json
from trainshed.store.replacing import replace_row
from trainshed.store.script_records import PolicyRow
from trainshed.store.script_tables import approval_policies


def find(connection: Connection, project_id: str) -> PolicyRow | None:
    row = connection.execute(
        select(approval_policies).where(approval_policies.c.project_id == project_id)
    ).first()
    return None if row is None else PolicyRow(*row)


def document(connection: Connection, project_id: str) -> dict[str, Any]:
    """What a project's rules say beyond the defaults; empty where they say nothing."""
    row = find(connection, project_id)
    return {} if row is None else dict(json.loads(row.document))


def put(connection: Connection, project_id: str, wanted: dict[str, Any], *, at: float, by: str) -> None:
    values = {
        "project_id": project_id,
        "document": canonical_json(wanted),
        "updated_at": at,
        "updated_by": by,
    }
    replace_row(connection, approval_policies, values, ("project_id",))


def remove(connection: Connection, project_id: str) -> bool:
    """Go back to the defaults; ``False`` where they counted already."""
    gone = connection.execute(delete(approval_policies).where(approval_policies.c.project_id == project_id))
    return bool(gone.rowcount)
