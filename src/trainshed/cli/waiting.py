"""Waiting for a Job, in several commands."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainshed.cli.follow import RELEASE_SECONDS
from trainshed.cli.session import Session, interactive

if TYPE_CHECKING:
    from trainshed.sdk import Client, Job, Task


@dataclass
class Deadline:
    """The time that several steps of one command may take together; ``None`` = as long as they need."""

    seconds: float | None
    start: float = field(default_factory=time.monotonic)

    def left(self) -> float | None:
        """Seconds that are left, at least 0."""
        return None if self.seconds is None else max(0.0, self.start + self.seconds - time.monotonic())


def wait_for(
    session: Session, client: Client, job_id: str, timeout: float | None, *, released: bool = False
) -> Job:
    """Wait for a Job, with a moving sign for a person at a terminal."""
    if session.json or session.quiet or not interactive():
        return client.jobs.wait(job_id, timeout=timeout, released=released)
    from rich.console import Console  # noqa: PLC0415 - only for a person at a terminal

    with Console(stderr=True).status(f"waiting for {job_id}"):
        return client.jobs.wait(job_id, timeout=timeout, released=released)


def await_release(client: Client, ended: Job | Task, left: float | None) -> None:
    """Give the proof of release, which comes right after the end, a moment to be part of the answer."""
    from trainshed.sdk.errors import WaitTimeout  # noqa: PLC0415 - click only at import time

    bound = RELEASE_SECONDS if left is None else min(RELEASE_SECONDS, left)
    with contextlib.suppress(WaitTimeout):
        client.jobs.wait(ended.job_id, timeout=bound, released=True)
