"""Namespaces: Runners and named contents share them, and each belongs to one project."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, insert, select

from trainshed.model.access import Principal
from trainshed.model.errors import Refusal
from trainshed.store.tables import namespaces

_HOLDER = select(namespaces.c.project_id).where(namespaces.c.name == bindparam("namespace"))


def holder_of(connection: Connection, principal: Principal, name: str) -> str:
    """The project that holds the namespace of ``name``, or would by publishing in it."""
    holder = connection.execute(_HOLDER, {"namespace": name.split("/", 1)[0]}).scalar_one_or_none()
    return str(holder) if holder is not None else principal.project_id


def claim_namespace(connection: Connection, principal: Principal, name: str, *, at: float) -> str:
    """The project that holds the namespace of ``name`` (``namespace/name``).

    A namespace belongs to the project that first publishes in it; only the owner key may use any. Raises
    `Refusal` ``NAMESPACE_TAKEN``.
    """
    namespace = name.split("/", 1)[0]
    holder: str | None = connection.execute(_HOLDER, {"namespace": namespace}).scalar_one_or_none()
    if holder is None:
        holder = principal.project_id
        connection.execute(insert(namespaces).values(name=namespace, project_id=holder, created_at=at))
    elif holder != principal.project_id and not principal.owner:
        raise Refusal.of(
            "NAMESPACE_TAKEN", f"the namespace `{namespace}` belongs to another project", path="name"
        )
    return holder
