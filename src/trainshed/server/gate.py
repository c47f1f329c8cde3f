"""What every request passes first: a name, the spelling of its path, the rate limit, the clock."""

from __future__ import annotations

import time
from http import HTTPStatus
from secrets import token_hex
from urllib.parse import quote, unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainshed.model.errors import Refusal
from trainshed.server.auth import presented_key
from trainshed.server.errors import error_response, refusal_response
from trainshed.server.limits import Action, RateLimiter, rate_limited
from trainshed.server.metrics import HttpMetrics

_UNLIMITED = frozenset({"/healthz", "/readyz", "/metrics"})
_SUBMIT_PATHS = frozenset({"/v1/job", "/v1/jobs"})
_STREAM_SUFFIX = "/stream"


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, limiter: RateLimiter, metrics: HttpMetrics) -> None:
        self._app = app
        self._limiter = limiter
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        # A copy: the server below keeps its own, by which it knows that HEAD is answered without a body.
        scope = dict(scope)
        request_id = f"req_{token_hex(8)}"
        scope["trainshed.request_id"] = request_id
        scope["path"] = canonical_path(scope)
        scope.setdefault("method", "GET")  # as a WebSocket begins
        scope["trainshed.head"] = self._head_becomes_get(scope)
        answer = _Answer(scope, send, request_id)
        try:
            action = _action(scope)
            wait = 0.0
            if scope["path"] not in _UNLIMITED:
                address = scope["client"][0] if scope.get("client") else ""
                wait = self._limiter.take(presented_key(Headers(scope=scope)), address, action)
            if wait:
                self._metrics.limited(action)
                await refusal_response(rate_limited(action, wait), request_id)(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        except Exception as error:
            if answer.status:
                raise
            await error_response(error, request_id)(scope, receive, answer)
        finally:
            route = scope.get("route")
            template = getattr(route, "path", "unknown")
            self._metrics.observe(
                scope["method"],
                template,
                answer.status or HTTPStatus.INTERNAL_SERVER_ERROR,
                (answer.opened_at or time.perf_counter()) - started,
            )

    @staticmethod
    def _head_becomes_get(scope: Scope) -> bool:
        if scope["method"] != "HEAD" or scope["path"].endswith(_STREAM_SUFFIX):
            return False
        scope["method"] = "GET"
        return True


class _Answer:
    """What is sent for one request, completed on its way."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self.status = 0
        self.opened_at: float | None = None
        """When a WebSocket was accepted: what comes after that is no answer that somebody waits for."""

    async def __call__(self, message: Message) -> None:
        if message["type"] in {"http.response.start", "websocket.http.response.start"}:
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._request_id
            if "cache-control" not in headers:
                headers["Cache-Control"] = "no-store"
        elif message["type"] == "websocket.accept":
            self.status, self.opened_at = HTTPStatus.SWITCHING_PROTOCOLS, time.perf_counter()
        elif message["type"] == "websocket.close" and not self.status:
            # The router knows no WebSocket of this path.
            refusal = Refusal.of("NOT_FOUND", "this server serves no such WebSocket")
            await refusal_response(refusal, self._request_id)(self._scope, _nothing, self)
            return
        elif self._scope["trainshed.head"] and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


async def _nothing() -> Message:
    return {"type": "websocket.disconnect", "code": 1006}


def canonical_path(scope: Scope) -> str:
    """The path to route by: without ``/api``, each segment in the one canonical percent-encoding.

    An encoded slash stays inside its segment; `endpoints.path_id` decodes what a handler gets.
    """
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    if "%" in path:
        path = "/".join(_canonical(segment) for segment in path.split("/"))
    return path[4:] if path.startswith("/api/v1/") else path


def _canonical(segment: str) -> str:
    # Bytes that are no UTF-8 stay what they are: `endpoints` refuses them, and no two of them become one.
    return quote(unquote(segment, errors="surrogateescape"), safe="", errors="surrogateescape")


def _action(scope: Scope) -> Action:
    if scope["method"] in {"GET", "HEAD", "OPTIONS"}:
        return Action.READ
    if scope["method"] == "POST" and scope["path"] in _SUBMIT_PATHS:
        return Action.SUBMIT
    return Action.WRITE
