"""Manifests and the blobs that they hold: what keeps a blob from being collected."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, insert, select

from trainshed.store.tables import manifest_blobs, manifests

_KNOWN = select(manifests.c.sha256).where(manifests.c.sha256 == bindparam("wanted"))


def put_manifest(
    connection: Connection, sha256: str, kind: str, size: int, blobs: Iterable[str], *, at: float
) -> bool:
    """Record a manifest with the SHA-256 of every blob it holds; whether it is new.

    ``kind`` is ``runners`` or a `ContentKind`; ``size`` is that of the manifest's own bytes. A manifest's
    own bytes, where they are stored as a blob, belong into ``blobs`` too.
    """
    if connection.execute(_KNOWN, {"wanted": sha256}).first():
        return False
    connection.execute(insert(manifests).values(sha256=sha256, kind=kind, size=size, created_at=at))
    rows = [{"manifest_sha256": sha256, "sha256": blob} for blob in sorted(set(blobs))]
    if rows:
        connection.execute(insert(manifest_blobs), rows)
    return True
