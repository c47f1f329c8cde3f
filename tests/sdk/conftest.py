"""A scripted server and a client of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.fake_server import FakeServer, Handler, Reply
from trainshed import Client
from trainshed.sdk import RetryPolicy

QUICK = RetryPolicy(attempts=4, first=0.001, longest=0.002)
Serve = Callable[..., tuple[FakeServer, Client]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that answers as scripted; the server and a client of it."""
    opened: list[FakeServer | Client] = []

    def make(routes: dict[str, Reply | Handler], **options: object) -> tuple[FakeServer, Client]:
        server = FakeServer(routes)
        server.__enter__()
        client = Client(server.url, "key-1", **{"retry": QUICK, **options})
        opened.extend((server, client))
        return server, client

    yield make
    for each in reversed(opened):
        each.__exit__(None, None, None)
