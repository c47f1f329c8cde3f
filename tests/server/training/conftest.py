"""Training tasks at the doors: a site whose machine has eight simulated GPUs, and people who use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.site import Site
from support.tasks import task_document
from trainshed.model.access import Permission

READ_AND_RUN = (Permission.TRAINING_READ, Permission.TRAINING_RUN, Permission.TRAINING_STOP)


@pytest.fixture
def submit(site: Site) -> Callable[..., dict[str, Any]]:
    """Submit a task that must be accepted; answers what the server said."""

    def make(key: str | None = None, **changes: Any) -> dict[str, Any]:
        answer = site.post("/v1/jobs", task_document(**changes), key=key)
        assert answer.status_code == 201, answer.text
        return answer.json()

    return make


@pytest.fixture
def person(site: Site) -> Callable[..., str]:
    """A key of a member by name."""

    def make(user: str, *permissions: Permission, project: str = "default") -> str:
        return site.add_key(
            project, *(permissions or READ_AND_RUN), user=user, kind="human", label=f"{user}-laptop"
        )

    return make
