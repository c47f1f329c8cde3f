"""MCP over HTTP: the same tools at ``/mcp`` of a server, with the caller's own key and permissions.

Each request carries its key; the tools call this same server with it, so that what a key may do is decided in
one place. The protocol's library is loaded at the first request: a server that nobody asks pays nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from trainshed.mcp.calls import Calls

PATH = "/mcp"


class WithMcp:
    """An application with the MCP door beside it. Requests below `PATH` are the door's."""

    def __init__(self, app: ASGIApp, url: Callable[[], str]) -> None:
        """``url`` answers where this server listens, as its own clients reach it."""
        self._app = app
        self._url = url
        self._manager: Any = None
        self._ready = asyncio.Event()
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                await self._end()
            return
        if scope["type"] != "http" or scope["path"].rstrip("/") != PATH:
            await self._app(scope, receive, send)
            return
        refusal = _refusal(Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._ready.wait()
        await self._manager.asgi_app(scope, receive, send)

    async def _run(self) -> None:
        """Keep the protocol's sessions until the server ends; in a task of its own, as they need."""
        from mcp.server.streamable_http_manager import (  # noqa: PLC0415 - few servers are asked for it
            StreamableHTTPSessionManager,
        )

        from trainshed.mcp.server import build  # noqa: PLC0415 - as above

        self._manager = StreamableHTTPSessionManager(build(self._calls), stateless=True)
        async with self._manager.run():
            self._ready.set()
            await self._ending.wait()

    async def _end(self) -> None:
        self._ending.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _calls(self, context: ServerRequestContext[Any, Any]) -> Calls:
        """Calls with the key of the request that they belong to."""
        from trainshed.mcp.calls import Calls  # noqa: PLC0415 - as above
        from trainshed.sdk.client import Client  # noqa: PLC0415 - as above

        key = presented(context.request.headers) if context.request is not None else None
        return Calls(lambda: Client(self._url(), key), local_files=False)


def presented(headers: Any) -> str | None:
    """The key that a request carries, as the server's other doors take it."""
    scheme, _, key = str(headers.get("authorization", "")).partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _refusal(headers: Headers) -> Response | None:
    """Why a request is not let in: a page of somebody else, or no key."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return _refused(HTTPStatus.FORBIDDEN, "ORIGIN_DENIED", "a page of another origin may not call this")
    if presented(headers) is None:
        said = "send a key: `Authorization: Bearer KEY`"
        return _refused(HTTPStatus.UNAUTHORIZED, "AUTHENTICATION_REQUIRED", said)
    return None


def _refused(status: HTTPStatus, code: str, message: str) -> Response:
    errors = [{"path": "", "code": code, "message": message}]
    body = json.dumps({"code": code, "message": message, "errors": errors})
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else None
    return Response(body, status, headers, "application/json")
