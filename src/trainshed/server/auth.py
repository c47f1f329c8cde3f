"""Who asks: a bearer key, its project, and the scope headers that may only confirm it (contract E a)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainshed.model.access import KEY_TEXT, WORKSPACE_ID, Permission, Principal, key_hash
from trainshed.model.errors import Refusal
from trainshed.store import access
from trainshed.store.database import Database


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The hash of the key in the Authorization header, ``None`` where there is none that could be one."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    text = text.strip()
    if scheme.lower() != "bearer" or not KEY_TEXT.fullmatch(text):
        return None
    return key_hash(text)


def authenticate(database: Database, headers: Mapping[str, str], *, at: float) -> Principal:
    """The principal of a request; raises `Refusal`: 401 for no or a bad key, 403 for a foreign scope."""
    hashed = presented_key(headers)
    if hashed is None:
        said = "is not `Bearer KEY`" if "authorization" in headers else "is missing"
        raise Refusal.of("AUTHENTICATION_REQUIRED", f"the Authorization header {said}")
    with database.read() as connection:
        principal = held(access.find_principal(connection, hashed, at=at))
    check_scope(principal, headers)
    return principal


def held(principal: Principal | None) -> Principal:
    """The principal that a key was found to be; raises `Refusal` 401 where it was found to be none."""
    if principal is None:
        raise Refusal.of("AUTHENTICATION_REQUIRED", "the key is unknown, expired or revoked")
    return principal


def check_scope(principal: Principal, headers: Mapping[str, str]) -> None:
    """Refuse scope headers that name another workspace or project than the key's."""
    workspace = headers.get("x-workspace-id")
    if workspace is not None and workspace != WORKSPACE_ID:
        raise Refusal.of(
            "WORKSPACE_ACCESS_DENIED", f"the key belongs to workspace `{WORKSPACE_ID}`", path="X-Workspace-Id"
        )
    project = headers.get("x-project-id")
    if project is not None and project != principal.project_id:
        raise Refusal.of(
            "PROJECT_ACCESS_DENIED",
            f"the key belongs to project `{principal.project_id}`",
            path="X-Project-Id",
        )


def require(principal: Principal, any_of: Collection[Permission]) -> None:
    """Raise `Refusal` ``PERMISSION_DENIED`` unless the key holds one of these permissions."""
    if any_of and not any(principal.may(permission) for permission in any_of):
        wanted = " or ".join(f"`{permission}`" for permission in any_of)
        raise Refusal.of("PERMISSION_DENIED", f"the key does not hold {wanted}")
