"""Deployments inside the test process, on each kind of database."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.databases import KINDS
from support.deployment import Deployment, FakeDeployment, LocalDeployment
from trainshed.store.database import Database


@pytest.fixture(scope="module", params=KINDS)
def reused_database(request: pytest.FixtureRequest, quick_folder: Path) -> Iterator[Database]:
    """One database of each kind for the many short runs of a module, which empty it themselves."""
    if request.param == "sqlite":
        folder = quick_folder / uuid.uuid4().hex
        folder.mkdir()
        path = shutil.copyfile(request.getfixturevalue("_migrated_sqlite"), folder / "database.sqlite")
        opened = Database(f"sqlite:///{path}")
        yield opened
        opened.close()
        shutil.rmtree(folder)
        return
    cluster = request.getfixturevalue("postgres")
    template = request.getfixturevalue("_migrated_postgres")
    opened = Database(cluster.create_database("reused", template))
    yield opened
    opened.close()
    cluster.drop_database("reused")


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
