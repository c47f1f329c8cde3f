"""Deployments with providers in memory, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.cloud import CloudDeployment
from trainshed.store.database import Database


@pytest.fixture
def cloud(database: Database, tmp_path) -> Iterator[Callable[..., CloudDeployment]]:
    """Makes a deployment with one provider elsewhere, in virtual time."""
    made: list[CloudDeployment] = []

    def make(**options: object) -> CloudDeployment:
        deployment = CloudDeployment(database, tmp_path / "cloud", **options)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()
