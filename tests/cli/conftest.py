"""Running the command line in this process against a scripted server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from support.fake_server import FakeServer, Handler, Reply
from trainshed.cli.main import main
from trainshed.sdk.transport import RetryPolicy


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the program: exit status and what it printed."""

    status: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


Run = Callable[..., Ran]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No server of this machine's user, no waiting between repetitions."""
    for name in (
        "TRAINSHED_URL",
        "TRAINSHED_API_KEY",
        "TRAINSHED_PROJECT",
        "ENVLOOP_BASE_URL",
        "ENVLOOP_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINSHED_NO_AUTOSTART", "1")
    monkeypatch.setattr(RetryPolicy, "pause", lambda _self, _attempt: 0.001)


@pytest.fixture
def run(quiet, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the program with these arguments."""

    def run(*arguments: str, program: str = "trainshed") -> Ran:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        capfdbinary.readouterr()
        status = main(arguments)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Ran(int(status), out, err.decode())

    return run


@pytest.fixture
def fake(quiet, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A scripted server that the program finds by its environment; set its ``routes``."""
    with FakeServer({}) as server:
        monkeypatch.setenv("TRAINSHED_URL", server.url)
        monkeypatch.setenv("TRAINSHED_API_KEY", "key-1")
        yield server


__all__ = ["FakeServer", "Handler", "Ran", "Reply", "Run"]
