"""Who am I, the workspace and its projects, billing and named profiles (contract E a, b10, b11)."""

from __future__ import annotations

from typing import NoReturn

from trainshed.model.access import WORKSPACE_ID, Permission
from trainshed.model.errors import Refusal
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import open_cursor, page_limit
from trainshed.server.shapes import project as shapes
from trainshed.server.shapes.common import Page, iso
from trainshed.store import access, queue, usage
from trainshed.store.database import Connection
from trainshed.store.records import Project

routes = Routes("project")

_WORKSPACE = shapes.Workspace(workspace_id=WORKSPACE_ID, name="Trainshed")
_SCOPE = ("WORKSPACE_ACCESS_DENIED", "PROJECT_ACCESS_DENIED")
_IN_PROJECT = "/workspaces/{workspace}/projects/{project}"


@routes.get("/me", Operation("Who am I", answer=shapes.Me))
def read_me(call: Call) -> shapes.Me:
    """The key, its project and what it may do."""
    principal = call.principal
    with call.services.database.read() as connection:
        project = access.get_project(connection, principal.project_id)
    allowed = [str(permission) for permission in Permission if principal.may(permission)]
    return shapes.Me.model_validate(
        {
            "workspace_id": WORKSPACE_ID,
            "project_id": project.id,
            "workspace": _WORKSPACE,
            "project": _item(project),
            "permissions": allowed,
            "key_id": principal.key_id,
            "kind": principal.kind.value,
            "label": principal.label,
            "owner": principal.owner,
        }
    )


@routes.get("/workspaces", Operation("List workspaces", answer=Page[shapes.Workspace]))
def list_workspaces(call: Call) -> Page[shapes.Workspace]:
    """This server is one workspace."""
    return Page(items=[_WORKSPACE])


@routes.get(
    "/workspaces/{workspace}/projects",
    Operation("List projects", answer=Page[shapes.ProjectItem], refuses=_SCOPE),
)
def list_projects(call: Call, workspace: str) -> Page[shapes.ProjectItem]:
    """The key's project; for the owner key, all."""
    _check_workspace(workspace)
    with call.services.database.read() as connection:
        if call.principal.owner:
            rows = access.list_projects(connection)
        else:
            rows = [access.get_project(connection, call.project)]
    return Page(items=[_item(row) for row in rows])


@routes.get(_IN_PROJECT, Operation("Read a project", answer=shapes.ProjectDetail, refuses=_SCOPE))
def read_project(call: Call, workspace: str, project: str) -> shapes.ProjectDetail:
    """The project of the key."""
    with call.services.database.read() as connection:
        row = _project(call, connection, workspace, project)
    return shapes.ProjectDetail(
        project_id=row.id,
        workspace_id=WORKSPACE_ID,
        name=row.name,
        slug=row.id,
        created_at=iso(row.created_at),
    )


@routes.get(
    f"{_IN_PROJECT}/limits", Operation("Read a project's limits", answer=shapes.Limits, refuses=_SCOPE)
)
def read_limits(call: Call, workspace: str, project: str) -> shapes.Limits:
    """What the project may use, and what it uses now."""
    with call.services.database.read() as connection:
        row = _project(call, connection, workspace, project)
        in_use = sum(held.gpus for held in queue.unreleased(connection) if held.project_id == row.id)
        content_bytes = usage.counted_bytes(connection, row.id)
    return shapes.Limits(
        project_id=row.id,
        max_gpus=row.max_gpus,
        gpus_in_use=in_use,
        budget_gpu_hours=None if row.budget_gpu_seconds is None else row.budget_gpu_seconds / 3600,
        used_gpu_hours=row.used_gpu_seconds / 3600,
        max_content_bytes=row.max_content_bytes,
        content_bytes=content_bytes,
        priority=row.priority,
    )


@routes.get(
    f"{_IN_PROJECT}/members",
    Operation("List members", answer=Page[shapes.MemberItem], params=(CURSOR, LIMIT), refuses=_SCOPE),
)
def list_members(call: Call, workspace: str, project: str) -> Page[shapes.MemberItem]:
    """Members and their roles."""
    limit = page_limit(call.query, 100)
    after = open_cursor(call.services.seal, "members", call.query) or ""
    with call.services.database.read() as connection:
        row = _project(call, connection, workspace, project)
        members = [member for member in access.list_members(connection, row.id) if member.user > after]
    shown = members[:limit]
    more = len(members) > limit
    return Page(
        items=[
            shapes.MemberItem.model_validate(
                {
                    "user": member.user,
                    "project_role": member.role,
                    "version": member.version,
                    "added_at": iso(member.added_at),
                }
            )
            for member in shown
        ],
        next_cursor=call.services.seal.seal("members", shown[-1].user) if more else None,
    )


@routes.get(
    f"{_IN_PROJECT}/member-candidates",
    Operation(
        "Find people to add",
        answer=Page[shapes.Candidate],
        params=(Param("q", {"type": "string"}, "Part of a name."),),
        refuses=_SCOPE,
    ),
)
def list_candidates(call: Call, workspace: str, project: str) -> Page[shapes.Candidate]:
    """This server keeps no directory of people: always empty."""
    with call.services.database.read() as connection:
        _project(call, connection, workspace, project)
    return Page(items=[])


def _human_only(call: Call, **_: str) -> NoReturn:
    raise Refusal.of("HUMAN_SESSION_REQUIRED", "an API key cannot change this")


_HUMAN = ("HUMAN_SESSION_REQUIRED",)


@routes.put(
    f"{_IN_PROJECT}/members/{{user}}",
    Operation("Change a member", answer=shapes.MemberItem, refuses=_HUMAN),
)
def put_member(call: Call, workspace: str, project: str, user: str) -> NoReturn:
    """Not with an API key; see the administration operations."""
    _human_only(call)


@routes.delete(
    f"{_IN_PROJECT}/members/{{user}}",
    Operation("Remove a member", answer=shapes.MemberItem, refuses=_HUMAN),
)
def delete_member(call: Call, workspace: str, project: str, user: str) -> NoReturn:
    """Not with an API key; see the administration operations."""
    _human_only(call)


@routes.patch(_IN_PROJECT, Operation("Change a project", answer=shapes.ProjectDetail, refuses=_HUMAN))
def patch_project(call: Call, workspace: str, project: str) -> NoReturn:
    """Not with an API key; see the administration operations."""
    _human_only(call)


@routes.post(
    f"{_IN_PROJECT}/archive", Operation("Archive a project", answer=shapes.ProjectDetail, refuses=_HUMAN)
)
def archive_project(call: Call, workspace: str, project: str) -> NoReturn:
    """Not with an API key."""
    _human_only(call)


@routes.get("/billing/account", Operation("Read the billing account", answer=shapes.BillingAccount))
def read_account(call: Call) -> shapes.BillingAccount:
    """This server bills nothing."""
    return shapes.BillingAccount(items=[])


def list_billing(call: Call) -> shapes.BillingList:
    """This server bills nothing: always empty."""
    return shapes.BillingList(items=[])


for _name in ("prices", "ledger", "usage"):
    routes.get(f"/billing/{_name}", Operation(f"List billing {_name}", answer=shapes.BillingList))(
        list_billing
    )


@routes.get(
    "/profiles", Operation("List named profiles", answer=Page[shapes.Candidate], params=(CURSOR, LIMIT))
)
def list_profiles(call: Call) -> Page[shapes.Candidate]:
    """This server keeps no named profiles: always empty."""
    page_limit(call.query)
    open_cursor(call.services.seal, "profiles", call.query)
    return Page(items=[])


_NO_PROFILE = ("PROFILE_NOT_FOUND",)


@routes.post("/profiles", Operation("Create a profile", answer=shapes.Candidate, refuses=_NO_PROFILE))
def create_profile(call: Call) -> NoReturn:
    """This server keeps no named profiles."""
    raise Refusal.of("PROFILE_NOT_FOUND", "this server keeps no named profiles")


def profile_operation(call: Call, name: str) -> NoReturn:
    """This server keeps no named profiles."""
    raise Refusal.of("PROFILE_NOT_FOUND", f"there is no profile `{name[:80]}`", path="name")


for _method, _path, _summary in (
    (routes.get, "/profiles/{name}/versions", "List a profile's versions"),
    (routes.get, "/profiles/{name}/detail", "Read a profile"),
    (routes.delete, "/profiles/{name}/detail", "Archive a profile"),
    (routes.put, "/profiles/{name}/default", "Choose a profile's default"),
    (routes.post, "/profiles/{name}/secrets/model_api_key/revoke", "Revoke a profile's secret"),
):
    _method(_path, Operation(_summary, answer=shapes.Candidate, refuses=_NO_PROFILE))(profile_operation)


def _item(row: Project) -> shapes.ProjectItem:
    return shapes.ProjectItem(project_id=row.id, workspace_id=WORKSPACE_ID, name=row.name)


def _check_workspace(workspace: str) -> None:
    if workspace != WORKSPACE_ID:
        raise Refusal.of("WORKSPACE_ACCESS_DENIED", f"the key belongs to workspace `{WORKSPACE_ID}`")


def _project(call: Call, connection: Connection, workspace: str, project: str) -> Project:
    """The project in the path, which must be the key's; the owner key may read any."""
    _check_workspace(workspace)
    if project != call.project and not call.principal.owner:
        raise Refusal.of("PROJECT_ACCESS_DENIED", f"the key belongs to project `{call.project}`")
    found = access.find_project(connection, project)
    if found is None:
        raise Refusal.of("PROJECT_ACCESS_DENIED", f"there is no project `{project[:80]}`")
    return found
