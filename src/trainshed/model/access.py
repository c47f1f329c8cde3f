"""Who may do what: permissions, roles, kinds of keys, scopes."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

KEY_TEXT = re.compile(r"[A-Za-z0-9._~-]{1,512}")
PROJECT_ID = re.compile(r"[A-Za-z0-9_:-]{1,128}")
WORKSPACE_ID = "default"
"""This server is one workspace (contract E a asks for an id)."""


class Permission(StrEnum):
    """What a key may do inside its project."""

    TRAINING_RUN = "training.run"
    TRAINING_STOP = "training.stop"
    TRAINING_READ = "training.read"
    RUNNER_READ = "runner.read"
    RUNNER_PUBLISH = "runner.publish"
    CONTENT_READ = "content.read"
    CONTENT_PUBLISH = "content.publish"
    """Datasets, Models, Recipes and Plugins; Checkpoints may be pinned and deleted."""
    ADMIN = "admin"
    """Members, keys and visibility of the project."""


class KeyKind(StrEnum):
    """Who holds a key. No key of an agent can approve anything (promise P13)."""

    HUMAN = "human"
    SERVICE = "service"
    AGENT = "agent"


class Role(StrEnum):
    """A member's role in a project."""

    VIEWER = "viewer"
    DEVELOPER = "developer"
    ADMIN = "admin"


P = Permission
ROLE_PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({P.TRAINING_READ, P.RUNNER_READ, P.CONTENT_READ}),
    Role.DEVELOPER: frozenset(P) - {P.ADMIN},
    Role.ADMIN: frozenset(Permission),
}


class Visibility(StrEnum):
    """Who may read a Runner or a content."""

    PUBLIC = "public"
    PROJECT = "project"
    PROJECTS = "projects"
    """The owner and the projects named."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever a request comes from: a key, its project and what it may do."""

    key_id: str
    project_id: str
    kind: KeyKind
    permissions: frozenset[Permission]
    owner: bool = False
    """The server's owner key: may administer every project and publish in any namespace."""
    label: str = ""
    user: str | None = None
    """The member for whom the key was made."""

    def may(self, permission: Permission) -> bool:
        return self.owner or permission in self.permissions

    @property
    def actor(self) -> str:
        """How events name this principal."""
        return f"{self.kind}:{self.label or self.key_id}"

    @property
    def person(self) -> str:
        """Who owns what is made with this key: its member, whatever key they use, or else the key itself."""
        return self.user or self.actor


def new_key_text(prefix: str = "tsk") -> str:
    """A fresh secret key; it is shown once and only its hash is stored."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def key_hash(text: str) -> str:
    """What is stored of a key: SHA-256 in hex. The keys are random, so no salt is needed."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
