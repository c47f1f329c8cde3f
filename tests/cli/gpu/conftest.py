"""One server for all tests of the `gpu` command line; each test has a project of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.gpu_line import Line
from support.projects import project
from support.server import ServerProcess

NewProject = Callable[..., Path]


@pytest.fixture(scope="session")
def gpu_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """This user's server, with nobody logged in anywhere."""
    made = ServerProcess(tmp_path_factory.mktemp("gpu-line") / "server", gpus="H100:1")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def gpu(gpu_server: ServerProcess) -> Line:
    """The program, talking to that server."""
    return Line(gpu_server.environment)


_NUMBERS = itertools.count(1)


@pytest.fixture
def new_project(tmp_path: Path) -> NewProject:
    """Makes a git repository; scripts end at once unless they say otherwise."""

    def make(files: Mapping[str, str | bytes] | None = None) -> Path:
        place = tmp_path / f"proj{next(_NUMBERS)}"
        return project(place, {"train.py": "print('trained')\n", **(files or {})})

    return make
