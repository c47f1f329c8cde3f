"""Small facts about this deployment that all its processes share (table ``meta``)."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, insert, select

from trainshed.store.tables import meta

INSTANCE_ID = "instance_id"
PLACEMENT = "placement"
"""What the newest placement pass found: reasons by class, as JSON (written by the controller)."""
NODES = "nodes"
"""The engine's nodes as the controller sees them, as JSON."""

MACHINE = "machine"
"""How the controller's machine enforces limits and isolates Trials, as JSON."""

_GET = select(meta.c.value).where(meta.c.key == bindparam("wanted"))


def get(connection: Connection, key: str) -> str | None:
    found = connection.execute(_GET, {"wanted": key}).scalar_one_or_none()
    return None if found is None else str(found)


def put(connection: Connection, key: str, value: str) -> None:
    connection.execute(delete(meta).where(meta.c.key == key))
    connection.execute(insert(meta).values(key=key, value=value))
