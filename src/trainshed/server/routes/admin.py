"""Administration: projects, members, keys. Needs `admin`; the owner key may name any project."""

from __future__ import annotations

import json
from typing import Any

from trainshed.model.access import (
    PROJECT_ID,
    ROLE_PERMISSIONS,
    KeyKind,
    Permission,
    Role,
    key_hash,
    new_key_text,
)
from trainshed.model.errors import Refusal
from trainshed.server.bodies import Body
from trainshed.server.endpoints import Call, Operation, Reply, Routes
from trainshed.server.services import Services
from trainshed.server.shapes import project as shapes
from trainshed.server.shapes import requests
from trainshed.server.shapes.common import Page, iso, iso_or_none
from trainshed.store import access, usage
from trainshed.store.database import Connection
from trainshed.store.records import Key, Member, Project

routes = Routes("admin")

ADMIN = (Permission.ADMIN,)
MAX_PRIORITY = 1_000_000
MAX_GPUS = 2**31 - 1
MAX_GPU_HOURS = 1e9
MAX_CONTENT_BYTES = 2**63 - 1
_LIMITS = ("name", "priority", "max_gpus", "budget_gpu_hours", "max_content_bytes")
MAX_EXPIRY_SECONDS = 100 * 366 * 86_400.0
_NOT_FOUND = ("PROJECT_NOT_FOUND", "PROJECT_ACCESS_DENIED")


def _small(services: Services) -> int:
    return services.bodies.other


@routes.get(
    "/projects", Operation("List projects to administer", answer=Page[shapes.ProjectAdmin], any_of=ADMIN)
)
def list_projects(call: Call) -> Page[shapes.ProjectAdmin]:
    """All projects for the owner key, else the key's own."""
    with call.services.database.read() as connection:
        if call.principal.owner:
            rows = access.list_projects(connection)
        else:
            rows = [access.get_project(connection, call.project)]
    return Page(items=[_project_view(row) for row in rows])


@routes.post(
    "/projects",
    Operation(
        "Create a project",
        answer=shapes.ProjectAdmin,
        any_of=ADMIN,
        takes=requests.CreateProject,
        max_body=_small,
        answers={201: "Created."},
        refuses=("INVALID_SPEC", "ALREADY_EXISTS"),
    ),
)
def create_project(call: Call) -> Reply:
    """With the owner key only."""
    if not call.principal.owner:
        raise Refusal.of("PERMISSION_DENIED", "only the owner key creates projects")
    body = Body(call.object())
    body.known(["project_id", *_LIMITS])
    project_id = body.required_text("project_id", most=128)
    if project_id and not PROJECT_ID.fullmatch(project_id):
        body.fault("project_id", "must hold letters, digits, `_`, `:` and `-` only")
    values = _limits(body)
    body.finish()
    facts: dict[str, Any] = {
        "name": project_id,
        "priority": 0,
        "max_gpus": None,
        "budget_gpu_seconds": None,
        "max_content_bytes": None,
        **values,
    }
    row = Project(id=project_id, used_gpu_seconds=0.0, created_at=call.now, **facts)
    call.services.database.write(lambda connection: access.create_project(connection, row))
    return Reply(_project_view(row, 0), 201)


@routes.get(
    "/projects/{project}",
    Operation("Read a project's limits", answer=shapes.ProjectAdmin, any_of=ADMIN, refuses=_NOT_FOUND),
)
def read_project(call: Call, project: str) -> shapes.ProjectAdmin:
    """Name, priority, GPU quota, budget and content quota."""
    with call.services.database.read() as connection:
        row = _administered(call, connection, project)
        used = usage.counted_bytes(connection, row.id)
    return _project_view(row, used)


@routes.patch(
    "/projects/{project}",
    Operation(
        "Change a project's limits",
        answer=shapes.ProjectAdmin,
        any_of=ADMIN,
        takes=requests.UpdateProject,
        max_body=_small,
        refuses=(*_NOT_FOUND, "INVALID_SPEC"),
    ),
)
def update_project(call: Call, project: str) -> shapes.ProjectAdmin:
    """Only the keys given change; null lifts a limit. Limits and priority need the owner key."""
    body = Body(call.object())
    body.known(_LIMITS)
    values = _limits(body)
    body.finish()
    if not call.principal.owner and values.keys() - {"name"}:
        raise Refusal.of("PERMISSION_DENIED", "only the owner key changes priority, quotas and budget")

    def change(connection: Connection) -> tuple[Project, int]:
        _administered(call, connection, project)
        row = access.update_project(connection, project, values)
        return row, usage.counted_bytes(connection, row.id)

    row, used = call.services.database.write(change)
    call.services.wake()
    return _project_view(row, used)


@routes.get(
    "/projects/{project}/members",
    Operation("List members", answer=Page[shapes.MemberAdmin], any_of=ADMIN, refuses=_NOT_FOUND),
)
def list_members(call: Call, project: str) -> Page[shapes.MemberAdmin]:
    """Members and their roles."""
    with call.services.database.read() as connection:
        _administered(call, connection, project)
        rows = access.list_members(connection, project)
    return Page(items=[_member_view(row) for row in rows])


@routes.put(
    "/projects/{project}/members/{user}",
    Operation(
        "Add a member or change a role",
        answer=shapes.MemberAdmin,
        any_of=ADMIN,
        takes=requests.PutMember,
        max_body=_small,
        refuses=(*_NOT_FOUND, "INVALID_SPEC"),
    ),
)
def put_member(call: Call, project: str, user: str) -> shapes.MemberAdmin:
    """Roles: viewer, developer, admin."""
    body = Body({**call.object(), "user": user})
    body.known(["role", "user"])
    body.required_text("user", most=128)
    word = body.word("role", [str(role) for role in Role])
    if body.values.get("role") is None:
        body.fault("role", "is missing")
    body.finish()
    role, at, by = Role(word or ""), call.now, call.principal.actor

    def change(connection: Connection) -> Member:
        _administered(call, connection, project)
        return access.put_member(connection, project, user, role, at=at, by=by)

    return _member_view(call.services.database.write(change))


@routes.delete(
    "/projects/{project}/members/{user}",
    Operation(
        "Remove a member",
        answer=shapes.MemberRemoved,
        any_of=ADMIN,
        refuses=(*_NOT_FOUND, "MEMBER_NOT_FOUND"),
    ),
)
def remove_member(call: Call, project: str, user: str) -> shapes.MemberRemoved:
    """The keys made for that person are revoked with it."""
    at = call.now

    def change(connection: Connection) -> None:
        _administered(call, connection, project)
        access.remove_member(connection, project, user, at=at)

    call.services.database.write(change)
    return shapes.MemberRemoved(user=user)


@routes.get(
    "/projects/{project}/keys",
    Operation("List keys", answer=Page[shapes.KeyItem], any_of=ADMIN, refuses=_NOT_FOUND),
)
def list_keys(call: Call, project: str) -> Page[shapes.KeyItem]:
    """Keys without their secrets, which are not stored."""
    with call.services.database.read() as connection:
        _administered(call, connection, project)
        rows = access.list_keys(connection, project)
    return Page(items=[shapes.KeyItem.model_validate(_key_values(row)) for row in rows])


@routes.post(
    "/projects/{project}/keys",
    Operation(
        "Create a key",
        answer=shapes.NewKey,
        any_of=ADMIN,
        takes=requests.CreateKey,
        max_body=_small,
        answers={201: "Created; the answer holds the secret, once."},
        refuses=(*_NOT_FOUND, "INVALID_SPEC", "MEMBER_NOT_FOUND"),
    ),
)
def create_key(call: Call, project: str) -> Reply:
    """Either `permissions` one by one or those of a `role`.

    A key with `training.run` also gets `training.stop`, unless the server is configured otherwise (A11).
    """
    body = Body(call.object())
    body.known(["label", "kind", "permissions", "role", "user", "expires_in_seconds"])
    label = body.required_text("label", most=128)
    kind = body.word("kind", [str(kind) for kind in KeyKind]) or KeyKind.SERVICE
    words = body.words("permissions", [str(permission) for permission in Permission])
    role = body.word("role", [str(role) for role in Role])
    user = body.text("user", most=128)
    expires = body.number("expires_in_seconds", least=1, most=MAX_EXPIRY_SECONDS)
    if bool(words) == (role is not None):
        body.fault("permissions", "give either `permissions` or `role`")
    body.finish()
    granted = set(ROLE_PERMISSIONS[Role(role)]) if role else {Permission(word) for word in words}
    if Permission.TRAINING_RUN in granted and call.services.run_grants_stop:
        granted.add(Permission.TRAINING_STOP)
    if kind == KeyKind.AGENT and Permission.ADMIN in granted:
        raise Refusal.of(
            "INVALID_SPEC", "`permissions`: a key of an agent cannot hold `admin`", path="permissions"
        )
    text = new_key_text()
    row = Key(
        id=call.services.ids.key(),
        hash=key_hash(text),
        project_id=project,
        kind=kind,
        label=label,
        user=user,
        permissions=json.dumps(sorted(granted)),
        owner=False,
        created_at=call.now,
        created_by=call.principal.actor,
        expires_at=None if expires is None else call.now + expires,
        revoked_at=None,
    )

    def insert(connection: Connection) -> None:
        _administered(call, connection, project)
        if user is not None and access.find_member(connection, project, user) is None:
            raise Refusal.of("MEMBER_NOT_FOUND", f"`{user}` is no member of `{project}`", path="user")
        access.insert_key(connection, row)

    call.services.database.write(insert)
    return Reply(shapes.NewKey.model_validate({**_key_values(row), "key": text}), 201)


@routes.delete(
    "/projects/{project}/keys/{key_id}",
    Operation("Revoke a key", answer=shapes.KeyItem, any_of=ADMIN, refuses=(*_NOT_FOUND, "KEY_NOT_FOUND")),
)
def revoke_key(call: Call, project: str, key_id: str) -> shapes.KeyItem:
    """It stops working with the next request; repeatable."""
    at = call.now

    def change(connection: Connection) -> Key:
        _administered(call, connection, project)
        return access.revoke_key(connection, project, key_id, at=at)

    return shapes.KeyItem.model_validate(_key_values(call.services.database.write(change)))


def _administered(call: Call, connection: Connection, project: str) -> Project:
    """The project, if this key may administer it."""
    if project != call.project and not call.principal.owner:
        raise Refusal.of("PROJECT_ACCESS_DENIED", f"the key administers project `{call.project}` only")
    return access.get_project(connection, project)


def _limits(body: Body) -> dict[str, Any]:
    """Columns of ``projects`` to set: those given, null included where it lifts a limit."""
    values: dict[str, Any] = {}
    name = body.text("name")
    if name is not None:
        values["name"] = name
    priority = body.whole("priority", -MAX_PRIORITY, MAX_PRIORITY)
    if priority is not None:
        values["priority"] = priority
    max_gpus = body.whole("max_gpus", 0, MAX_GPUS)
    if "max_gpus" in body.values:
        values["max_gpus"] = max_gpus
    hours = body.number("budget_gpu_hours", least=0, most=MAX_GPU_HOURS)
    if "budget_gpu_hours" in body.values:
        values["budget_gpu_seconds"] = None if hours is None else hours * 3600
    content = body.whole("max_content_bytes", 0, MAX_CONTENT_BYTES)
    if "max_content_bytes" in body.values:
        values["max_content_bytes"] = content
    return values


def _project_view(row: Project, content_bytes: int | None = None) -> shapes.ProjectAdmin:
    return shapes.ProjectAdmin(
        project_id=row.id,
        name=row.name,
        priority=row.priority,
        max_gpus=row.max_gpus,
        budget_gpu_hours=None if row.budget_gpu_seconds is None else row.budget_gpu_seconds / 3600,
        used_gpu_hours=row.used_gpu_seconds / 3600,
        max_content_bytes=row.max_content_bytes,
        content_bytes=content_bytes,
        created_at=iso(row.created_at),
    )


def _member_view(row: Member) -> shapes.MemberAdmin:
    return shapes.MemberAdmin.model_validate(
        {
            "user": row.user,
            "role": row.role,
            "version": row.version,
            "added_at": iso(row.added_at),
            "added_by": row.added_by,
        }
    )


def _key_values(row: Key) -> dict[str, Any]:
    return {
        "key_id": row.id,
        "project_id": row.project_id,
        "kind": row.kind,
        "label": row.label,
        "user": row.user,
        "permissions": json.loads(row.permissions),
        "owner": bool(row.owner),
        "created_at": iso(row.created_at),
        "created_by": row.created_by,
        "expires_at": iso_or_none(row.expires_at),
        "revoked_at": iso_or_none(row.revoked_at),
    }
