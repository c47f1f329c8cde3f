"""Deployments with providers in memory, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.cloud import CloudDeployment
from support.clusters import ClusterDeployment
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


@pytest.fixture
def ray(database: Database, tmp_path) -> Iterator[Callable[..., ClusterDeployment]]:
    """Makes a deployment whose only place for packed projects is a cluster with one node of two GPUs."""
    made: list[ClusterDeployment] = []

    def make(**options: object) -> ClusterDeployment:
        deployment = ClusterDeployment(database, tmp_path / "site", **options)
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.close()
