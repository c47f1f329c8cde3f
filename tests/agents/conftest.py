"""One server and one agent for all tests of a module; each test has a project of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.agents import Agent
from support.person import Person
from support.projects import project
from support.server import ServerProcess

NewProject = Callable[..., Path]


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """This user's server, with one simulated GPU and nobody logged in anywhere.

    A module's ``FAKE`` is what there is at a provider in memory, which the server then uses besides.
    """
    folder = tmp_path_factory.mktemp("agents")
    world, options = getattr(request.module, "FAKE", None), ()
    if world is not None:
        place = folder / "server" / "providers" / "fake"
        place.mkdir(parents=True)
        (place / "world.json").write_text(json.dumps(world))
        (folder / "config.toml").write_text('[providers]\nuse = ["fake"]\n')
        options = ("--config", str(folder / "config.toml"))
    made = ServerProcess(folder / "server", gpus="H100:1", options=options)
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


@pytest.fixture
def person(server: ServerProcess, tmp_path: Path) -> Iterator[Person]:
    """Somebody at a terminal of this machine, whom no agent stands behind."""
    made = Person(tmp_path / "person", server.url, server.key)
    yield made
    made.close()
