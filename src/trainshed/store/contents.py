"""Named contents: their versions, who may read them, and which plugins the deployment allows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from trainshed.model.access import Principal, Visibility
from trainshed.model.content import ContentKind, ContentUri
from trainshed.model.errors import Refusal
from trainshed.store.manifests import hold, prepare_manifest, put_manifest
from trainshed.store.namespaces import claim_namespace
from trainshed.store.queue import TOUCH_SECONDS
from trainshed.store.records import Content, ContentVersion, PluginApproval
from trainshed.store.tables import (
    blobs,
    content_grants,
    content_versions,
    contents,
    manifest_blobs,
    manifests,
    plugin_approvals,
)
from trainshed.store.usage import check_quota

SHOWN_MISSING = 50


@dataclass(frozen=True, slots=True)
class Release:
    """A verified manifest that is to become a version of a content."""

    kind: ContentKind
    name: str
    version: str
    manifest_sha256: str
    manifest_bytes: int
    about: str
    """Canonical JSON."""
    files: int
    bytes: int
    blobs: Collection[str]
    """The SHA-256 of every file's blob. Not read where the manifest is known already."""


def allowed() -> ColumnElement[bool]:
    """Contents that the project ``:project`` may read."""
    granted = select(content_grants.c.name).where(
        content_grants.c.project_id == bindparam("project"),
        content_grants.c.kind == contents.c.kind,
        content_grants.c.name == contents.c.name,
    )
    return or_(
        contents.c.visibility == Visibility.PUBLIC,
        contents.c.project_id == bindparam("project"),
        and_(contents.c.visibility == Visibility.PROJECTS, granted.exists()),
    )


# Submissions and every file of a download ask these; building a statement costs several times what running
# it does.
_NAMED = (contents.c.kind == bindparam("kind"), contents.c.name == bindparam("content"))
_CONTENT = select(contents).where(*_NAMED)
_READABLE = select(contents.c.name).where(*_NAMED, allowed())
_LIVE = content_versions.c.withdrawn_at.is_(None)
_OF_CONTENT = and_(
    content_versions.c.kind == bindparam("kind"), content_versions.c.name == bindparam("content")
)
_REFERRED = or_(
    content_versions.c.version == bindparam("ref"), content_versions.c.manifest_sha256 == bindparam("ref")
)
# Of several versions with one manifest the newest readable one stands for all.
_VERSION = (
    select(content_versions)
    .where(_OF_CONTENT, _REFERRED)
    .order_by(_LIVE.desc(), content_versions.c.id.desc())
    .limit(1)
)
_LABELLED = select(content_versions).where(_OF_CONTENT, content_versions.c.version == bindparam("version"))
_NEWEST = select(content_versions).where(_OF_CONTENT, _LIVE).order_by(content_versions.c.id.desc()).limit(1)
_JOINED = content_versions.join(
    contents, and_(contents.c.kind == content_versions.c.kind, contents.c.name == content_versions.c.name)
)
_RESOLVED = (
    select(content_versions)
    .select_from(_JOINED)
    .where(_OF_CONTENT, _REFERRED, _LIVE, allowed())
    .order_by(content_versions.c.id.desc())
    .limit(1)
)
_STILL_READABLE = (
    select(content_versions.c.id)
    .select_from(_JOINED)
    .where(_OF_CONTENT, content_versions.c.manifest_sha256 == bindparam("manifest"), _LIVE, allowed())
    .limit(1)
)
_SAME_MANIFEST = (
    select(content_versions)
    .where(
        content_versions.c.kind == bindparam("kind"),
        content_versions.c.manifest_sha256 == bindparam("manifest"),
    )
    .order_by(_LIVE.desc(), content_versions.c.id)
    .limit(1)
)
_HOLDS = (
    select(blobs.c.size)
    .join(manifest_blobs, manifest_blobs.c.sha256 == blobs.c.sha256)
    .where(
        manifest_blobs.c.manifest_sha256 == bindparam("manifest"),
        manifest_blobs.c.sha256 == bindparam("blob"),
    )
)
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_HOLD_SOME = (
    select(blobs.c.sha256, blobs.c.size)
    .join(manifest_blobs, manifest_blobs.c.sha256 == blobs.c.sha256)
    .where(manifest_blobs.c.manifest_sha256 == bindparam("manifest"), blobs.c.sha256.in_(_WANTED))
)
_HELD = select(manifest_blobs.c.sha256).where(manifest_blobs.c.manifest_sha256 == bindparam("manifest"))
_COUNT_HELD = select(func.count()).select_from(_HELD.subquery())
_TOUCH_STALE = (
    update(blobs)
    .where(blobs.c.deleting_at.is_(None), func.coalesce(blobs.c.touched_at, 0.0) < bindparam("before"))
    .values(touched_at=bindparam("at"))
)
_TOUCH = _TOUCH_STALE.where(blobs.c.sha256.in_(_HELD))
_TOUCH_SOME = _TOUCH_STALE.where(blobs.c.sha256.in_(_WANTED))
_COUNT_USABLE = (
    select(
        func.count(),
        func.sum(case((func.coalesce(blobs.c.touched_at, 0.0) < bindparam("before"), 1), else_=0)),
    )
    .select_from(manifest_blobs.join(blobs, blobs.c.sha256 == manifest_blobs.c.sha256))
    .where(manifest_blobs.c.manifest_sha256 == bindparam("manifest"), blobs.c.deleting_at.is_(None))
)
_MANIFEST_BYTES = select(manifests.c.size).where(
    manifests.c.sha256 == bindparam("manifest"), manifests.c.let_go_at.is_(None)
)
_APPROVAL = select(plugin_approvals).where(
    plugin_approvals.c.name == bindparam("content"),
    plugin_approvals.c.manifest_sha256 == bindparam("manifest"),
)


def find_content(connection: Connection, kind: ContentKind, name: str) -> Content | None:
    """A content by name, whoever may read it."""
    row = connection.execute(_CONTENT, {"kind": kind, "content": name}).first()
    return Content(*row) if row else None


def find_version(connection: Connection, kind: ContentKind, name: str, ref: str) -> ContentVersion | None:
    """A version by label or manifest digest, whoever may read it, withdrawn ones included."""
    return _version(connection.execute(_VERSION, {"kind": kind, "content": name, "ref": ref}).first())


def newest_version(connection: Connection, kind: ContentKind, name: str) -> ContentVersion | None:
    """The version published last of those that are not withdrawn."""
    return _version(connection.execute(_NEWEST, {"kind": kind, "content": name}).first())


def resolve(connection: Connection, project_id: str, uri: ContentUri) -> ContentVersion | None:
    """The version that ``uri`` names, if the project may read it and it is not withdrawn (E92, E104).

    Being the owner key changes nothing here: what is to run, its project must be able to read.
    """
    asked = {"project": project_id, "kind": uri.kind, "content": uri.full_name, "ref": uri.ref}
    return _version(connection.execute(_RESOLVED, asked).first())


def readable(connection: Connection, project_id: str, kind: ContentKind, name: str) -> bool:
    """Whether a project may read a content; its versions may be withdrawn all the same."""
    asked = {"project": project_id, "kind": kind, "content": name}
    return connection.execute(_READABLE, asked).first() is not None


def still_readable(
    connection: Connection, project_id: str, kind: ContentKind, name: str, manifest_sha256: str
) -> bool:
    """Whether a project may still read what a queued Trial froze (A2)."""
    asked = {"project": project_id, "kind": kind, "content": name, "manifest": manifest_sha256}
    return connection.execute(_STILL_READABLE, asked).first() is not None


def same_manifest(
    connection: Connection, kind: ContentKind, manifest_sha256: str
) -> tuple[ContentVersion, int] | None:
    """Any version of that manifest, a live one first, and the manifest's bytes: what it says is known.

    ``None`` also where nothing named it any more and its blobs were let go.
    """
    asked = {"kind": kind, "manifest": manifest_sha256}
    found = _version(connection.execute(_SAME_MANIFEST, asked).first())
    size = connection.execute(_MANIFEST_BYTES, {"manifest": manifest_sha256}).scalar_one_or_none()
    return None if found is None or size is None else (found, size)


def blob_size(connection: Connection, manifest_sha256: str, blob: str) -> int | None:
    """Bytes of a blob that the manifest holds, ``None`` where it does not hold it."""
    asked = {"manifest": manifest_sha256, "blob": blob}
    size: int | None = connection.execute(_HOLDS, asked).scalar_one_or_none()
    return size


def blob_sizes(connection: Connection, manifest_sha256: str, names: Collection[str]) -> dict[str, int]:
    """The bytes of those of ``names`` that a manifest holds."""
    asked = {"manifest": manifest_sha256, "wanted": list(names)}
    return {row.sha256: row.size for row in connection.execute(_HOLD_SOME, asked)}


def claim(
    connection: Connection,
    principal: Principal,
    kind: ContentKind,
    name: str,
    visibility: Visibility | None,
    *,
    at: float,
    granted: Collection[str] = (),
) -> Content:
    """The content to publish in, made on first use; a ``visibility`` given replaces the one it had.

    Raises `Refusal` ``NAMESPACE_TAKEN``.
    """
    holder = claim_namespace(connection, principal, name, at=at)
    there = find_content(connection, kind, name)
    if there is None:
        wanted = visibility or Visibility.PROJECT
        there = Content(kind, name, name.split("/", 1)[0], holder, wanted, at, at)
        connection.execute(
            insert(contents).values({column.name: getattr(there, column.name) for column in contents.c})
        )
    elif visibility is not None and visibility != there.visibility:
        set_visibility(connection, kind, name, visibility, ())
    if granted:
        set_visibility(connection, kind, name, Visibility.PROJECTS, granted)
    return there


def publish(
    connection: Connection,
    principal: Principal,
    release: Release,
    visibility: Visibility | None,
    *,
    at: float,
    granted: Collection[str] = (),
) -> tuple[ContentVersion, bool]:
    """Make a manifest readable as a version of a content; the version, and whether it is new or back.

    Publishing the same again changes nothing but a visibility given. The manifest and every blob must be
    stored and recorded, and the principal's project must have sent them (`trainshed.store.possession`).
    Raises `Refusal` ``NAMESPACE_TAKEN``, ``CONTENT_VERSION_EXISTS``, ``CONTENT_QUOTA_EXCEEDED``,
    ``BLOB_NOT_FOUND``, ``BLOB_BEING_DELETED``.
    """
    content = claim(connection, principal, release.kind, release.name, visibility, at=at, granted=granted)
    asked = {"kind": release.kind, "content": release.name, "version": release.version}
    there = _version(connection.execute(_LABELLED, asked).first())
    if there is not None and there.manifest_sha256 != release.manifest_sha256:
        raise _taken(there, release)
    if there is not None and there.withdrawn_at is None:
        return there, False
    check_quota(
        connection, content.project_id, release.manifest_sha256, release.bytes, release.manifest_bytes
    )
    hold_manifest(connection, release, at=at)
    if there is None:
        connection.execute(
            insert(content_versions).values(
                kind=release.kind,
                name=release.name,
                version=release.version,
                manifest_sha256=release.manifest_sha256,
                about=release.about,
                files=release.files,
                bytes=release.bytes,
                published_at=at,
                published_by=principal.actor,
            )
        )
    else:
        connection.execute(
            update(content_versions).where(content_versions.c.id == there.id).values(withdrawn_at=None)
        )
    connection.execute(
        update(contents)
        .where(contents.c.kind == release.kind, contents.c.name == release.name)
        .values(updated_at=at)
    )
    made = _version(connection.execute(_LABELLED, asked).first())
    assert made is not None  # noqa: S101 - written above in the same transaction
    return made, True


def hold_manifest(connection: Connection, release: Release, *, at: float) -> None:
    """Record the manifest and keep its blobs from being collected.

    Raises `Refusal` ``BLOB_NOT_FOUND`` with ``missing``, or ``BLOB_BEING_DELETED``.
    """
    digest = release.manifest_sha256
    if release.files and not release.blobs and not hold(connection, [digest]):
        # The caller found it known and did not read it; its files are being collected since.
        raise _being_removed(release)
    put_manifest(connection, digest, release.kind, release.manifest_bytes, [digest, *release.blobs], at=at)
    asked = {"manifest": digest, "before": at - TOUCH_SECONDS}
    usable, stale = connection.execute(_COUNT_USABLE, asked).one()
    if stale:
        # A row that was touched just now cannot be marked for deletion by a collector that looked before.
        connection.execute(_TOUCH, {**asked, "at": at})
        usable, _ = connection.execute(_COUNT_USABLE, asked).one()
    if usable == connection.execute(_COUNT_HELD, {"manifest": digest}).scalar_one():
        return
    kept = select(blobs.c.sha256)
    absent = connection.execute(
        _HELD.where(manifest_blobs.c.sha256.not_in(kept)).limit(SHOWN_MISSING), {"manifest": digest}
    )
    if missing := sorted(absent.scalars()):
        raise Refusal.of(
            "BLOB_NOT_FOUND",
            f"at least {len(missing)} of the blobs of {release.name} are not stored",
            path="manifest",
            missing=missing,
        )
    raise _being_removed(release)


def stage(connection: Connection, release: Release, some: Collection[str], *, at: float) -> None:
    """Record a part of a release's blobs before it is published, so that publishing has little left to do.

    One transaction for a hundred thousand blobs would keep every other writer waiting for seconds. Until the
    release is published the manifest keeps nothing; what is lost until then, `publish` makes good.
    """
    prepare_manifest(connection, release.manifest_sha256, release.kind, release.manifest_bytes, some, at=at)
    fresh = at - TOUCH_SECONDS
    connection.execute(_TOUCH_SOME, {"wanted": list(some), "at": at, "before": fresh})


def withdraw(connection: Connection, kind: ContentKind, name: str, ref: str, *, at: float) -> list[str]:
    """Make versions unreadable by label, or all of a manifest by its digest; the labels withdrawn now."""
    mine = (
        content_versions.c.kind == kind,
        content_versions.c.name == name,
        or_(content_versions.c.version == ref, content_versions.c.manifest_sha256 == ref),
        _LIVE,
    )
    labels = list(connection.execute(select(content_versions.c.version).where(*mine)).scalars())
    if labels:
        connection.execute(update(content_versions).where(*mine).values(withdrawn_at=at))
        connection.execute(
            update(contents).where(contents.c.kind == kind, contents.c.name == name).values(updated_at=at)
        )
    return sorted(labels)


def set_visibility(
    connection: Connection, kind: ContentKind, name: str, visibility: Visibility, granted: Collection[str]
) -> None:
    """Decide who may read a content; ``granted`` counts for `Visibility.PROJECTS` only."""
    mine = (contents.c.kind == kind, contents.c.name == name)
    connection.execute(update(contents).where(*mine).values(visibility=visibility))
    connection.execute(
        delete(content_grants).where(content_grants.c.kind == kind, content_grants.c.name == name)
    )
    if granted:
        connection.execute(
            insert(content_grants),
            [{"kind": kind, "name": name, "project_id": project} for project in sorted(set(granted))],
        )


def list_grants(connection: Connection, kind: ContentKind, name: str) -> list[str]:
    found = connection.execute(
        select(content_grants.c.project_id).where(
            content_grants.c.kind == kind, content_grants.c.name == name
        )
    )
    return sorted(found.scalars())


def list_versions(
    connection: Connection, kind: ContentKind, name: str, *, before: int | None, limit: int
) -> list[ContentVersion]:
    """The versions of a content that are not withdrawn, newest first, past the id ``before``."""
    query = select(content_versions).where(
        content_versions.c.kind == kind, content_versions.c.name == name, _LIVE
    )
    if before is not None:
        query = query.where(content_versions.c.id < before)
    rows = connection.execute(query.order_by(content_versions.c.id.desc()).limit(limit))
    return [ContentVersion(*row) for row in rows]


def approval(connection: Connection, name: str, manifest_sha256: str) -> PluginApproval | None:
    """What was decided of a plugin package under this name; a revoked approval has ``revoked_at``."""
    row = connection.execute(_APPROVAL, {"content": name, "manifest": manifest_sha256}).first()
    return PluginApproval(*row) if row else None


def _version(row: Row[*tuple[Any, ...]] | None) -> ContentVersion | None:
    return None if row is None else ContentVersion(*row)


def _being_removed(release: Release) -> Refusal:
    refusal = Refusal.of("BLOB_BEING_DELETED", f"a blob of {release.name} is being removed", path="manifest")
    refusal.retry_after = 1
    return refusal


def _taken(there: ContentVersion, release: Release) -> Refusal:
    said = (
        "was withdrawn and may come back with the same files only" if there.withdrawn_at else "is published"
    )
    return Refusal.of(
        "CONTENT_VERSION_EXISTS",
        f"version `{there.version}` of {release.kind.noun} {there.name} {said}: its manifest is "
        f"{there.manifest_sha256}, not {release.manifest_sha256}",
        path="version",
    )
