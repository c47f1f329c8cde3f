"""Who calls, as contract G asks: an agent or a user, and through which door (c.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.model.access import KeyKind, Principal

HEADER = "trainshed-source"
"""``agent``, ``cli``, ``shell`` or ``api``: what a client says of itself. There is no way to opt out."""
AGENT, USER = "agent", "user"
_WORDS: Mapping[str, str] = {"cli": "user:cli", "shell": "user:shell"}


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal, and what its client said of itself."""

    principal: Principal
    said: str = "api"

    @property
    def is_agent(self) -> bool:
        """Whether an agent calls: by its key, or by its own word."""
        return self.principal.kind is KeyKind.AGENT or self.said == AGENT

    @property
    def source(self) -> str:
        """By whose rules its Jobs are judged: ``agent`` or ``user``."""
        return AGENT if self.is_agent else USER

    @property
    def actor_word(self) -> str:
        """How events of section b name it."""
        return AGENT if self.is_agent else _WORDS.get(self.said, "api")

    @property
    def person(self) -> str:
        return self.principal.person

    @property
    def project_id(self) -> str:
        return self.principal.project_id


def caller_of(principal: Principal, headers: Mapping[str, str]) -> Caller:
    """The caller of a request."""
    return Caller(principal, headers.get(HEADER, "api").strip().lower())
