"""Secrets that people keep for their Jobs: sealed values by name (contract G, h)."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, select

from trainshed.store.replacing import replace_row
from trainshed.store.script_records import UserSecret
from trainshed.store.script_tables import user_secrets


def put(connection: Connection, secret: UserSecret) -> None:
    """Keep a sealed value; one of that name is replaced."""
    values = {column.name: getattr(secret, column.name) for column in user_secrets.c}
    replace_row(connection, user_secrets, values, ("project_id", "owner", "name"))


def names(connection: Connection, project_id: str, owner: str) -> list[UserSecret]:
    """Somebody's secrets in a project, by name."""
    query = select(user_secrets).where(user_secrets.c.project_id == project_id, user_secrets.c.owner == owner)
    return [UserSecret(*row) for row in connection.execute(query.order_by(user_secrets.c.name))]


def sealed(connection: Connection, project_id: str, owner: str, wanted: Collection[str]) -> dict[str, str]:
    """The sealed values of these names; what is not there is missing."""
    if not wanted:
        return {}
    rows = connection.execute(
        select(user_secrets.c.name, user_secrets.c.sealed).where(
            user_secrets.c.project_id == project_id,
            user_secrets.c.owner == owner,
            user_secrets.c.name.in_(sorted(wanted)),
        )
    )
    return {row.name: row.sealed for row in rows}


def remove(connection: Connection, project_id: str, owner: str, name: str) -> bool:
    """Forget a secret; ``False`` where there is none of that name."""
    gone = connection.execute(
        delete(user_secrets).where(
            user_secrets.c.project_id == project_id,
            user_secrets.c.owner == owner,
            user_secrets.c.name == name,
        )
    )
    return bool(gone.rowcount)
