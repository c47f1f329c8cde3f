"""Training tasks (contract C)."""

from __future__ import annotations

from pydantic import Field

from trainshed.server.shapes.common import Shape


class Warned(Shape):
    """Something about a task that is allowed and may not be meant."""

    code: str
    path: str
    message: str


class SubmittedTask(Shape):
    """What a submission answers (C55)."""

    job_id: str
    trial_id: str
    task_uuid: str
    name: str
    kind: str
    state: str = Field(description="The page's word.", examples=["Queuing"])
    position: int | None = Field(description="Its place in its queue, from 1; null until it is known.")
    warnings: list[Warned]
