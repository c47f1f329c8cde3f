"""Projects, members and keys."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from trainshed.model.access import KeyKind, Permission, Principal, Role
from trainshed.model.errors import Refusal
from trainshed.store.records import Key, Member, Project
from trainshed.store.tables import keys, members, projects

_PROJECT = select(projects)
_KEY = select(keys)
# Every request asks these; building a statement costs several times what running it does.
_PROJECT_BY_ID = _PROJECT.where(projects.c.id == bindparam("project"))
_ALL_PROJECTS = _PROJECT.order_by(projects.c.id)
_KEY_VALIDITY = select(keys.c.revoked_at, keys.c.expires_at).where(keys.c.id == bindparam("key"))
_KEY_BY_HASH = _KEY.where(keys.c.hash == bindparam("presented"))


def create_project(connection: Connection, project: Project) -> None:
    """Insert a project; raises `Refusal` ``ALREADY_EXISTS``."""
    if find_project(connection, project.id):
        raise Refusal.of("ALREADY_EXISTS", f"there is a project `{project.id}` already", path="project_id")
    connection.execute(insert(projects).values(**{c.name: getattr(project, c.name) for c in projects.c}))


def find_project(connection: Connection, project_id: str) -> Project | None:
    row = connection.execute(_PROJECT_BY_ID, {"project": project_id}).first()
    return Project(*row) if row else None


def get_project(connection: Connection, project_id: str) -> Project:
    """The project; raises `Refusal` ``PROJECT_NOT_FOUND``."""
    project = find_project(connection, project_id)
    if project is None:
        raise Refusal.of("PROJECT_NOT_FOUND", f"there is no project `{project_id}`", path="project")
    return project


def list_projects(connection: Connection) -> list[Project]:
    return [Project(*row) for row in connection.execute(_ALL_PROJECTS)]


def update_project(connection: Connection, project_id: str, values: dict[str, Any]) -> Project:
    """Change ``name``, ``priority``, ``max_gpus``, ``budget_gpu_seconds`` or ``max_content_bytes``."""
    get_project(connection, project_id)
    if values:
        connection.execute(update(projects).where(projects.c.id == project_id).values(**values))
    return get_project(connection, project_id)


def list_members(connection: Connection, project_id: str) -> list[Member]:
    rows = connection.execute(
        select(members).where(members.c.project_id == project_id).order_by(members.c.user)
    )
    return [Member(*row) for row in rows]


def find_member(connection: Connection, project_id: str, user: str) -> Member | None:
    row = connection.execute(
        select(members).where(members.c.project_id == project_id, members.c.user == user),
    ).first()
    return Member(*row) if row else None


def put_member(
    connection: Connection, project_id: str, user: str, role: Role, *, at: float, by: str
) -> Member:
    """Add a member or change the role."""
    get_project(connection, project_id)
    there = find_member(connection, project_id, user)
    if there is None:
        connection.execute(
            insert(members).values(
                project_id=project_id, user=user, role=role, version=1, added_at=at, added_by=by
            ),
        )
    else:
        connection.execute(
            update(members)
            .where(members.c.project_id == project_id, members.c.user == user)
            .values(role=role, version=there.version + 1),
        )
    found = find_member(connection, project_id, user)
    assert found is not None  # noqa: S101 - written above in the same transaction
    return found


def remove_member(connection: Connection, project_id: str, user: str, *, at: float) -> None:
    """Remove a member and revoke the keys made for that person."""
    removed = connection.execute(
        delete(members).where(members.c.project_id == project_id, members.c.user == user),
    ).rowcount
    if not removed:
        raise Refusal.of("MEMBER_NOT_FOUND", f"`{user}` is no member of `{project_id}`", path="user")
    connection.execute(
        update(keys)
        .where(keys.c.project_id == project_id, keys.c.user == user, keys.c.revoked_at.is_(None))
        .values(revoked_at=at),
    )


def insert_key(connection: Connection, key: Key) -> None:
    connection.execute(insert(keys).values(**{c.name: getattr(key, c.name) for c in keys.c}))


def is_valid(connection: Connection, key_id: str, *, at: float) -> bool:
    """Whether a key is there, not revoked and not expired."""
    row = connection.execute(_KEY_VALIDITY, {"key": key_id}).first()
    return row is not None and row.revoked_at is None and (row.expires_at is None or at < row.expires_at)


def list_keys(connection: Connection, project_id: str) -> list[Key]:
    rows = connection.execute(_KEY.where(keys.c.project_id == project_id).order_by(keys.c.id))
    return [Key(*row) for row in rows]


def revoke_key(connection: Connection, project_id: str, key_id: str, *, at: float) -> Key:
    """Revoke a key; it stops working with the next request. Raises `Refusal` ``KEY_NOT_FOUND``."""
    mine = (keys.c.project_id == project_id, keys.c.id == key_id)
    if connection.execute(select(keys.c.id).where(*mine)).first() is None:
        raise Refusal.of("KEY_NOT_FOUND", f"there is no key `{key_id}` in `{project_id}`", path="key_id")
    connection.execute(update(keys).where(*mine, keys.c.revoked_at.is_(None)).values(revoked_at=at))
    return Key(*connection.execute(_KEY.where(*mine)).one())


def find_principal(connection: Connection, hashed: str, *, at: float) -> Principal | None:
    """Who presents the key with this hash, unless it is unknown, expired or revoked."""
    row = connection.execute(_KEY_BY_HASH, {"presented": hashed}).first()
    if row is None:
        return None
    key = Key(*row)
    if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= at):
        return None
    return Principal(
        key_id=key.id,
        project_id=key.project_id,
        kind=KeyKind(key.kind),
        permissions=parse_permissions(json.loads(key.permissions)),
        owner=key.owner,
        label=key.label,
        user=key.user,
    )


def parse_permissions(words: Collection[str]) -> frozenset[Permission]:
    """Known permission words; words of a newer program grant nothing here."""
    known = {str(p) for p in Permission}
    return frozenset(Permission(word) for word in words if word in known)


def lock_project(connection: Connection, project_id: str) -> None:
    """Make transactions that lock the same project wait for each other. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        query = select(projects.c.id).where(projects.c.id == project_id)
        connection.execute(query.with_for_update(key_share=True))
