"""A local port that leads to the dashboard of a task, for ``train dashboard``."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from trainshed.sdk import Client

HOST = "127.0.0.1"
_COOKIE = "trainshed_dashboard"
_MAX_BODY = 64 << 20
_OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "content-encoding",
        "accept-encoding",
        "authorization",
        "cookie",
        "origin",
        "referer",
        "x-project-id",
        # For pages at the server's own address; here they have one that is nobody else's.
        "content-security-policy",
        "date",
        "server",
    }
)
"""Headers that are of one connection, or not for the other side."""


class DashboardServer(ThreadingHTTPServer):
    """Forwards what comes on a local port to the dashboard of one task, with this user's key."""

    daemon_threads = True

    def __init__(self, client: Client, task: str, port: int) -> None:
        self.client = client
        self.task = task
        self.secret = secrets.token_urlsafe(24)
        super().__init__((HOST, port), _Forwarder)

    @property
    def origin(self) -> str:
        return f"{HOST}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Where a browser begins."""
        return f"http://{self.origin}/?token={self.secret}"


class _Forwarder(BaseHTTPRequestHandler):
    server: DashboardServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing: every picture of a page would be a line."""

    def _forward(self) -> None:
        parts = urlsplit(self.path)
        if self.headers.get("Host") not in {self.server.origin, f"localhost:{self.server.server_address[1]}"}:
            # A page of elsewhere whose name was pointed here.
            self._answer(HTTPStatus.FORBIDDEN, {}, b"unknown host\n")
            return
        token = parse_qs(parts.query).get("token", [""])[0]
        if secrets.compare_digest(token.encode(), self.server.secret.encode()):
            cookie = f"{_COOKIE}={self.server.secret}; HttpOnly; SameSite=Strict; Path=/"
            self._answer(HTTPStatus.SEE_OTHER, {"Location": parts.path or "/", "Set-Cookie": cookie}, b"")
            return
        if not self._known():
            self._answer(HTTPStatus.FORBIDDEN, {}, b"open the address that `train dashboard` printed\n")
            return
        if any(unquote(segment) in {".", ".."} for segment in parts.path.split("/")):
            # Whoever normalizes it finds something else of the server's, for which the key is good as well.
            self._answer(HTTPStatus.BAD_REQUEST, {}, b"the path may not have segments `.` or `..`\n")
            return
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _MAX_BODY or "Transfer-Encoding" in self.headers:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {}, b"the body is too large\n")
            return
        body = self.rfile.read(int(length)) if int(length) else None
        self._pass_on(self.path.removeprefix("/"), body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _forward  # noqa: N815 - the library's names

    def _pass_on(self, path: str, body: bytes | None) -> None:
        from trainshed.sdk.errors import ApiError, TrainshedError  # noqa: PLC0415 - click only at import time

        headers = {key: value for key, value in self.headers.items() if key.lower() not in _OF_THE_CONNECTION}
        method = "GET" if self.command == "HEAD" else self.command
        try:
            status, found, content = self.server.client.tasks.dashboard(
                self.server.task, method, path, headers=headers, content=body
            )
        except ApiError as error:
            status, found, content = error.status, {}, f"{error}\n".encode()
        except TrainshedError as error:
            status, found, content = HTTPStatus.BAD_GATEWAY, {}, f"{error}\n".encode()
        self._answer(status, found, content)

    def _known(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return cookie is not None and secrets.compare_digest(
            cookie.value.encode(), self.server.secret.encode()
        )

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if key.lower() not in _OF_THE_CONNECTION:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
