"""Lists of named contents, each with its newest version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select, tuple_

from trainshed.model.access import Principal
from trainshed.model.content import ContentKind
from trainshed.store.contents import allowed
from trainshed.store.records import Content, ContentVersion
from trainshed.store.tables import content_versions, contents


@dataclass(frozen=True, slots=True)
class Listed:
    """A content with the newest of its versions that are not withdrawn."""

    content: Content
    versions: int
    newest: ContentVersion


def list_contents(
    connection: Connection,
    principal: Principal,
    kind: ContentKind,
    *,
    after: tuple[float, str] | None,
    limit: int,
    name: str | None = None,
    text: str | None = None,
    of_type: str | None = None,
) -> list[Listed]:
    """Readable contents that have a readable version, the newest made first; all of them for the owner key.

    ``after`` is ``(created_at, name)`` of the one before; ``text`` is looked for in names, ``of_type`` is
    the type that the newest version says it has.
    """
    query = _listed(kind)
    if not principal.owner:
        query = query.where(allowed())
    if name is not None:
        query = query.where(contents.c.name == name)
    if text is not None:
        query = query.where(contents.c.name.icontains(text, autoescape=True))
    if of_type is not None:
        # In canonical JSON this cannot be part of a text, whose quotes would be escaped.
        query = query.where(content_versions.c.about.contains(f'"type":"{of_type}"', autoescape=True))
    if after is not None:
        at, last = after
        older = tuple_(contents.c.created_at, contents.c.name) < tuple_(bindparam("at"), bindparam("last"))
        query = query.where(older).params(at=at, last=last)
    query = query.order_by(contents.c.created_at.desc(), contents.c.name.desc()).limit(limit)
    rows = connection.execute(query, {"project": principal.project_id} if not principal.owner else {})
    columns = len(contents.c)
    return [
        Listed(Content(*row[:columns]), row[columns], ContentVersion(*row[columns + 1 :])) for row in rows
    ]


def _listed(kind: ContentKind) -> Select[Any]:
    newest = (
        select(
            func.count().label("versions"),
            func.max(content_versions.c.id).label("id"),
            content_versions.c.name,
        )
        .where(content_versions.c.kind == kind, content_versions.c.withdrawn_at.is_(None))
        .group_by(content_versions.c.name)
        .subquery()
    )
    return (
        select(contents, newest.c.versions, content_versions)
        .join(newest, newest.c.name == contents.c.name)
        .join(content_versions, content_versions.c.id == newest.c.id)
        .where(contents.c.kind == kind)
    )
