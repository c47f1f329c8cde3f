"""A shell of an engine's at a WebSocket: what is typed, what is printed, and when it is over.

Binary messages are bytes of the terminal. Texts are JSON: ``{"resize": {"rows", "columns"}}`` and
``{"eof": true}`` from the client, ``{"exit_code": N}`` to it before the end. One piece is under way in each
direction at a time, so whoever does not read has the program wait, and nothing grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from trainshed.engines.shell import Shell
from trainshed.model.errors import Refusal
from trainshed.model.strict_json import decode_json

MOST_ROWS = 1000
_CHUNK = 16 << 10
_CHECK_SECONDS = 1.0
_LAST_BYTES, _LAST_SECONDS = 1 << 20, 0.03

_NORMAL, _UNSUPPORTED, _GOING_AWAY = 1000, 1003, 1001


class Terminal:
    """One shell and its WebSocket, which is accepted. ``recheck`` raises `Refusal` once nobody may go on."""

    def __init__(
        self, shell: Shell, socket: WebSocket, recheck: Callable[[], Awaitable[None]], idle_seconds: float
    ) -> None:
        self._shell = shell
        self._socket = socket
        self._recheck = recheck
        self._idle_seconds = idle_seconds
        self._active_at = time.monotonic()
        self._eof = asyncio.Event()
        self.said = ""
        """How it ended, for people."""

    async def run(self) -> None:
        """Until the shell or the connection ends; closes the connection."""
        code, reason = _NORMAL, ""
        try:
            await first_of(self._print(), self._type(), self._watch(), self._repeat_eof())
        except WebSocketDisconnect:
            self.said = "the connection ended"
            return
        except _Over as over:
            code, reason = over.code, over.reason
        except Refusal as refusal:
            self.said = refusal.message
            code, reason = 1008, refusal.code
        self.said = self.said or reason or "it ended with its replica"
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._socket.close(code, reason)

    async def _print(self) -> None:
        """Send what the shell prints, and at its end how it ended."""
        while not _is_readable(self._shell.ended):
            if data := self._read():
                await self._send(data)
            else:
                await _readable(self._shell.output, self._shell.ended)
        left = _LAST_BYTES  # something that it left behind may print for ever
        while left > 0:
            if not (data := self._read()):
                await asyncio.sleep(_LAST_SECONDS)  # the kernel hands on what is printed a moment later
                if not (data := self._read()):
                    break
            left -= len(data)
            await self._send(data)
        exit_code = self._shell.exit_code()
        if exit_code is None:
            raise _Over(_GOING_AWAY, "the shell ended with its replica")
        self.said = f"exit code {exit_code}"
        await self._socket.send_json({"exit_code": exit_code})
        raise _Over(_NORMAL, "")

    async def _send(self, data: bytes) -> None:
        self._active_at = time.monotonic()
        await self._socket.send_bytes(data)

    def _read(self) -> bytes:
        try:
            return os.read(self._shell.output, _CHUNK)
        except OSError:
            return b""  # nothing is there, or nobody has it open any more

    async def _type(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", _NORMAL))
            self._active_at = time.monotonic()
            data, text = message.get("bytes"), message.get("text")
            if data is not None:
                await self._write(data)
            elif text is not None:
                self._obey(text)

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._shell.terminal, view) :]
            except BlockingIOError:
                await _writable(self._shell.terminal)
            except OSError:
                return  # nobody has it open any more; how it ended is about to be told

    def _obey(self, text: str) -> None:
        try:
            said: Any = decode_json(text.encode())
        except Refusal:
            said = None
        match said:
            case {"resize": {"rows": int(rows), "columns": int(columns)}} if _sensible(rows, columns):
                with contextlib.suppress(OSError):
                    self._shell.resize(rows, columns)
            case {"eof": True}:
                self._eof.set()
            case _:
                raise _Over(_UNSUPPORTED, "a text must be a resize or an eof")

    async def _repeat_eof(self) -> None:
        """After the end of what is typed every reader finds that end, as at the end of a pipe."""
        await self._eof.wait()
        while True:
            with contextlib.suppress(OSError):
                self._shell.end_input()
            await asyncio.sleep(_CHECK_SECONDS)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self._recheck()
            if time.monotonic() - self._active_at > self._idle_seconds:
                raise _Over(_GOING_AWAY, f"idle for {self._idle_seconds:g} s")


class _Over(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def _sensible(rows: int, columns: int) -> bool:
    return 1 <= rows <= MOST_ROWS and 1 <= columns <= MOST_ROWS


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, and raise what it raised."""
    running = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _readable(*fds: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    for fd in fds:
        loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        for fd in fds:
            loop.remove_reader(fd)


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


async def _writable(fd: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(fd)
