"""Which projects have sent the bytes of which blobs: they alone may name them in what they publish (P7).

A digest is no secret and no proof. Whoever could publish a manifest that names blobs by digests alone could
read what others keep private, and whoever is told that a digest is stored learns what others have. So a blob
that a project has not sent is to that project as one that is not stored. A row goes with the blob's own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, exists, insert, not_, select

from trainshed.store.tables import blobs, manifest_blobs, project_blobs

_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_PROVED = select(project_blobs.c.sha256).where(
    project_blobs.c.project_id == bindparam("project"), project_blobs.c.sha256.in_(_WANTED)
)
_PROVE = insert(project_blobs)
_OF_PROJECT = and_(
    project_blobs.c.project_id == bindparam("project"), project_blobs.c.sha256 == blobs.c.sha256
)
_SIZES = (
    select(blobs.c.sha256, blobs.c.size)
    .join(project_blobs, _OF_PROJECT)
    .where(blobs.c.sha256.in_(_WANTED), blobs.c.deleting_at.is_(None))
)
_ABSENT = (
    select(manifest_blobs.c.sha256)
    .outerjoin(blobs, and_(blobs.c.sha256 == manifest_blobs.c.sha256, blobs.c.deleting_at.is_(None)))
    .outerjoin(project_blobs, _OF_PROJECT)
    .where(manifest_blobs.c.manifest_sha256 == bindparam("manifest"), project_blobs.c.sha256.is_(None))
    .limit(1)
)
# After the blobs' rows are gone; where one was kept, its senders are too.
_FORGET = delete(project_blobs).where(
    project_blobs.c.sha256.in_(_WANTED), not_(exists().where(blobs.c.sha256 == project_blobs.c.sha256))
)


def prove(connection: Connection, project_id: str, names: Collection[str]) -> None:
    """Note that the project has sent every byte of these blobs, recorded in the same transaction."""
    new = sorted(set(names) - proved(connection, project_id, names))
    if new:
        connection.execute(_PROVE, [{"project_id": project_id, "sha256": sha256} for sha256 in new])


def proved(connection: Connection, project_id: str, names: Collection[str]) -> set[str]:
    """Those of these blobs that the project has sent; whether they may be counted on is another question."""
    asked = {"project": project_id, "wanted": list(names)}
    return set(connection.execute(_PROVED, asked).scalars())


def sizes(connection: Connection, project_id: str, names: Collection[str]) -> dict[str, int]:
    """The size of each of these blobs that the project has sent and that stays; a few hundred at once."""
    asked = {"project": project_id, "wanted": list(names)}
    return {row.sha256: row.size for row in connection.execute(_SIZES, asked)}


def may_name(connection: Connection, project_id: str, manifest_sha256: str) -> bool:
    """Whether the project has sent a recorded manifest and all that it holds, and all of it stays."""
    asked = {"project": project_id, "manifest": manifest_sha256}
    return connection.execute(_ABSENT, asked).first() is None


def forget(connection: Connection, names: Collection[str]) -> None:
    """Forget who sent those of these blobs that have no row any more: the bytes have to be sent again."""
    connection.execute(_FORGET, {"wanted": sorted(names)})
