"""Looking at terminals in tests: what a shell printed, whichever end it is read from."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from typing import Any

from trainshed.engines import Shell
from trainshed.sdk.websocket import WebSocket

_SECONDS = 60.0


def shown(shell: Shell, text: bytes) -> bytes:
    """What an engine's shell prints until ``text`` is among it."""
    found, deadline = b"", time.monotonic() + _SECONDS
    while text not in found:
        assert time.monotonic() < deadline, f"{text!r} never came: {found!r}"
        if select.select([shell.terminal], [], [], 1)[0]:
            with contextlib.suppress(BlockingIOError):
                found += os.read(shell.terminal, 65536)
    return found


def ending(shell: Shell) -> int | None:
    """How an engine's shell ends."""
    assert select.select([shell.ended], [], [], _SECONDS)[0], "it never ends"
    return shell.exit_code()


class Screen:
    """What comes out of a `WebSocket` with a shell behind it."""

    def __init__(self, connection: WebSocket) -> None:
        self.connection = connection
        self.text = b""
        self.said: list[dict[str, Any]] = []

    def type(self, text: str) -> None:
        self.connection.send(text.encode())

    def until(self, text: bytes) -> bytes:
        """Everything new up to where ``text`` is there."""
        while text not in self.text:
            assert self.step(), f"it ended without {text!r}: {self.text!r}"
        before, _, self.text = self.text.partition(text)
        return before + text

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while self.step():
            pass
        return self.text

    def step(self) -> bool:
        message = self.connection.receive()
        if isinstance(message, bytes):
            self.text += message
        elif message is not None:
            self.said.append(json.loads(message))
        return message is not None
