"""A small HTTP server that answers exactly what a test scripts: contract shapes, refusals, cuts."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived; header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. ``body`` is sent as JSON unless it is bytes; ``cut_after`` closes after so many bytes."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None


DROP = Reply(status=0)
"""Close the connection without an answer."""
Handler = Callable[[Request], Reply]


def refusal(
    status: int, code: str, message: str = "no", *, headers: Mapping[str, str] | None = None
) -> Reply:
    """An error in the contract's shape."""
    fault = {"path": "", "code": code, "message": message}
    body = {"code": code, "message": message, "hint": "Do better.", "errors": [fault]}
    return Reply(status, body, headers or {})


def in_turn(*replies: Reply) -> Handler:
    """Answer with each reply once, then with the last for ever."""
    left, lock = list(replies), threading.Lock()

    def handler(_: Request) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return handler


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no fault; the base class prints to a stream that may be closed by now."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FakeServer:
    """Serves ``routes`` (``"GET /v1/me" -> Reply or Handler``) on a loopback port; a context manager."""

    def __init__(self, routes: Mapping[str, Reply | Handler]) -> None:
        self.routes = dict(routes)
        self.seen: list[Request] = []
        owner = self

        class Connection(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                owner._answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = _Listener(("127.0.0.1", 0), Connection)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def asked(self, route: str) -> list[Request]:
        """The requests to one route, in order."""
        method, path = route.split(" ", 1)
        return [request for request in self.seen if (request.method, request.path) == (method, path)]

    def _answer(self, connection: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in connection.headers.items()}
        body = connection.rfile.read(int(headers.get("content-length", 0)))
        request = Request(connection.command, connection.path, headers, body)
        self.seen.append(request)
        found = self.routes.get(f"{request.method} {request.path}", refusal(404, "NOT_FOUND"))
        reply = found if isinstance(found, Reply) else found(request)
        if reply.status == 0:
            connection.close_connection = True
            return
        raw = isinstance(reply.body, bytes)
        content = reply.body if raw else b"" if reply.body is None else json.dumps(reply.body).encode()
        connection.send_response(reply.status)
        kind = "application/octet-stream" if raw else "application/json"
        for name, value in {"Content-Type": kind, **reply.headers}.items():
            connection.send_header(name, value)
        connection.send_header("Content-Length", str(len(content)))
        connection.end_headers()
        if request.method == "HEAD":
            return
        connection.wfile.write(content if reply.cut_after is None else content[: reply.cut_after])
        connection.wfile.flush()
        if reply.cut_after is not None:
            connection.close_connection = True
