"""From a scope to its blobs, and from a blob to everything that is made of it; for looking for damage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    Subquery,
    and_,
    bindparam,
    case,
    delete,
    func,
    select,
    union,
    update,
)

from trainshed.store import possession
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
    trials,
)

SHOWN = 20
"""How many of each kind of holder are named."""
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_NAME: BindParameter[Any] = bindparam("name")


@dataclass(frozen=True, slots=True)
class Scope:
    """What to look at: everything where nothing is named."""

    sha256: str | None = None
    """One blob."""
    manifests: tuple[str, ...] = ()
    """What these manifests hold."""
    job_id: str | None = None
    """What a Job consumed and produced."""
    asked: str = ""
    """The name and version by which somebody asked for ``manifests``; others may share them."""

    @property
    def everything(self) -> bool:
        return self.sha256 is None and not self.manifests and self.job_id is None


@dataclass(frozen=True, slots=True)
class Named:
    """Some holders of one kind, and how many there are."""

    shown: Sequence[str] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Holders:
    """Everything that is made of a blob."""

    versions: Named = field(default_factory=Named)
    """``datasets ns/name@version``, those that are not withdrawn."""
    revisions: Named = field(default_factory=Named)
    """``ns/name@commit`` of Runners."""
    jobs: Named = field(default_factory=Named)
    """Ids of Jobs that consumed or produced it."""
    artifacts: Named = field(default_factory=Named)
    """``trial_id name``."""
    checkpoints: Named = field(default_factory=Named)
    """Ids of those that are not deleted."""

    @property
    def can_be_published_again(self) -> bool:
        """Whether somebody has it who published it; what a program produced is only here."""
        return bool(self.versions.count or self.revisions.count)

    @property
    def any(self) -> bool:
        """Whether anything needs it."""
        return any(
            each.count for each in (self.versions, self.revisions, self.artifacts, self.checkpoints)
        ) or bool(self.jobs.count)


def _names(scope: Scope) -> Select[Any]:
    """The digests of a scope's blobs, each once."""
    if scope.everything:
        return select(blobs.c.sha256).where(blobs.c.deleting_at.is_(None))
    if scope.sha256 is not None:
        return select(bindparam("one", scope.sha256).label("sha256"))
    held = select(manifest_blobs.c.sha256)
    if scope.job_id is None:
        return held.where(manifest_blobs.c.manifest_sha256.in_(scope.manifests)).distinct()
    of_job = select(trials.c.id).where(trials.c.job_id == scope.job_id)
    made = select(checkpoints.c.id).where(
        checkpoints.c.job_id == scope.job_id, checkpoints.c.deleted_at.is_(None)
    )
    found = union(
        held.where(manifest_blobs.c.manifest_sha256.in_(_manifests_of_job(scope.job_id))),
        select(artifacts.c.sha256).where(
            artifacts.c.trial_id.in_(of_job), artifacts.c.upload_state == "uploaded"
        ),
        select(checkpoint_files.c.sha256).where(checkpoint_files.c.checkpoint_id.in_(made)),
    ).subquery()
    return select(found.c.sha256)


def _manifests_of_job(job_id: str) -> Select[Any]:
    consumed = (
        select(trial_contents.c.manifest_sha256)
        .join(trials, trials.c.id == trial_contents.c.trial_id)
        .where(trials.c.job_id == job_id)
    )
    ran = select(trials.c.snapshot_sha256).where(trials.c.job_id == job_id)
    both = union(consumed, ran).subquery()
    return select(both.c[0])


def _sized(scope: Scope) -> tuple[Subquery, Select[Any]]:
    names = _names(scope).subquery()
    query = select(names.c.sha256, blobs.c.size).outerjoin(blobs, blobs.c.sha256 == names.c.sha256)
    return names, query.select_from(names)


def blobs_after(connection: Connection, scope: Scope, after: str, limit: int) -> list[tuple[str, int | None]]:
    """Blobs of a scope past the digest ``after``, with their recorded sizes, by digest."""
    if scope.everything:
        query = select(blobs.c.sha256, blobs.c.size).where(
            blobs.c.deleting_at.is_(None), blobs.c.sha256 > after
        )
        rows = connection.execute(query.order_by(blobs.c.sha256).limit(limit))
    else:
        names, sized = _sized(scope)
        rows = connection.execute(sized.where(names.c.sha256 > after).order_by(names.c.sha256).limit(limit))
    return [(row.sha256, row.size) for row in rows]


def unrecorded_after(connection: Connection, after: str, limit: int) -> list[str]:
    """Blobs past the digest ``after`` that a manifest keeps and that no row says are stored."""
    query = (
        select(manifest_blobs.c.sha256)
        .join(manifests, manifests.c.sha256 == manifest_blobs.c.manifest_sha256)
        .outerjoin(blobs, blobs.c.sha256 == manifest_blobs.c.sha256)
        .where(manifests.c.let_go_at.is_(None), blobs.c.sha256.is_(None), manifest_blobs.c.sha256 > after)
        .distinct()
        .order_by(manifest_blobs.c.sha256)
    )
    return list(connection.execute(query.limit(limit)).scalars())


def total_of(connection: Connection, scope: Scope) -> tuple[int, int]:
    """How many blobs a scope has, and their bytes."""
    _, sized = _sized(scope)
    found = sized.subquery()
    count, size = connection.execute(
        select(func.count(), func.coalesce(func.sum(found.c.size), 0)).select_from(found)
    ).one()
    return count, int(size)


def manifests_after(connection: Connection, scope: Scope, after: str, limit: int) -> list[tuple[str, str]]:
    """Manifests of a scope that keep their blobs, past the digest ``after``: digest and kind."""
    query = select(manifests.c.sha256, manifests.c.kind).where(
        manifests.c.let_go_at.is_(None), manifests.c.sha256 > after
    )
    if scope.sha256 is not None:
        query = query.where(manifests.c.sha256 == scope.sha256)
    elif scope.job_id is not None:
        query = query.where(manifests.c.sha256.in_(_manifests_of_job(scope.job_id)))
    elif scope.manifests:
        query = query.where(manifests.c.sha256.in_(scope.manifests))
    rows = connection.execute(query.order_by(manifests.c.sha256).limit(limit))
    return [(row.sha256, row.kind) for row in rows]


def held_by(connection: Connection, manifest_sha256: str) -> dict[str, int | None]:
    """The blobs that the rows of a manifest keep, with their recorded sizes; ``None`` without a row."""
    query = (
        select(manifest_blobs.c.sha256, blobs.c.size)
        .outerjoin(blobs, blobs.c.sha256 == manifest_blobs.c.sha256)
        .where(manifest_blobs.c.manifest_sha256 == manifest_sha256)
    )
    return {row.sha256: row.size for row in connection.execute(query)}


def runner_manifest(connection: Connection, snapshot_sha256: str) -> str | None:
    """The text of a Runner's manifest."""
    query = select(runner_revisions.c.manifest).where(runner_revisions.c.snapshot_sha256 == snapshot_sha256)
    text: str | None = connection.execute(query.limit(1)).scalar_one_or_none()
    return text


def still_recorded(connection: Connection, sha256: str) -> bool:
    """Whether the blob may be counted on; what is not there and not recorded was collected meanwhile."""
    query = select(blobs.c.sha256).where(blobs.c.sha256 == sha256, blobs.c.deleting_at.is_(None))
    return connection.execute(query).first() is not None


def manifests_named(connection: Connection, kind: str | None, name: str, ref: str) -> list[str]:
    """The manifests that ``name@ref`` means, of one kind or of any.

    Versions are named by label or digest, Runners by commit.
    """
    named = select(content_versions.c.manifest_sha256).where(
        content_versions.c.name == name,
        (content_versions.c.version == ref) | (content_versions.c.manifest_sha256 == ref),
    )
    if kind is not None:
        return sorted(set(connection.execute(named.where(content_versions.c.kind == kind)).scalars()))
    run = select(runner_revisions.c.snapshot_sha256).where(
        runner_revisions.c.runner == name, runner_revisions.c.revision == ref
    )
    return sorted(set(connection.execute(union(named, run)).scalars()))


def holders_of(connection: Connection, sha256: str, *, first: str = "") -> Holders:
    """Everything that is made of a blob, or of a manifest with that digest.

    The version ``first`` (``namespace/name@version``) stands before the others, whatever they are called.
    """
    keeping = select(manifest_blobs.c.manifest_sha256).where(manifest_blobs.c.sha256 == sha256)
    found = set(connection.execute(keeping).scalars()) | {sha256}
    mine = tuple(sorted(found))
    versions = select(content_versions.c.kind, content_versions.c.name, content_versions.c.version).where(
        content_versions.c.manifest_sha256.in_(mine), content_versions.c.withdrawn_at.is_(None)
    )
    revisions = select(runner_revisions.c.runner, runner_revisions.c.revision).where(
        runner_revisions.c.snapshot_sha256.in_(mine)
    )
    produced = select(artifacts.c.trial_id, artifacts.c.name).where(
        artifacts.c.sha256 == sha256, artifacts.c.upload_state == "uploaded"
    )
    kept = (
        select(checkpoints.c.id)
        .join(checkpoint_files, checkpoint_files.c.checkpoint_id == checkpoints.c.id)
        .where(checkpoint_files.c.sha256 == sha256, checkpoints.c.deleted_at.is_(None))
        .distinct()
    )
    return Holders(
        versions=_some(
            connection, versions, lambda row: f"{row.kind} {row.name}@{row.version}", _is_not(first)
        ),
        revisions=_some(connection, revisions, lambda row: f"{row.runner}@{row.revision}"),
        jobs=_some(connection, _jobs(mine, sha256), lambda row: str(row.job_id)),
        artifacts=_some(connection, produced, lambda row: f"{row.trial_id} {row.name}"),
        checkpoints=_some(connection, kept, lambda row: str(row.id)),
    )


def _jobs(mine: Sequence[str], sha256: str) -> Select[Any]:
    consumed: ColumnElement[bool] = trials.c.id.in_(
        select(trial_contents.c.trial_id).where(trial_contents.c.manifest_sha256.in_(mine))
    )
    made = trials.c.id.in_(
        select(artifacts.c.trial_id).where(
            artifacts.c.sha256 == sha256, artifacts.c.upload_state == "uploaded"
        )
    )
    return select(trials.c.job_id).where(consumed | made | trials.c.snapshot_sha256.in_(mine)).distinct()


def _is_not(first: str) -> ColumnElement[Any]:
    name, _, version = first.rpartition("@")
    return case(
        (and_(content_versions.c.name == name, content_versions.c.version == version), 0),
        (content_versions.c.name == name, 1),
        else_=2,
    )


def _some(connection: Connection, query: Select[Any], show: Any, *order: ColumnElement[Any]) -> Named:
    counted = query.subquery()
    count = connection.execute(select(func.count()).select_from(counted)).scalar_one()
    if not count:
        return Named()
    ordered = query.order_by(*order, *query.selected_columns).limit(SHOWN)
    return Named([show(row) for row in connection.execute(ordered)], count)


_SEIZE = (
    update(blobs)
    .where(blobs.c.sha256 == _NAME, blobs.c.deleting_at.is_(None))
    .values(deleting_at=bindparam("at"))
)
_RELEASE = (
    update(blobs)
    .where(blobs.c.sha256 == _NAME, blobs.c.deleting_at == bindparam("mark"))
    .values(deleting_at=None)
)
_CORRECT = (
    update(blobs)
    .where(
        blobs.c.sha256 == _NAME, blobs.c.deleting_at == bindparam("mark"), blobs.c.size != bindparam("proved")
    )
    .values(size=bindparam("proved"))
)
_DROP = delete(blobs).where(blobs.c.sha256 == _NAME, blobs.c.deleting_at == bindparam("mark"))


def seize(connection: Connection, sha256: str, *, at: float) -> bool:
    """Mark a blob, needed or not, so that nobody stores it while its damaged bytes are taken away."""
    return connection.execute(_SEIZE, {"name": sha256, "at": at}).rowcount > 0


def release(connection: Connection, sha256: str, *, mark: float, gone: bool, size: int | None = None) -> bool:
    """Take the mark of `seize` back, or the row away whose bytes are ``gone``.

    ``size`` is that of bytes that were hashed and are right; answers whether the row said another. A
    collector that finds a mark left takes it back from a blob that is needed.
    """
    corrected = False
    if size is not None:
        asked = {"name": sha256, "mark": mark, "proved": size}
        corrected = connection.execute(_CORRECT, asked).rowcount > 0
    connection.execute(_DROP if gone else _RELEASE, {"name": sha256, "mark": mark})
    if gone:
        possession.forget(connection, [sha256])
    return corrected
