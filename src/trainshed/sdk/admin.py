"""Projects, their members and their keys. Needs the permission ``admin``.

Answers are the server's own objects (plain mappings): this surface is ours alone and grows with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainshed.sdk.answers import Page, mapping, page
from trainshed.sdk.transport import Transport, route

Document = Mapping[str, Any]


class Projects:
    """``client.projects``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Page[Document]:
        """The projects that this key may administer."""
        return page(self._transport.call("GET", route("admin", "projects")), _document)

    def get(self, project_id: str) -> Document:
        return _document(self._transport.call("GET", route("admin", "projects", project_id)))

    def create(
        self,
        project_id: str,
        *,
        name: str | None = None,
        priority: int | None = None,
        max_gpus: int | None = None,
        budget_gpu_hours: float | None = None,
        max_content_bytes: int | None = None,
    ) -> Document:
        """Create a project; limits left out are unlimited."""
        body = {
            "project_id": project_id,
            "name": name or project_id,
            "priority": priority,
            "max_gpus": max_gpus,
            "budget_gpu_hours": budget_gpu_hours,
            "max_content_bytes": max_content_bytes,
        }
        answer = self._transport.call("POST", route("admin", "projects"), body=_given(body))
        return _document(answer)

    def set(self, project_id: str, changes: Mapping[str, Any]) -> Document:
        """Change ``name``, ``priority`` or a limit (``None`` = unlimited).

        Limits are ``max_gpus``, ``budget_gpu_hours`` and ``max_content_bytes``.
        """
        path = route("admin", "projects", project_id)
        return _document(self._transport.call("PATCH", path, body=dict(changes), repeatable=True))


class Members:
    """``client.members``: people of a project."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, project_id: str) -> Page[Document]:
        return page(self._transport.call("GET", _members(project_id)), _document)

    def set(self, project_id: str, user: str, role: str) -> Document:
        """Add a member or change the role: ``viewer``, ``developer`` or ``admin``."""
        path = _members(project_id, user)
        return _document(self._transport.call("PUT", path, body={"role": role}))

    def remove(self, project_id: str, user: str) -> None:
        self._transport.call("DELETE", _members(project_id, user))


class Keys:
    """``client.keys``: API keys of a project. A key's text is shown once, when it is made."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, project_id: str) -> Page[Document]:
        return page(self._transport.call("GET", _keys(project_id)), _document)

    def create(
        self,
        project_id: str,
        *,
        label: str,
        kind: str = "human",
        role: str | None = None,
        permissions: Sequence[str] | None = None,
        user: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> Document:
        """Make a key with the permissions named, or those of a role; ``key`` holds its text.

        Not repeated after a lost answer: list the keys and revoke the one whose text nobody has.
        """
        body = {
            "label": label,
            "kind": kind,
            "role": role,
            "permissions": None if permissions is None else list(permissions),
            "user": user,
            "expires_in_seconds": expires_in_seconds,
        }
        answer = self._transport.call("POST", _keys(project_id), body=_given(body), repeatable=False)
        return _document(answer)

    def revoke(self, project_id: str, key_id: str) -> None:
        """End a key at once."""
        self._transport.call("DELETE", _keys(project_id, key_id))


def _document(raw: Any) -> Document:
    return mapping(raw, "an object")


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _members(project_id: str, *more: str) -> str:
    return route("admin", "projects", project_id, "members", *more)


def _keys(project_id: str, *more: str) -> str:
    return route("admin", "projects", project_id, "keys", *more)
