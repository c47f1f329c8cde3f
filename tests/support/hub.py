"""A hub of datasets as it answers over HTTP: as much of it as fetching needs, and its faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_PAGE = 3
"""Rows of one page."""


@dataclass
class Hub:
    """A hub with one dataset ``owner/set`` of these files; those ending ``.bin`` are large ones."""

    files: Mapping[str, bytes]
    token: str | None = None
    """What one must show to see the dataset."""
    faults: list[int] = field(default_factory=list)
    """Statuses that the next requests get, whatever they ask."""
    garble: set[str] = field(default_factory=set)
    """Files that arrive changed."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows that every listing has besides."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Authorization of each request."""
    stored: list[str | None] = field(default_factory=list)
    """Authorization of each request to the store of files."""
    url: str = ""
    store: str = ""

    def answer(self, path: str, token: str | None) -> tuple[int, bytes, dict[str, str]]:
        self.asked.append((path, token))
        if self.faults:
            return self.faults.pop(0), b"", {}
        if self.token and token != f"Bearer {self.token}":
            return 401, b"", {}
        url = urllib.parse.urlsplit(path)
        where = urllib.parse.unquote(url.path)
        tree, files = f"/api/datasets/owner/set/tree/{COMMIT}", f"/datasets/owner/set/resolve/{COMMIT}/"
        if where in {"/api/datasets/owner/set/revision/main", f"/api/datasets/owner/set/revision/{COMMIT}"}:
            return 200, json.dumps({"sha": COMMIT}).encode(), {}
        if where == tree or where.startswith(tree + "/"):
            return self._tree(where[len(tree) + 1 :], dict(urllib.parse.parse_qsl(url.query)))
        return self._file(where[len(files) :] if where.startswith(files) else "")

    def _file(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        if name not in self.files:
            return 404, b"", {}
        if name.endswith(".bin"):
            return 302, b"", {"Location": f"{self.store}/{urllib.parse.quote(name)}"}
        return 200, self.content(name), {}

    def content(self, name: str) -> bytes:
        return self.files[name] + (b"!" if name in self.garble else b"")

    def _tree(self, sub: str, query: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        below = [name for name in sorted(self.files) if not sub or name.startswith(sub + "/")]
        if not below:
            return 404, b"", {}
        depth = sub.count("/") + 1 if sub else 0
        rows = [
            self._row(name) for name in below if "recursive" in query or name.count("/") == depth
        ] + self.rows
        at = int(query.get("cursor", 0))
        more = {}
        if at + _PAGE < len(rows):
            following = urllib.parse.urlencode({**query, "cursor": at + _PAGE})
            place = f"{self.url}/api/datasets/owner/set/tree/{COMMIT}{'/' + sub if sub else ''}"
            more["Link"] = f'<{place}?{following}>; rel="next"'
        return 200, json.dumps(rows[at : at + _PAGE]).encode(), more

    def _row(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        row = {"type": "file", "path": name, "size": len(data), "oid": oid}
        if name.endswith(".bin"):
            row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
        return row


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on one address, its store of large files on another."""

    class OfHub(_Handler):
        def reply(self) -> tuple[int, bytes, dict[str, str]]:
            return hub.answer(self.path, self.headers.get("Authorization"))

    class OfStore(_Handler):
        def reply(self) -> tuple[int, bytes, dict[str, str]]:
            hub.stored.append(self.headers.get("Authorization"))
            return 200, hub.content(urllib.parse.unquote(self.path[1:])), {}

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (OfHub, OfStore)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    hub.url, hub.store = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body, headers = self.reply()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def reply(self) -> tuple[int, bytes, dict[str, str]]:
        return 404, b"", {}

    def log_message(self, *_: object) -> None:
        """Tests print what matters."""
