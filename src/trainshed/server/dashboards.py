"""Handing requests on to a dashboard that nobody trusts: programs of its task may have put anything there.

What goes there has no credentials of ours and names no other machine. What comes back is data: its page gets
an origin of its own (CSP ``sandbox``), sets no cookies here, and sends nobody anywhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from trainshed.model.errors import Refusal
from trainshed.server.protocol import MAX_MESSAGE_BYTES
from trainshed.server.terminals import first_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from trainshed.server.endpoints import Call

_CONNECT_SECONDS = 5.0
_CHECK_SECONDS = 1.0
_FORWARDED = (
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-encoding",
    "content-type",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "range",
    "user-agent",
)
"""Of a request. Whatever else it has is of the connection, or a secret, or not for programs to know."""
_RETURNED = (
    "accept-ranges",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "etag",
    "last-modified",
)
"""Of an answer. No cookies, nothing about other origins, no caching."""
SANDBOX = "sandbox allow-scripts allow-forms allow-popups allow-downloads; frame-ancestors 'none'"
"""Without ``allow-same-origin``: a page has an origin that nobody shares, and no storage of ours."""
_OURS = {
    "Content-Security-Policy": SANDBOX,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NORMAL = 1000


async def forward(
    call: Call, address: tuple[str, int], target: str, use: AbstractContextManager[None], seconds: float
) -> Response:
    """One request, and its answer as it comes. Raises `Refusal` ``DASHBOARD_UNAVAILABLE``."""
    headers = call.request.headers
    if headers.get("service-worker"):
        raise Refusal.of(
            "INVALID_REQUEST", "a dashboard may not have a service worker", path="Service-Worker"
        )
    method = "HEAD" if call.head else str(call.request.scope["method"])
    with ExitStack() as stack:
        stack.enter_context(use)
        client = httpx2.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=httpx2.Timeout(seconds, connect=_CONNECT_SECONDS)
        )
        request = httpx2.Request(
            method,
            _url("http", address, target),
            headers={name: headers[name] for name in _FORWARDED if name in headers} | _length(headers),
            content=_body(call),
        )
        try:
            answer = await client.send(request, stream=True)
            found = _returned(answer, address, target)
        except httpx2.HTTPError as error:
            await client.aclose()
            raise _unavailable(error) from error
        except BaseException:
            await client.aclose()
            raise
        held = stack.pop_all()
    return _Handed(client, answer, found, held)


class _Handed(StreamingResponse):
    """An answer as it comes; whatever becomes of it, nothing stays open."""

    def __init__(
        self, client: httpx2.AsyncClient, answer: httpx2.Response, headers: dict[str, str], held: ExitStack
    ) -> None:
        super().__init__(answer.aiter_raw(), answer.status_code, headers)
        self._client = client
        self._answer = answer
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._answer.aclose()
                await self._client.aclose()


async def _body(call: Call) -> AsyncIterator[bytes]:
    while call.stream is not None and (piece := await call.stream.next()):
        yield piece


def _length(headers: Mapping[str, str]) -> dict[str, str]:
    """How long the body is: without it httpx sends pieces, which Ray takes as well."""
    length = headers.get("content-length")
    if length is not None:
        return {"content-length": length}
    return {} if "transfer-encoding" in headers else {"content-length": "0"}


def _url(scheme: str, address: tuple[str, int], target: str) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{scheme}://{host}:{address[1]}{target}"


def _returned(answer: httpx2.Response, address: tuple[str, int], target: str) -> dict[str, str]:
    found = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
    if "location" in answer.headers:
        found["location"] = _inside(answer.headers["location"], address, target)
    return found | _OURS


def _inside(location: str, address: tuple[str, int], target: str) -> str:
    """A redirect as a relative reference: whoever reads it knows under which path the dashboard is.

    Raises `Refusal` for one that leads anywhere else.
    """
    try:
        wanted = urlsplit(location)
        there = (wanted.hostname, wanted.port or 80) if wanted.netloc else address
    except ValueError:
        there, wanted = ("", 0), urlsplit("")
    path = wanted.path or "/"
    dots = any(segment in {".", ".."} for segment in path.split("/"))
    odd = dots or path.startswith("//") or "\\" in location
    if wanted.scheme not in {"", "http"} or there != address or odd:
        raise Refusal.of("DASHBOARD_UNAVAILABLE", f"the dashboard leads elsewhere: {location[:200]!r}")
    if not path.startswith("/"):
        path = target.partition("?")[0].rpartition("/")[0] + "/" + path
    depth = target.partition("?")[0].count("/") - 1
    query = f"?{wanted.query}" if wanted.query else ""
    return ("../" * depth or "./") + path.removeprefix("/") + query


async def talk(
    call: Call, socket: WebSocket, address: tuple[str, int], target: str, idle_seconds: float
) -> None:
    """A WebSocket at the dashboard, message by message. Raises `Refusal` ``DASHBOARD_UNAVAILABLE``."""
    # Imported where it is needed: few servers ever have one.
    from websockets.asyncio.client import connect  # noqa: PLC0415 - few servers are asked for a dashboard
    from websockets.exceptions import WebSocketException  # noqa: PLC0415 - as above

    class Connect(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            """Nobody is led anywhere else."""
            return exc

    wanted: list[Any] | None = socket.scope.get("subprotocols") or None
    try:
        there = await Connect(
            _url("ws", address, target),
            subprotocols=wanted,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=2,
            open_timeout=_CONNECT_SECONDS,
            close_timeout=1,
            proxy=None,
            user_agent_header=None,
        )
    except (OSError, WebSocketException, TimeoutError) as error:
        raise _unavailable(error) from error
    async with there:
        await socket.accept(there.subprotocol)
        with suppress(WebSocketDisconnect, WebSocketException):
            await _Exchange(socket, there).run(call, idle_seconds)
        with suppress(WebSocketDisconnect, RuntimeError):  # it is closed already
            await socket.close(_NORMAL)


class _Exchange:
    """Two WebSockets, of which each gets what the other one says."""

    def __init__(self, here: WebSocket, there: ClientConnection) -> None:
        self._here = here
        self._there = there
        self._active_at = time.monotonic()

    async def run(self, call: Call, idle_seconds: float) -> None:
        await first_of(self._up(), self._down(), self._watch(call, idle_seconds))

    async def _up(self) -> None:
        while (message := await self._here.receive())["type"] != "websocket.disconnect":
            self._active_at = time.monotonic()
            data = message.get("bytes")
            await self._there.send(message["text"] if data is None else data)

    async def _down(self) -> None:
        async for message in self._there:
            self._active_at = time.monotonic()
            if isinstance(message, str):
                await self._here.send_text(message)
            else:
                await self._here.send_bytes(message)

    async def _watch(self, call: Call, idle_seconds: float) -> None:
        while time.monotonic() - self._active_at < idle_seconds:
            await asyncio.sleep(_CHECK_SECONDS)
            await call.recheck()


def _unavailable(error: Exception) -> Refusal:
    said = str(error) or type(error).__name__
    return Refusal.of(
        "DASHBOARD_UNAVAILABLE",
        f"the dashboard of the head does not answer: {said[:300]}",
        hint="It takes a while to come up; an image without ray[default] has none.",
    )
