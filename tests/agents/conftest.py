"""One server and one agent for all tests of a module; each test has a project of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.agents import Agent
from support.projects import project
from support.server import ServerProcess

NewProject = Callable[..., Path]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """This user's server, with one simulated GPU and nobody logged in anywhere."""
    made = ServerProcess(tmp_path_factory.mktemp("agents") / "server", gpus="H100:1")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def agent(server: ServerProcess) -> Iterator[Agent]:
    with Agent(server.environment) as made:
        yield made


_NUMBERS = itertools.count(1)


@pytest.fixture
def new_project(tmp_path: Path) -> NewProject:
    """Makes a git repository; scripts end at once unless they say otherwise."""

    def make(files: Mapping[str, str | bytes] | None = None, **more: str | bytes) -> Path:
        place = tmp_path / f"proj{next(_NUMBERS)}"
        return project(place, {"train.py": "print('trained')\n", **(files or {}), **more})

    return make
