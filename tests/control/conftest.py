"""Deployments inside the test process, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.deployment import Deployment, FakeDeployment, LocalDeployment
from trainshed.store.database import Database


@pytest.fixture
def fake(database: Database, tmp_path) -> Iterator[Callable[..., FakeDeployment]]:
    """Makes the deployment on the fake engine, in virtual time."""
    made: list[Deployment] = []

    def make(**options: object) -> FakeDeployment:
        deployment = FakeDeployment(database, tmp_path / "fake", **options)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()


@pytest.fixture
def local(database: Database, tmp_path) -> Iterator[Callable[..., LocalDeployment]]:
    """Makes the deployment on the local engine: real programs."""
    made: list[Deployment] = []

    def make(**options: object) -> LocalDeployment:
        deployment = LocalDeployment(database, tmp_path / "local", **options)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()
