"""Which plugin packages this deployment allows (E94); `contents.approval` answers what was decided."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, insert, select, tuple_, update

from trainshed.store.contents import approval
from trainshed.store.records import PluginApproval
from trainshed.store.tables import plugin_approvals


def approve_plugin(
    connection: Connection, manifest_sha256: str, name: str, *, at: float, by: str
) -> PluginApproval:
    """Allow a plugin package on this deployment; allowing it again lifts a revocation."""
    there = approval(connection, manifest_sha256)
    if there is not None and there.revoked_at is None:
        return there
    given = {"name": name, "approved_at": at, "approved_by": by, "revoked_at": None, "revoked_by": None}
    mine = plugin_approvals.c.manifest_sha256 == manifest_sha256
    if there is None:
        connection.execute(insert(plugin_approvals).values(manifest_sha256=manifest_sha256, **given))
    else:
        connection.execute(update(plugin_approvals).where(mine).values(**given))
    return PluginApproval(manifest_sha256, name, at, by, None, None)


def revoke_plugin(
    connection: Connection, manifest_sha256: str, *, at: float, by: str
) -> PluginApproval | None:
    """Stop allowing a plugin package; ``None`` where it never was allowed. Repeatable."""
    connection.execute(
        update(plugin_approvals)
        .where(plugin_approvals.c.manifest_sha256 == manifest_sha256, plugin_approvals.c.revoked_at.is_(None))
        .values(revoked_at=at, revoked_by=by)
    )
    return approval(connection, manifest_sha256)


def list_approvals(
    connection: Connection, *, after: tuple[float, str] | None, limit: int
) -> list[PluginApproval]:
    """Approvals and revocations, the newest approval first, past ``(approved_at, manifest_sha256)``."""
    query = select(plugin_approvals)
    order = (plugin_approvals.c.approved_at, plugin_approvals.c.manifest_sha256)
    if after is not None:
        at, last = after
        query = query.where(tuple_(*order) < tuple_(bindparam("at"), bindparam("last"))).params(
            at=at, last=last
        )
    rows = connection.execute(query.order_by(*(column.desc() for column in order)).limit(limit))
    return [PluginApproval(*row) for row in rows]
