"""A Job's manifest (`trainshed.model.provenance`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape


class JobManifest(Shape):
    """Everything that was frozen of a Job, and what came of it. `docs/provenance.md` describes the parts."""

    schema_: Literal["trainshed.job-manifest/1"] = Field("trainshed.job-manifest/1", alias="schema")
    digest: str = Field(
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the canonical JSON of `frozen`: sorted keys, no spaces, ASCII.",
    )
    frozen: dict[str, Any] = Field(
        description="`schema`, `job`, `request`, `runner_files` by snapshot, `trials`; a Trial has a "
        "`script` where it is a packed project, a `task` where it is a training task. Never changes."
    )
    outcome: dict[str, Any] = Field(description="`status`, and of each Trial how it ended and what it made.")
