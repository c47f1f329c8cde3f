"""The catalogue: one document, kept revision by revision."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from trainshed.store.training_tables import catalogs

_NEWEST = select(func.max(catalogs.c.revision))


@dataclass(frozen=True, slots=True)
class StoredCatalog:
    """One revision as it was applied."""

    revision: int
    """From 1; 0 stands for the one that a server makes from what its machine has."""
    document: str
    """Canonical JSON without secret values."""
    secrets: str | None
    """Those, encrypted."""
    applied_at: float
    """Unix seconds."""
    applied_by: str


def newest_revision(connection: Connection) -> int:
    """The number of the newest revision; 0 if none was applied."""
    return int(connection.execute(_NEWEST).scalar_one() or 0)


def newest(connection: Connection) -> StoredCatalog | None:
    """The revision that counts; ``None`` if none was applied."""
    row = connection.execute(select(catalogs).order_by(catalogs.c.revision.desc()).limit(1)).first()
    return StoredCatalog(*row) if row else None


def find(connection: Connection, revision: int) -> StoredCatalog | None:
    row = connection.execute(select(catalogs).where(catalogs.c.revision == revision)).first()
    return StoredCatalog(*row) if row else None


def history(connection: Connection, limit: int = 100) -> list[StoredCatalog]:
    """The newest revisions, newest first."""
    rows = connection.execute(select(catalogs).order_by(catalogs.c.revision.desc()).limit(limit))
    return [StoredCatalog(*row) for row in rows]


def add(
    connection: Connection, document: str, secrets: str | None, *, expected: int, at: float, by: str
) -> int | None:
    """Store a new revision after ``expected``; its number, or ``None`` if somebody applied one meanwhile."""
    if newest_revision(connection) != expected:
        return None
    connection.execute(
        insert(catalogs).values(
            revision=expected + 1, document=document, secrets=secrets, applied_at=at, applied_by=by
        )
    )
    return expected + 1
