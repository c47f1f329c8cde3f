"""The catalogue: regions, clusters, pools, specs, quotas and the rest that tasks choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainshed.sdk.answers import Raw, mapping, moment, text
from trainshed.sdk.transport import Transport, route


@dataclass(frozen=True, slots=True)
class CatalogRevision:
    """One state of the catalogue. Revision 0 was made by the server from what its machine has."""

    revision: int
    document: Mapping[str, Any]
    """As `Catalog.apply` takes it; secrets are masked, and a masked one means the stored one."""
    applied_at: datetime | None
    applied_by: str
    raw: Raw = field(repr=False)


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """One difference, with nothing secret in it."""

    action: str
    """added, removed, changed or reordered."""
    what: str
    details: str

    def __str__(self) -> str:
        return f"{self.action} {self.what}" + (f": {self.details}" if self.details else "")


@dataclass(frozen=True, slots=True)
class CatalogApplied:
    """What applying a catalogue came to."""

    revision: int
    """The revision that counts now."""
    changes: tuple[CatalogChange, ...]
    applied: bool
    """False for a dry run, and where nothing differs."""
    raw: Raw = field(repr=False)


class Catalog:
    """``client.catalog``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def show(self) -> CatalogRevision:
        """The catalogue in force."""
        document = mapping(self._transport.call("GET", route("catalog")), "a catalogue")
        return CatalogRevision(
            revision=_revision(document),
            document=mapping(document.get("document"), "a catalogue"),
            applied_at=moment(document, "applied_at"),
            applied_by=text(document, "applied_by"),
            raw=document,
        )

    def apply(
        self,
        document: Mapping[str, Any],
        *,
        expected_revision: int | None = None,
        dry_run: bool = False,
    ) -> CatalogApplied:
        """Make ``document`` the catalogue; needs the owner key. Without a difference nothing is stored.

        ``expected_revision`` is the one that was looked at: another one that came meanwhile raises `Conflict`
        ``PRECONDITION_FAILED``. ``dry_run`` only answers what would change. Raises `ApiError` with every
        fault at once.
        """
        body: dict[str, Any] = {"document": dict(document), "dry_run": dry_run}
        if expected_revision is not None:
            body["expected_revision"] = expected_revision
        answer = mapping(self._transport.call("PUT", route("catalog"), body=body), "a catalogue")
        changes = answer.get("changes")
        return CatalogApplied(
            revision=_revision(answer),
            changes=tuple(_change(each) for each in changes) if isinstance(changes, list) else (),
            applied=answer.get("applied") is True,
            raw=answer,
        )


def _revision(document: Raw) -> int:
    value = document.get("revision")
    return value if isinstance(value, int) else 0


def _change(raw: Any) -> CatalogChange:
    document = mapping(raw, "a change")
    return CatalogChange(text(document, "action"), text(document, "what"), text(document, "details"))
