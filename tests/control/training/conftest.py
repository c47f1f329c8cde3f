"""Deployments that run training tasks, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.gangs import GangDeployment
from trainshed.store.database import Database


@pytest.fixture
def site(database: Database, tmp_path) -> Iterator[Callable[..., GangDeployment]]:
    """Makes a deployment of two nodes with four GPUs each, on the fake engine, in virtual time."""
    made: list[GangDeployment] = []

    def make(**options: object) -> GangDeployment:
        deployment = GangDeployment(database, tmp_path / "site", **options)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()
