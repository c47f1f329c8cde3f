"""`gpu mcp`: the MCP server of one agent, over standard input and output (a.0.1, a.0.2)."""

from __future__ import annotations

import os
import threading
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server

from trainshed.mcp.calls import Calls
from trainshed.mcp.server import build
from trainshed.sdk.client import Client


class _Door:
    """One client for all calls, made at the first one that needs it; a failed start is tried again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._client: Client | None = None

    def client(self) -> Client:
        with self._guard:
            if self._client is None:
                self._client = Client()
            return self._client

    def close(self) -> None:
        with self._guard:
            if self._client is not None:
                self._client.close()


async def serve() -> None:
    """Serve until the input ends; the server that runs the Jobs, and the Jobs, go on."""
    door = _Door()

    def calls(_context: ServerRequestContext[Any, Any]) -> Calls:
        return Calls(door.client)

    server = build(calls)
    try:
        async with stdio_server() as (receive, send):
            await server.run(receive, send, server.create_initialization_options())
    finally:
        door.close()


def main() -> None:
    """Run `serve`; Ctrl-C ends it quietly."""
    # Whatever this process asks for is an agent's, also a call that does not say so (c.6).
    os.environ["TRAINSHED_AGENT"] = "1"
    try:
        anyio.run(serve)
    except KeyboardInterrupt:
        return
