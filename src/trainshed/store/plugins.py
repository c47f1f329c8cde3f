"""Which plugin packages this deployment allows (E94); `contents.approval` answers what was decided.

Decided is of a name with a digest: the same package under another name, which another project may have
published and hidden, is another one.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, bindparam, exists, insert, select, tuple_, update

from trainshed.model.content import ContentKind
from trainshed.store.contents import allowed, approval
from trainshed.store.records import PluginApproval
from trainshed.store.tables import contents, plugin_approvals

_THIS = and_(
    plugin_approvals.c.name == bindparam("plugin"),
    plugin_approvals.c.manifest_sha256 == bindparam("manifest"),
)
_READABLE = exists().where(
    contents.c.kind == ContentKind.PLUGINS.value, contents.c.name == plugin_approvals.c.name, allowed()
)


def approve_plugin(
    connection: Connection, name: str, manifest_sha256: str, *, at: float, by: str
) -> PluginApproval:
    """Allow a plugin package on this deployment; allowing it again lifts a revocation."""
    there = approval(connection, name, manifest_sha256)
    if there is not None and there.revoked_at is None:
        return there
    given = {"approved_at": at, "approved_by": by, "revoked_at": None, "revoked_by": None}
    if there is None:
        connection.execute(
            insert(plugin_approvals).values(name=name, manifest_sha256=manifest_sha256, **given)
        )
    else:
        named = {"plugin": name, "manifest": manifest_sha256}
        connection.execute(update(plugin_approvals).where(_THIS).values(**given), named)
    return PluginApproval(name, manifest_sha256, at, by, None, None)


def revoke_plugin(
    connection: Connection, name: str, manifest_sha256: str, *, at: float, by: str
) -> PluginApproval | None:
    """Stop allowing a plugin package; ``None`` where it never was allowed. Repeatable."""
    connection.execute(
        update(plugin_approvals)
        .where(_THIS, plugin_approvals.c.revoked_at.is_(None))
        .values(revoked_at=at, revoked_by=by),
        {"plugin": name, "manifest": manifest_sha256},
    )
    return approval(connection, name, manifest_sha256)


def list_approvals(
    connection: Connection, *, reader: str | None, after: tuple[float, str, str] | None, limit: int
) -> list[PluginApproval]:
    """Approvals and revocations, the newest approval first, past ``(approved_at, name, manifest_sha256)``.

    ``reader`` is the project whose readable plugins are listed, ``None`` for all of the deployment.
    """
    query = select(plugin_approvals)
    asked: dict[str, float | str] = {}
    if reader is not None:
        query = query.where(_READABLE)
        asked["project"] = reader
    order = (
        plugin_approvals.c.approved_at,
        plugin_approvals.c.name,
        plugin_approvals.c.manifest_sha256,
    )
    if after is not None:
        query = query.where(tuple_(*order) < tuple_(*map(bindparam, ("at", "plugin", "manifest"))))
        asked |= dict(zip(("at", "plugin", "manifest"), after, strict=True))
    rows = connection.execute(query.order_by(*(column.desc() for column in order)).limit(limit), asked)
    return [PluginApproval(*row) for row in rows]
