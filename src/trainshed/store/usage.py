"""How much content projects hold, and the quota that publishing is held to.

What counts is what a project has published and not withdrawn: every manifest once, at the full size of its
files and its own, whether or not other manifests share them (decision 17). Outputs are never counted: a
result that was paid for is not lost to a quota.

What may be sent depends on nothing that other projects have: neither on what they stored nor on what their
manifests name. Else a digest would be worth room, and the answer would tell whether somebody has its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Select,
    Subquery,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    not_,
    select,
)

from trainshed.model.errors import Refusal
from trainshed.model.runner_tree import MAX_TREE_BYTES
from trainshed.model.words import bytes_text
from trainshed.store.tables import (
    artifacts,
    blobs,
    checkpoint_files,
    checkpoints,
    content_versions,
    contents,
    manifest_blobs,
    manifests,
    project_blobs,
    projects,
    reservations,
    runner_revisions,
    runners,
    trials,
)

ALWAYS_SENT_BYTES = MAX_TREE_BYTES
"""What may be sent before it is named, however full the quota is: one Runner, or a long manifest."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a project holds of one kind."""

    project_id: str
    kind: str
    """``datasets``, ``models``, ``recipes``, ``plugins``, ``runners``, ``artifacts``, ``checkpoints``."""
    items: int
    """Manifests, Revisions, Artifacts or Checkpoints."""
    logical_bytes: int
    """The sizes of all files of all of them; of what was published also of their manifests."""
    stored_bytes: int
    """What they take in the store: every blob once."""


_IS_OF = and_(contents.c.kind == content_versions.c.kind, contents.c.name == content_versions.c.name)
_LIVE = (
    select(
        contents.c.project_id,
        content_versions.c.kind,
        content_versions.c.manifest_sha256,
        func.max(content_versions.c.bytes + manifests.c.size).label("bytes"),
    )
    .select_from(
        content_versions.join(contents, _IS_OF).join(
            manifests, manifests.c.sha256 == content_versions.c.manifest_sha256
        )
    )
    .where(content_versions.c.withdrawn_at.is_(None))
    .group_by(contents.c.project_id, content_versions.c.kind, content_versions.c.manifest_sha256)
)
_OF_PROJECT = _LIVE.where(contents.c.project_id == bindparam("project")).subquery()
_COUNTED = select(func.coalesce(func.sum(_OF_PROJECT.c.bytes), 0))
_COUNTS_ALREADY = (
    select(_OF_PROJECT.c.bytes).where(_OF_PROJECT.c.manifest_sha256 == bindparam("manifest")).limit(1)
)
# Also of withdrawn ones: they give their room back at once. Each holds itself, too.
_OWN_MANIFESTS = (
    select(content_versions.c.manifest_sha256)
    .join(contents, _IS_OF)
    .where(contents.c.project_id == bindparam("project"))
    .union_all(
        select(runner_revisions.c.snapshot_sha256)
        .join(runners, runners.c.name == runner_revisions.c.runner)
        .where(runners.c.project_id == bindparam("project"))
    )
)
_NAMED = exists().where(
    manifest_blobs.c.sha256 == project_blobs.c.sha256, manifest_blobs.c.manifest_sha256.in_(_OWN_MANIFESTS)
)
_UNNAMED = (
    select(func.coalesce(func.sum(blobs.c.size), 0))
    .select_from(project_blobs.join(blobs, blobs.c.sha256 == project_blobs.c.sha256))
    .where(project_blobs.c.project_id == bindparam("project"), not_(_NAMED))
)
_SENDING = select(func.coalesce(func.sum(reservations.c.size), 0)).where(
    reservations.c.project_id == bindparam("project"), reservations.c.expires_at > bindparam("at")
)
_TWINS = _SENDING.where(reservations.c.sent == bindparam("sent"))
_SENT = select(_UNNAMED.scalar_subquery(), _SENDING.scalar_subquery(), _TWINS.scalar_subquery())
_IS_SENT = (
    select(reservations.c.id)
    .where(
        reservations.c.project_id == bindparam("project"),
        reservations.c.expires_at > bindparam("at"),
        reservations.c.sent == bindparam("sent"),
    )
    .limit(1)
)
_RESERVE = insert(reservations)
_RESERVED = select(reservations.c.id).where(reservations.c.id == bindparam("name"))
_HELD = select(reservations.c.size).where(
    reservations.c.id == bindparam("name"), reservations.c.expires_at > bindparam("at")
)
_DROP_RESERVATION = delete(reservations).where(reservations.c.id == bindparam("name"))
_DROP_EXPIRED = delete(reservations).where(
    reservations.c.project_id == bindparam("project"), reservations.c.expires_at <= bindparam("at")
)
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
# What is being removed counts until it is gone, so that sending it again adds nothing.
_PROVED = (
    select(blobs.c.sha256, blobs.c.size)
    .join(project_blobs, project_blobs.c.sha256 == blobs.c.sha256)
    .where(project_blobs.c.project_id == bindparam("project"), blobs.c.sha256.in_(_WANTED))
)
_QUOTA = select(projects.c.max_content_bytes).where(projects.c.id == bindparam("project"))


def counted_bytes(connection: Connection, project_id: str) -> int:
    """What counts towards the project's quota."""
    return int(connection.execute(_COUNTED, {"project": project_id}).scalar_one())


def check_quota(
    connection: Connection, project_id: str, manifest_sha256: str, size: int, manifest_bytes: int = 0
) -> None:
    """Refuse a manifest of ``size`` bytes of files, and of its own, that would exceed the quota.

    The manifest's own are left out by who asks before it came.

    In the transaction that publishes it: of two publishers the second sees what the first one took. Raises
    `Refusal` ``CONTENT_QUOTA_EXCEEDED`` with the numbers.
    """
    limit = _locked_quota(connection, project_id)
    if limit is None:
        return
    asked = {"project": project_id}
    if connection.execute(_COUNTS_ALREADY, {**asked, "manifest": manifest_sha256}).first() is not None:
        return
    used = counted_bytes(connection, project_id)
    size += manifest_bytes
    if size > 0 and used + size > limit:
        raise Refusal.of(
            "CONTENT_QUOTA_EXCEEDED",
            f"project `{project_id}` may hold {bytes_text(limit)} of published content and holds "
            f"{bytes_text(used)}; this would add {bytes_text(size)}",
            max_content_bytes=limit,
            content_bytes=used,
            wanted_bytes=size,
        )


def is_reserved(connection: Connection, reservation: str) -> bool:
    """Whether there is such a reservation, expired or not."""
    return connection.execute(_RESERVED, {"name": reservation}).first() is not None


def has_quota(connection: Connection, project_id: str) -> bool:
    """Whether what the project sends is held to anything."""
    return connection.execute(_QUOTA, {"project": project_id}).scalar_one_or_none() is not None


def reserve(
    connection: Connection,
    project_id: str,
    reservation: str,
    sizes: Mapping[str, int],
    *,
    sent: str | None = None,
    at: float,
    seconds: float,
) -> None:
    """Have room for blobs, SHA-256 -> size, that a project with a quota is about to send, for ``seconds``.

    What no manifest holds counts beside what is published, and so does what others of the project reserved; a
    version that is withdrawn gives its room back at once all the same. `ALWAYS_SENT_BYTES` are let in however
    full the quota is, because Runners are sent the same way and do not count. Of what the project itself sent
    before, only what it is longer now counts. ``sent`` names what is sent: while others send the same each
    one counts, also of what was sent before, because each lies on the disk. Who reserves again under the same
    name, renews. Does nothing where there is no quota.

    In a transaction of its own: of two the second sees what the first one took. Raises `Refusal`
    ``CONTENT_QUOTA_EXCEEDED`` with the numbers, and ``UPLOAD_BUSY`` where there will be room once nobody else
    sends the same.
    """
    limit = _locked_quota(connection, project_id)
    if limit is None:
        return
    connection.execute(_DROP_EXPIRED, {"project": project_id, "at": at})
    connection.execute(_DROP_RESERVATION, {"name": reservation})
    sent = reservation if sent is None else sent
    alone = connection.execute(_IS_SENT, {"project": project_id, "at": at, "sent": sent}).first() is None
    added = _added(connection, project_id, sizes)
    size = added if alone else sum(sizes.values())
    _check_sent(connection, project_id, limit, size, sent, at, later=None if alone else added)
    row = {
        "id": reservation,
        "project_id": project_id,
        "sent": sent,
        "size": size,
        "expires_at": at + seconds,
    }
    connection.execute(_RESERVE, row)


def settle(
    connection: Connection,
    project_id: str,
    reservation: str,
    sizes: Mapping[str, int],
    *,
    sent: str,
    at: float,
) -> None:
    """End a reservation as the blobs become rows, in the same transaction and before they do.

    One that has expired meanwhile, or was for less, is looked at as if it were new. Raises as `reserve` does.
    """
    limit = _locked_quota(connection, project_id)
    held = connection.execute(_HELD, {"name": reservation, "at": at}).scalar_one_or_none()
    connection.execute(_DROP_RESERVATION, {"name": reservation})
    if limit is not None and (held is None or held < sum(sizes.values())):
        size = _added(connection, project_id, sizes)
        if held is None or held < size:
            # What others send of the same will add nothing to it.
            _check_sent(connection, project_id, limit, size, sent, at, twins_count=False)


def give_back(connection: Connection, reservation: str) -> None:
    """End a reservation of what was not stored."""
    connection.execute(_DROP_RESERVATION, {"name": reservation})


def give_back_all(connection: Connection, prefix: str) -> int:
    """End the reservations whose names begin so, of processes that are gone; how many."""
    mine = reservations.c.id.startswith(prefix, autoescape=True)
    return connection.execute(delete(reservations).where(mine)).rowcount


def _locked_quota(connection: Connection, project_id: str) -> int | None:
    """The quota; where there is one, nobody else publishes or reserves until this transaction ends."""
    asked = {"project": project_id}
    limit: int | None = connection.execute(_QUOTA, asked).scalar_one_or_none()
    if limit is not None and connection.dialect.name == "postgresql":
        # Submissions refer to the project's row too, and shall not wait.
        query = _QUOTA.with_for_update(key_share=True)
        limit = connection.execute(query, asked).scalar_one_or_none()
    return limit


def _added(connection: Connection, project_id: str, sizes: Mapping[str, int]) -> int:
    """By how many bytes the blobs go beyond what the project has sent of them before."""
    asked = {"project": project_id, "wanted": list(sizes)}
    known = {row.sha256: int(row.size) for row in connection.execute(_PROVED, asked)}
    return sum(max(0, size - known.get(sha256, 0)) for sha256, size in sizes.items())


def _check_sent(
    connection: Connection,
    project_id: str,
    limit: int,
    size: int,
    sent: str,
    at: float,
    *,
    later: int | None = None,
    twins_count: bool = True,
) -> None:
    """Refuse ``size`` bytes more for which there is no room.

    ``later`` is what it would be once nobody else sends the same. Raises `Refusal`
    ``CONTENT_QUOTA_EXCEEDED``, ``UPLOAD_BUSY``.
    """
    if not size:
        return
    # In one look: what is stored meanwhile is seen as the one or as the other.
    asked = {"project": project_id, "at": at, "sent": sent}
    unnamed, sending, twins = (int(each) for each in connection.execute(_SENT, asked).one())
    if not twins_count:
        sending -= twins
    if unnamed + sending + size <= ALWAYS_SENT_BYTES:
        return
    used = counted_bytes(connection, project_id)
    most = max(ALWAYS_SENT_BYTES, limit - used) - unnamed
    if sending + size <= most:
        return
    if later is not None and (not later or sending - twins + later <= most):
        busy = Refusal.of(
            "UPLOAD_BUSY",
            f"the same bytes are being sent to project `{project_id}` already, and its quota has no room for "
            "both at once",
        )
        busy.retry_after = 1
        raise busy
    raise Refusal.of(
        "CONTENT_QUOTA_EXCEEDED",
        f"project `{project_id}` may hold {bytes_text(limit)} of content, holds {bytes_text(used)}, sent "
        f"{bytes_text(unnamed)} that nothing names yet and is sending {bytes_text(sending)}; this would add "
        f"{bytes_text(size)}. Publish what was sent; else it goes as garbage, as uploads do that nobody goes "
        "on with",
        max_content_bytes=limit,
        content_bytes=used,
        unnamed_bytes=unnamed,
        sending_bytes=sending,
        wanted_bytes=size,
    )


def usage(connection: Connection, project_id: str | None = None) -> list[Held]:
    """What each project holds of each kind, or one project. Reads much; never on a request's way."""
    found: list[Held] = []
    for rows, held in _SOURCES:
        items = _items(rows, project_id)
        stored = {
            (row.project_id, row.kind): int(row.bytes)
            for row in connection.execute(_stored(held, project_id))
        }
        for row in connection.execute(items):
            of = (row.project_id, row.kind)
            found.append(Held(*of, row.number, int(row.bytes), stored.get(of, 0)))
    return sorted(found, key=lambda each: (each.project_id, each.kind))


def _items(source: Subquery, project_id: str | None) -> Select[Any]:
    query = select(
        source.c.project_id,
        source.c.kind,
        func.sum(source.c.number).label("number"),
        func.coalesce(func.sum(source.c.bytes), 0).label("bytes"),
    ).group_by(source.c.project_id, source.c.kind)
    return query if project_id is None else query.where(source.c.project_id == project_id)


def _stored(source: Subquery, project_id: str | None) -> Select[Any]:
    """Bytes of the distinct blobs of ``source`` by project and kind."""
    query = select(source.c.project_id, source.c.kind, source.c.sha256)
    if project_id is not None:
        query = query.where(source.c.project_id == project_id)
    distinct = query.distinct().subquery()
    return (
        select(distinct.c.project_id, distinct.c.kind, func.sum(blobs.c.size).label("bytes"))
        .join(blobs, blobs.c.sha256 == distinct.c.sha256)
        .group_by(distinct.c.project_id, distinct.c.kind)
    )


def _published() -> tuple[Subquery, Subquery]:
    live = _LIVE.subquery()
    items = select(live.c.project_id, live.c.kind, literal(1).label("number"), live.c.bytes).subquery()
    held = (
        select(live.c.project_id, live.c.kind, manifest_blobs.c.sha256)
        .join(manifest_blobs, manifest_blobs.c.manifest_sha256 == live.c.manifest_sha256)
        .subquery()
    )
    return items, held


def _runners() -> tuple[Subquery, Subquery]:
    held = (
        select(
            runners.c.project_id,
            literal("runners").label("kind"),
            runner_revisions.c.id,
            manifest_blobs.c.sha256,
        )
        .join(runner_revisions, runner_revisions.c.runner == runners.c.name)
        .join(manifest_blobs, manifest_blobs.c.manifest_sha256 == runner_revisions.c.snapshot_sha256)
    )
    files = held.subquery()
    items = (
        select(
            files.c.project_id,
            files.c.kind,
            func.count(files.c.id.distinct()).label("number"),
            func.sum(blobs.c.size).label("bytes"),
        )
        .join(blobs, blobs.c.sha256 == files.c.sha256)
        .group_by(files.c.project_id, files.c.kind)
        .subquery()
    )
    return items, files


def _artifacts() -> tuple[Subquery, Subquery]:
    kept = (
        select(
            trials.c.project_id,
            literal("artifacts").label("kind"),
            literal(1).label("number"),
            artifacts.c.size.label("bytes"),
            artifacts.c.sha256,
        )
        .join(trials, trials.c.id == artifacts.c.trial_id)
        .where(artifacts.c.upload_state == "uploaded")
        .subquery()
    )
    return kept, kept


def _checkpoints() -> tuple[Subquery, Subquery]:
    files = (
        select(
            checkpoints.c.project_id,
            literal("checkpoints").label("kind"),
            checkpoints.c.id,
            checkpoint_files.c.sha256,
            checkpoint_files.c.size,
        )
        .join(checkpoint_files, checkpoint_files.c.checkpoint_id == checkpoints.c.id)
        .where(checkpoints.c.deleted_at.is_(None))
        .subquery()
    )
    items = (
        select(
            files.c.project_id,
            files.c.kind,
            func.count(files.c.id.distinct()).label("number"),
            func.sum(files.c.size).label("bytes"),
        )
        .group_by(files.c.project_id, files.c.kind)
        .subquery()
    )
    return items, files


_SOURCES: Sequence[tuple[Subquery, Subquery]] = (_published(), _runners(), _artifacts(), _checkpoints())
