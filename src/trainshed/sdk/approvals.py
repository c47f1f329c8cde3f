"""Questions to people, approval rules, providers and secrets (contract G, c, g, h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainshed.sdk.answers import Page, Raw, mapping, page
from trainshed.sdk.script_objects import Plain, plain
from trainshed.sdk.transport import Transport, route


class Approvals:
    """``client.approvals``: questions about Jobs of every kind. Agents can answer none (P13)."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        only_open: bool = False,
        job: str | None = None,
        cursor: str | None = None,
        limit: int = 25,
    ) -> Page[Raw]:
        """One page, newest first; with ``job`` (an id, digits or a prefix of them) those about it."""
        query = {"open": "1" if only_open else None, "job": job, "cursor": cursor, "limit": limit}
        found = self._transport.call("GET", route("approvals"), query=query)
        return page(found, lambda raw: mapping(raw, "a question"))

    def get(self, approval_id: int) -> Plain:
        return plain(self._transport.call("GET", route("approvals", str(approval_id))))

    def challenge(self, approval_id: int) -> Plain:
        """Have the server show a one-time code on this process's own terminal: ``channel`` says where.

        Raises `PermissionRefused` ``FORBIDDEN`` where an agent may be behind this process, or it is not in
        the foreground of a terminal of the server's machine.
        """
        path = route("approvals", str(approval_id), "challenge")
        return plain(self._transport.call("POST", path, content=b"", repeatable=True))

    def answer(
        self, approval_id: int, *, approve: bool, code: str | None = None, note: str | None = None
    ) -> Plain:
        """Answer a question; a yes on a person's own server needs the ``code`` that was shown.

        Raises `PermissionRefused` ``FORBIDDEN``, `Conflict` ``INVALID_TRANSITION`` where it was answered.
        """
        body: dict[str, Any] = {"answer": "approved" if approve else "denied"}
        body |= {key: value for key, value in (("code", code), ("note", note)) if value is not None}
        path = route("approvals", str(approval_id), "answer")
        # Safe to repeat: the same answer again changes nothing.
        return plain(self._transport.call("POST", path, body=body, repeatable=True))


class ApprovalRules:
    """``client.approval_policy``: when a person is asked, in this project."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self) -> Plain:
        """``policy``: all rules as they count; ``changed``: those that are not the defaults."""
        return plain(self._transport.call("GET", route("approval-policy")))

    def put(self, document: Mapping[str, Any]) -> Plain:
        """Replace the rules; what is left out has its default. For admins, and never for agents."""
        return plain(self._transport.call("PUT", route("approval-policy"), body=dict(document)))

    def reset(self) -> Plain:
        """Back to the defaults."""
        return plain(self._transport.call("DELETE", route("approval-policy")))


class Providers:
    """``client.providers``: the places where script Jobs run."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Plain:
        """``items``: every provider as it was when it was asked last."""
        return plain(self._transport.call("GET", route("providers")))

    def check(self, name: str) -> Plain:
        """Ask a provider now whether it can be used."""
        path = route("providers", name, "healthcheck")
        return plain(self._transport.call("POST", path, content=b"", repeatable=True, timeout=90.0))

    def quota(self, *, refresh: bool = False) -> Plain:
        """``quota`` and a sentence for each in ``summary``; ``refresh`` asks the providers first."""
        query = {"refresh": "1" if refresh else None}
        timeout = 150.0 if refresh else None
        return plain(self._transport.call("GET", route("provider-quota"), query=query, timeout=timeout))


class Secrets:
    """``client.secrets``: values that Jobs list by name. They are never answered."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Plain:
        """``items``: the names of your secrets in this project."""
        return plain(self._transport.call("GET", route("secrets")))

    def put(self, name: str, value: str) -> Plain:
        """Keep a value; one of that name is replaced. For people only."""
        return plain(self._transport.call("PUT", route("secrets", name), body={"value": value}))

    def remove(self, name: str) -> None:
        """Forget a secret. Raises `NotFound` ``SECRET_NOT_FOUND``."""
        self._transport.call("DELETE", route("secrets", name))
