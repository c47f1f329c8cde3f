"""Writing a row whether or not there is one with its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, delete, insert


def replace_row(connection: Connection, table: Table, values: Mapping[str, Any], key: Sequence[str]) -> None:
    """Put a row in the place of the one with the same ``key``, or beside the others.

    Nothing may refer to the row. Of two that race on PostgreSQL one breaks the key and is repeated by
    `Database.write`.
    """
    connection.execute(delete(table).where(*(table.c[name] == values[name] for name in key)))
    connection.execute(insert(table).values(**values))
