"""Who am I, the workspace and its projects, administration (contract E a, b11)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape, Time

RoleWord = Literal["viewer", "developer", "admin"]


class Workspace(Shape):
    """The server's one workspace."""

    workspace_id: str
    name: str


class ProjectItem(Shape):
    """A project by name."""

    project_id: str
    workspace_id: str
    name: str


class Me(Shape):
    """Who presents the key, and what it may do."""

    auth_method: Literal["api_key"] = "api_key"
    workspace_id: str
    project_id: str
    workspace: Workspace
    project: ProjectItem
    permissions: list[str]
    key_id: str
    kind: Literal["human", "service", "agent"]
    label: str
    owner: bool


class ProjectDetail(ProjectItem):
    """A project as its members see it."""

    slug: str
    region: str | None = None
    version: int = 1
    created_at: Time


class Limits(Shape):
    """What a project may use, and what it uses now. Null limits mean unlimited."""

    project_id: str
    max_gpus: int | None
    gpus_in_use: int
    budget_gpu_hours: float | None
    used_gpu_hours: float
    max_content_bytes: int | None
    content_bytes: int = Field(description="Of published content that is not withdrawn, each manifest once.")
    priority: int


class MemberItem(Shape):
    """A member of a project."""

    user: str
    project_role: RoleWord
    access_source: Literal["project"] = "project"
    status: Literal["active"] = "active"
    version: int
    added_at: Time


class Candidate(Shape):
    """A person who could become a member."""

    user: str


class BillingAccount(Shape):
    """This server bills nothing."""

    currency: Literal["USD"] = "USD"
    balance_usd: None = None
    items: list[dict[str, Any]]


class BillingList(Shape):
    """This server bills nothing: always empty."""

    items: list[dict[str, Any]]
    next_cursor: None = None


class ProjectAdmin(Shape):
    """A project with its limits, for administrators. Null limits mean unlimited."""

    project_id: str
    name: str
    priority: int
    max_gpus: int | None
    budget_gpu_hours: float | None
    used_gpu_hours: float
    max_content_bytes: int | None
    content_bytes: int | None = Field(
        default=None, description="What its published content uses of that; null in lists."
    )
    created_at: Time


class MemberAdmin(Shape):
    """A member as administrators see it."""

    user: str
    role: RoleWord
    version: int
    added_at: Time
    added_by: str


class MemberRemoved(Shape):
    """A removed member; the keys made for that person are revoked."""

    user: str
    removed: Literal[True] = True


class KeyItem(Shape):
    """An API key; the secret itself is shown once, at creation."""

    key_id: str
    project_id: str
    kind: Literal["human", "service", "agent"]
    label: str
    user: str | None
    permissions: list[str]
    owner: bool
    created_at: Time
    created_by: str
    expires_at: Time | None
    revoked_at: Time | None


class NewKey(KeyItem):
    """A new key with its secret, which is stored nowhere and never shown again."""

    key: str = Field(pattern="^[A-Za-z0-9._~-]{1,512}$")
