"""Small facts about this deployment that all its processes share (table ``meta``)."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, insert, select

from trainshed.store.tables import meta

INSTANCE_ID = "instance_id"
PLACEMENT = "placement"
"""What the newest placement pass found: reasons by class, as JSON (written by the controller)."""
NODES = "nodes"
"""The engine's nodes as the controller sees them, as JSON."""
FLEET = "fleet"
"""Nodes of the clusters that are not this machine, as JSON: cluster -> [{node, labels}]."""

GARBAGE_REQUEST = "garbage_request"
"""Who asked last for garbage to be collected, as JSON (written by doors, read by the controller)."""
GARBAGE_REPORT = "garbage_report"
"""What the newest pass of the garbage collector did, as JSON."""
GARBAGE_SWEPT = "garbage_swept"
"""When the store itself was last looked through for bytes that no row knows, in Unix seconds."""
URL_SECRET = "url_secret"  # noqa: S105 - the name of a setting, no secret
"""With what download URLs are signed, in hex; without the row all that were issued are worth nothing."""

MACHINE = "machine"
"""How the controller's machine enforces limits and isolates Trials, as JSON."""

_GET = select(meta.c.value).where(meta.c.key == bindparam("wanted"))


def get(connection: Connection, key: str) -> str | None:
    found = connection.execute(_GET, {"wanted": key}).scalar_one_or_none()
    return None if found is None else str(found)


def put(connection: Connection, key: str, value: str) -> None:
    connection.execute(delete(meta).where(meta.c.key == key))
    connection.execute(insert(meta).values(key=key, value=value))
