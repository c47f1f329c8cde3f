"""Artifacts: deleting them (contract E b6). `Trials` lists and downloads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainshed.sdk.answers import Raw, mapping
from trainshed.sdk.errors import InvalidAnswer
from trainshed.sdk.transport import Transport, route


@dataclass(frozen=True, slots=True)
class DeletedArtifacts:
    """What was deleted, or would be."""

    count: int
    bytes: int
    kept_bytes: int
    """Of ``bytes``: what Checkpoints keep that are not deleted."""
    raw: Raw = field(repr=False)


class Artifacts:
    """``client.artifacts``: giving up what Trials produced."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def delete_of_trial(
        self, trial_id: str, *, name: str | None = None, dry_run: bool = False
    ) -> DeletedArtifacts:
        """Delete the Artifacts of a Trial that has ended, or those whose names match the pattern ``name``.

        They stay listed, as ``deleted``; the bytes go when nothing else needs them. Repeatable. ``dry_run``
        only says what would be deleted. Raises `Conflict` (``RESOURCE_IN_USE``) until the Trial has ended.
        """
        return self._delete(route("trials", trial_id, "artifacts"), name, dry_run=dry_run)

    def delete_of_job(
        self, job_id: str, *, name: str | None = None, dry_run: bool = False
    ) -> DeletedArtifacts:
        """As `delete_of_trial`, of all Trials of a Job."""
        return self._delete(route("jobs", job_id, "artifacts"), name, dry_run=dry_run)

    def _delete(self, path: str, name: str | None, *, dry_run: bool) -> DeletedArtifacts:
        query = {"name": name, "dry_run": "true" if dry_run else None}
        document = mapping(self._transport.call("DELETE", path, query=query), "what was deleted")
        return DeletedArtifacts(
            _number(document, "artifacts"),
            _number(document, "size_bytes"),
            _number(document, "kept_bytes"),
            document,
        )


def _number(document: Raw, key: str) -> int:
    found: Any = document.get(key)
    if type(found) is not int or found < 0:
        raise InvalidAnswer(f"`{key}` of what was deleted is no number")
    return found
