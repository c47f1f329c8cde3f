"""Which blobs nobody needs, derived from what names them; and the marks under which their bytes are removed.

There are no counters. A blob is needed while a manifest that was not let go holds it, an uploaded Artifact or
a Checkpoint that is not deleted is made of it. A manifest is named by a version that is not withdrawn, by a
Trial that consumed it, by a Runner Revision, by a checkpoint of a script Job. What was withdrawn or deleted
still counts for the time of grace: so long it can be taken back, and a backup of the database finds all that
it names.

Whoever begins to name something touches or locks its rows in the same transaction (`store.queue.touch_blobs`,
`store.manifests.hold`). A collector takes rows that nobody has locked, and asks again, in a later statement,
whether they are needed: of two that race one sees what the other did.

Every function but the looking ones belongs into a transaction of its own. The work is cut into windows of
digests, so that no statement runs for long, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)

from trainshed.store import possession
from trainshed.store.script_tables import script_checkpoints
from trainshed.store.tables import (
    artifacts,
    blobs,
    checkpoint_files,
    checkpoints,
    content_versions,
    manifest_blobs,
    manifests,
    runner_revisions,
    trial_contents,
)

_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)


def _named(cutoff: BindParameter[Any]) -> ColumnElement[bool]:
    """Manifests that something names, or named until after ``cutoff``."""
    return or_(
        exists().where(
            content_versions.c.manifest_sha256 == manifests.c.sha256,
            or_(content_versions.c.withdrawn_at.is_(None), content_versions.c.withdrawn_at >= cutoff),
        ),
        exists().where(trial_contents.c.manifest_sha256 == manifests.c.sha256),
        exists().where(
            script_checkpoints.c.manifest_sha256 == manifests.c.sha256,
            or_(script_checkpoints.c.gone_at.is_(None), script_checkpoints.c.gone_at >= cutoff),
        ),
        exists().where(runner_revisions.c.snapshot_sha256 == manifests.c.sha256),
    )


def _made_of(cutoff: BindParameter[Any]) -> ColumnElement[bool]:
    """Blobs that an Artifact or a Checkpoint is made of that was not deleted before ``cutoff``."""
    return or_(
        exists().where(
            artifacts.c.sha256 == blobs.c.sha256,
            or_(artifacts.c.upload_state == "uploaded", artifacts.c.deleted_at >= cutoff),
        ),
        exists().where(
            checkpoint_files.c.sha256 == blobs.c.sha256,
            checkpoints.c.id == checkpoint_files.c.checkpoint_id,
            or_(checkpoints.c.deleted_at.is_(None), checkpoints.c.deleted_at >= cutoff),
        ),
    )


_CUTOFF: BindParameter[Any] = bindparam("cutoff")
_LAST_USE = func.coalesce(blobs.c.touched_at, blobs.c.created_at)
_IDLE = and_(blobs.c.deleting_at.is_(None), _LAST_USE < _CUTOFF)
_NEEDED = or_(exists().where(manifest_blobs.c.sha256 == blobs.c.sha256), _made_of(_CUTOFF))
_DEAD = and_(manifests.c.created_at < _CUTOFF, manifests.c.let_go_at.is_(None), not_(_named(_CUTOFF)))

# Statements are built once. The end of a window is the digest of its last row.
_BLOB_WINDOW = (
    select(blobs.c.sha256)
    .where(blobs.c.sha256 > bindparam("after"))
    .order_by(blobs.c.sha256)
    .offset(bindparam("skip"))
    .limit(1)
)
_MANIFEST_WINDOW = (
    select(manifests.c.sha256)
    .where(manifests.c.sha256 > bindparam("after"))
    .order_by(manifests.c.sha256)
    .offset(bindparam("skip"))
    .limit(1)
)
_IN_BLOB_WINDOW = and_(blobs.c.sha256 > bindparam("after"), blobs.c.sha256 <= bindparam("last"))
_UNNEEDED = select(blobs.c.sha256).where(_IN_BLOB_WINDOW, _IDLE, not_(_NEEDED)).order_by(blobs.c.sha256)
_DEAD_MANIFESTS = (
    select(manifests.c.sha256)
    .where(manifests.c.sha256 > bindparam("after"), manifests.c.sha256 <= bindparam("last"), _DEAD)
    .order_by(manifests.c.sha256)
)
_KEPT = exists().where(
    manifest_blobs.c.sha256 == blobs.c.sha256,
    manifests.c.sha256 == manifest_blobs.c.manifest_sha256,
    manifests.c.let_go_at.is_(None),
    or_(manifests.c.created_at >= _CUTOFF, _named(_CUTOFF)),
)
_FREEABLE = select(func.count(), func.coalesce(func.sum(blobs.c.size), 0)).where(
    _IN_BLOB_WINDOW, blobs.c.deleting_at.is_(None), _LAST_USE < _CUTOFF, not_(_KEPT), not_(_made_of(_CUTOFF))
)
_FREE_BLOBS = select(blobs.c.sha256).where(blobs.c.sha256.in_(_WANTED), _IDLE)
_MARK = (
    update(blobs).where(blobs.c.sha256.in_(_WANTED), _IDLE, not_(_NEEDED)).values(deleting_at=bindparam("at"))
)
_MARKED = select(blobs.c.sha256, blobs.c.size).where(
    blobs.c.sha256.in_(_WANTED), blobs.c.deleting_at == bindparam("mark")
)
_FREE_MANIFESTS = select(manifests.c.sha256).where(manifests.c.sha256.in_(_WANTED))
_LET_GO = update(manifests).where(manifests.c.sha256.in_(_WANTED), _DEAD).values(let_go_at=bindparam("at"))
_EMPTYING = (
    select(manifests.c.sha256)
    .where(
        manifests.c.let_go_at.is_not(None),
        exists().where(manifest_blobs.c.manifest_sha256 == manifests.c.sha256),
    )
    .limit(1)
)
_ROWS_OF = (
    select(manifest_blobs.c.sha256)
    .where(manifest_blobs.c.manifest_sha256 == bindparam("manifest"))
    .limit(bindparam("count"))
)
_DROP_ROWS = delete(manifest_blobs).where(
    manifest_blobs.c.manifest_sha256 == bindparam("manifest"), manifest_blobs.c.sha256.in_(_WANTED)
)
_LEFT = (
    select(blobs.c.sha256)
    .where(blobs.c.deleting_at.is_not(None), blobs.c.deleting_at < bindparam("before"))
    .order_by(blobs.c.deleting_at)
    .limit(bindparam("count"))
)
_UNMARK = (
    update(blobs)
    .where(blobs.c.sha256.in_(_WANTED), blobs.c.deleting_at < bindparam("before"), _NEEDED)
    .values(deleting_at=None)
)
_TAKE_OVER = (
    update(blobs)
    .where(blobs.c.sha256.in_(_WANTED), blobs.c.deleting_at < bindparam("before"))
    .values(deleting_at=bindparam("at"))
)
_FORGET = delete(blobs).where(blobs.c.sha256.in_(_WANTED), blobs.c.deleting_at == bindparam("mark"))
_KNOWN = select(blobs.c.sha256).where(blobs.c.sha256.in_(_WANTED))


@dataclass(frozen=True, slots=True)
class Marked:
    """Blobs whose bytes may be removed by whoever made the mark, and by nobody else for a while."""

    mark: float
    """Unix seconds; with the digest it names the mark."""
    sizes: Mapping[str, int]


def blob_window(connection: Connection, after: str, rows: int) -> str | None:
    """The last digest of at most ``rows`` recorded blobs past ``after``; ``None`` where there is none."""
    return _window(connection, _BLOB_WINDOW, func.max(blobs.c.sha256), after, rows)


def manifest_window(connection: Connection, after: str, rows: int) -> str | None:
    """As `blob_window`, of manifests."""
    return _window(connection, _MANIFEST_WINDOW, func.max(manifests.c.sha256), after, rows)


def _window(
    connection: Connection, query: Select[Any], newest: ColumnElement[str], after: str, rows: int
) -> str | None:
    found: str | None = connection.execute(query, {"after": after, "skip": rows - 1}).scalar_one_or_none()
    if found is None:
        # Fewer rows than that are left.
        found = connection.execute(select(newest)).scalar_one()
        found = found if found is not None and found > after else None
    return found


def unneeded_blobs(connection: Connection, after: str, last: str, *, cutoff: float) -> list[str]:
    """Blobs of the window that nothing needs and nobody touched since ``cutoff`` (Unix seconds)."""
    asked = {"after": after, "last": last, "cutoff": cutoff}
    return list(connection.execute(_UNNEEDED, asked).scalars())


def dead_manifests(connection: Connection, after: str, last: str, *, cutoff: float) -> list[str]:
    """Manifests of the window that nothing has named since ``cutoff`` (Unix seconds)."""
    asked = {"after": after, "last": last, "cutoff": cutoff}
    return list(connection.execute(_DEAD_MANIFESTS, asked).scalars())


def freeable(connection: Connection, after: str, last: str, *, cutoff: float) -> tuple[int, int]:
    """How many blobs of the window a pass would remove, and their bytes; ``cutoff`` is in Unix seconds."""
    asked = {"after": after, "last": last, "cutoff": cutoff}
    count, size = connection.execute(_FREEABLE, asked).one()
    return count, int(size)


def let_go(connection: Connection, names: Collection[str], *, cutoff: float, at: float) -> int:
    """Let those of the manifests go that are dead still; how many. Their rows are `drop_rows`' matter."""
    free = _free(connection, _FREE_MANIFESTS, {"wanted": sorted(names)})
    if not free:
        return 0
    return connection.execute(_LET_GO, {"wanted": free, "cutoff": cutoff, "at": at}).rowcount


def drop_rows(connection: Connection, count: int) -> int:
    """Let at most ``count`` blobs of one manifest go that was let go; 0 where none has any left."""
    digest = connection.execute(_EMPTYING).scalar_one_or_none()
    if digest is None:
        return 0
    if connection.dialect.name == "postgresql":
        # Somebody may take it back meanwhile; then its rows stay.
        query = select(manifests.c.sha256).where(
            manifests.c.sha256 == digest, manifests.c.let_go_at.is_not(None)
        )
        if connection.execute(query.with_for_update()).first() is None:
            return 1
    found = list(connection.execute(_ROWS_OF, {"manifest": digest, "count": count}).scalars())
    connection.execute(_DROP_ROWS, {"manifest": digest, "wanted": found})
    return len(found)


def mark(connection: Connection, names: Collection[str], *, cutoff: float, at: float) -> Marked:
    """Mark those of the blobs that are unneeded still: nobody may count on them any more."""
    free = _free(connection, _FREE_BLOBS, {"wanted": sorted(names), "cutoff": cutoff})
    if not free:
        return Marked(at, {})
    connection.execute(_MARK, {"wanted": free, "cutoff": cutoff, "at": at})
    return _marked(connection, free, at)


def any_left(connection: Connection, before: float) -> bool:
    """Whether blobs were marked before ``before`` and not removed. Needs no transaction."""
    return bool(connection.execute(_LEFT, {"before": before, "count": 1}).first())


def take_over(connection: Connection, *, before: float, cutoff: float, at: float, count: int) -> Marked:
    """Take over at most ``count`` blobs that were marked before ``before`` and not removed.

    One that is needed all the same loses its mark: its bytes are there, or whoever reads them is told.
    """
    left = list(connection.execute(_LEFT, {"before": before, "count": count}).scalars())
    if not left:
        return Marked(at, {})
    connection.execute(_UNMARK, {"wanted": left, "before": before, "cutoff": cutoff})
    connection.execute(_TAKE_OVER, {"wanted": left, "before": before, "at": at})
    return _marked(connection, left, at)


def forget(connection: Connection, marked: Marked, names: Collection[str]) -> int:
    """Delete the rows of blobs whose bytes were removed under this mark; how many. Who sent them goes too."""
    if not names:
        return 0
    wanted = sorted(names)
    count = connection.execute(_FORGET, {"wanted": wanted, "mark": marked.mark}).rowcount
    possession.forget(connection, wanted)
    return count


def unrecorded(connection: Connection, names: Collection[str]) -> set[str]:
    """Those of the blobs that have no row."""
    return set(names) - set(connection.execute(_KNOWN, {"wanted": sorted(names)}).scalars())


def adopt(connection: Connection, sizes: Mapping[str, int], *, at: float) -> int:
    """Record stored blobs, SHA-256 -> size, that have no row, as used now; how many.

    They were left by a crash between storing and recording, or put there by hand. Nobody has read them, so
    the sizes prove nothing: whoever sends the right bytes corrects them (`trainshed.store.queue.put_blobs`),
    and until somebody does, nobody may name them.
    """
    new = unrecorded(connection, sizes)
    rows = [{"sha256": name, "size": sizes[name], "created_at": at, "touched_at": at} for name in sorted(new)]
    if rows:
        connection.execute(insert(blobs), rows)
    return len(rows)


def _marked(connection: Connection, names: Collection[str], at: float) -> Marked:
    rows = connection.execute(_MARKED, {"wanted": list(names), "mark": at})
    return Marked(at, {row.sha256: row.size for row in rows})


def _free(connection: Connection, query: Select[Any], asked: Mapping[str, Any]) -> list[str]:
    """Those of the rows that nobody else works with, locked; SQLite has one writer and needs no lock."""
    if connection.dialect.name == "postgresql":
        query = query.with_for_update(skip_locked=True)
    return list(connection.execute(query, asked).scalars())
