"""Proofs of training tasks end to end: a real server, real programs, and PyTorch where it is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess
from training.live import Live


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Live]:
    """A server that the tests of one module share: eight simulated H100, a volume, evictions at once."""
    folder = tmp_path_factory.mktemp(re.sub(r"\W+", "-", request.module.__name__))

    def new(**options: object) -> ServerProcess:
        return ServerProcess(folder / "server", **options)

    made = Live.make(new, folder, settings=["min_run_seconds = 0.0"])
    yield made
    if request.session.testsfailed:
        print(f"--- log of the server ---\n{made.server.tail()}")  # noqa: T201 - as the other servers
    try:
        made.end_everything()
    finally:
        if made.server.running:
            made.server.stop()


@pytest.fixture
def own(new_server: Callable[..., ServerProcess], tmp_path: Path) -> Iterator[Live]:
    """The same for one test alone, which may break it."""
    made = Live.make(new_server, tmp_path)
    yield made
    made.end_everything()
