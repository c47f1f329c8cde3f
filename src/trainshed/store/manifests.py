"""Manifests and the blobs that they hold: what keeps a blob from being collected.

A manifest that nothing names any more is let go (`trainshed.store.garbage`): it keeps no blob then, until
somebody records it again. Whoever begins to name one holds it in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, insert, select, update

from trainshed.store.tables import manifest_blobs, manifests

_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_ROW = select(manifests.c.let_go_at).where(manifests.c.sha256 == bindparam("wanted"))
_HELD = select(manifests.c.sha256).where(manifests.c.sha256.in_(_WANTED), manifests.c.let_go_at.is_(None))
_BLOBS = select(manifest_blobs.c.sha256).where(manifest_blobs.c.manifest_sha256 == bindparam("wanted"))
_THERE = select(manifest_blobs.c.sha256).where(
    manifest_blobs.c.manifest_sha256 == bindparam("manifest"), manifest_blobs.c.sha256.in_(_WANTED)
)
_INSERT, _INSERT_BLOBS = insert(manifests), insert(manifest_blobs)
_TAKE_BACK = update(manifests).where(manifests.c.sha256 == bindparam("wanted")).values(let_go_at=None)


def put_manifest(
    connection: Connection, sha256: str, kind: str, size: int, blobs: Iterable[str], *, at: float
) -> bool:
    """Record a manifest with the SHA-256 of every blob it holds; whether it held none of them before.

    ``kind`` is ``runners`` or a `ContentKind`; ``size`` is that of the manifest's own bytes. A manifest's
    own bytes, where they are stored as a blob, belong into ``blobs`` too. The caller makes sure that the
    blobs are there and touches them, in the same transaction.
    """
    row = connection.execute(_locked(connection, _ROW), {"wanted": sha256}).first()
    if row is not None and row.let_go_at is None:
        return False
    left: set[str] = set()
    if row is None:
        connection.execute(insert(manifests).values(sha256=sha256, kind=kind, size=size, created_at=at))
    else:
        # Its rows go piece by piece; some may still be there.
        left = set(connection.execute(_BLOBS, {"wanted": sha256}).scalars())
        connection.execute(_TAKE_BACK, {"wanted": sha256})
    rows = [{"manifest_sha256": sha256, "sha256": blob} for blob in sorted(set(blobs) - left)]
    if rows:
        connection.execute(insert(manifest_blobs), rows)
    return True


def prepare_manifest(
    connection: Connection, sha256: str, kind: str, size: int, some: Collection[str], *, at: float
) -> None:
    """Record some blobs of a manifest that is let go, or new and begins so; a few hundred at once.

    It keeps none of them until `put_manifest` takes it back. One that is not let go has them all.
    """
    row = connection.execute(_locked(connection, _ROW), {"wanted": sha256}).first()
    if row is not None and row.let_go_at is None:
        return
    if row is None:
        values = {"sha256": sha256, "kind": kind, "size": size, "created_at": at, "let_go_at": at}
        connection.execute(_INSERT, values)
    asked = {"manifest": sha256, "wanted": list(some)}
    there = set(connection.execute(_THERE, asked).scalars())
    rows = [{"manifest_sha256": sha256, "sha256": blob} for blob in sorted(set(some) - there)]
    if rows:
        connection.execute(_INSERT_BLOBS, rows)


def hold(connection: Connection, wanted: Collection[str]) -> set[str]:
    """Keep these manifests from being let go until this transaction ends; answers those that were not.

    For a transaction that inserts rows which name them.
    """
    if not wanted:
        return set()
    return set(connection.execute(_locked(connection, _HELD), {"wanted": sorted(set(wanted))}).scalars())


def _locked(connection: Connection, query: Select[Any]) -> Select[Any]:
    """``query`` so that a collector leaves its rows alone; SQLite has one writer and needs no lock."""
    return query.with_for_update(read=True) if connection.dialect.name == "postgresql" else query
