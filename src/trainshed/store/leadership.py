"""Which of several processes on one database controls it: a lock that ends with its holder's connection."""

from __future__ import annotations

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from trainshed.store.database import Database

_KEY = 0x7472_6169_6E6C_6472
"""Of PostgreSQL's advisory lock; the letters ``trainldr``."""


class Leadership:
    """Held by at most one process at a time. On SQLite the lock on the data folder decides: always ours."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None

    def acquire(self) -> bool:
        """Try to become the leader; does not wait."""
        if self._database.dialect == "sqlite":
            return True
        connection = None
        try:
            engine = self._database.engine.execution_options(isolation_level="AUTOCOMMIT")
            connection = engine.connect()
            taken = connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _KEY}).scalar_one()
        except DBAPIError:
            taken = False
        if taken:
            self._connection = connection
        elif connection is not None:
            connection.close()
        return bool(taken)

    def held(self) -> bool:
        """Whether the lock is certainly still ours."""
        if self._database.dialect == "sqlite":
            return True
        if self._connection is None:
            return False
        try:
            self._connection.execute(text("SELECT 1"))
        except DBAPIError:
            return False
        return True

    def release(self) -> None:
        """Let go, so that another process can take over at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # The lock belongs to the session, which the pool would keep alive.
            connection.invalidate()
            connection.close()
