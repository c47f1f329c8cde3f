"""A registry before a real one, on a port of its own, that fails where a test says so.

with faulty_registry(registry) as faulty:
    faulty.faults = {digest: [Fault(status=503), Fault(halts_after=1000)]}    # then it serves
    faulty.name("team/tool", digest=...)
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from support.registry import Registry

_PIECE = 1 << 16
_TRICKLE_SECONDS, _DROP = 0.1, 1 << 14


@dataclass(frozen=True, slots=True)
class Fault:
    """What one request for a blob meets; nothing of it is an answer of the real registry."""

    status: int | None = None
    """It is answered with this status."""
    halts_after: int | None = None
    """So many bytes come, and then no more, until the asker leaves."""
    trickles: bool = False
    """A little comes at a time, until the registry's `flows` is set."""


@dataclass
class FaultyRegistry:
    """What the real one has, by way of faults."""

    registry: Registry
    host: str
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """By the digest of a blob: what those who ask for it meet, each once, before it is served."""
    served: Counter[str] = field(default_factory=Counter)
    """By digest: how often a blob was sent wholly."""
    asked: Counter[str] = field(default_factory=Counter)
    """By digest: how often a blob was asked for."""
    flows: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def name(self, repository: str, digest: str) -> str:
        return f"{self.host}/{repository}@{digest}"

    def layers(self, repository: str, digest: str) -> list[str]:
        """Digests of an image's layers, the lowest first."""
        return [each["digest"] for each in self.registry.manifest(repository, digest)["layers"]]

    def next_fault(self, digest: str) -> Fault:
        with self.guard:
            self.asked[digest] += 1
            left = self.faults.get(digest)
            return left.pop(0) if left else Fault()


class _Between(BaseHTTPRequestHandler):
    faulty: ClassVar[FaultyRegistry]

    def do_GET(self) -> None:
        digest = self.path.rpartition("/blobs/")[2] if "/blobs/" in self.path else ""
        counted = bool(digest) and self.command == "GET"
        fault = self.faulty.next_fault(digest) if counted else Fault()
        if fault.status is not None:
            self._answer(fault.status, {"Content-Length": "0"})
            return
        asking = http.client.HTTPConnection("127.0.0.1", self.faulty.registry.port, timeout=60)
        try:
            self._pass_on(asking, fault)
            if counted:
                self.faulty.served[digest] += 1
        except ConnectionError:
            self.close_connection = True
        finally:
            asking.close()

    do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    def _pass_on(self, asking: http.client.HTTPConnection, fault: Fault) -> None:
        asking.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():  # some names come more than once
            asking.putheader(name, value)
        asking.endheaders()
        answer = asking.getresponse()
        self._answer(answer.status, dict(answer.getheaders()))
        while (
            fault.trickles and not self.faulty.flows.wait(_TRICKLE_SECONDS) and (drop := answer.read(_DROP))
        ):
            self.wfile.write(drop)
        most = fault.halts_after
        while self.command == "GET" and (piece := answer.read(_PIECE if most is None else min(most, _PIECE))):
            self.wfile.write(piece)
            most = None if most is None else most - len(piece)
        if most is not None:
            self.faulty.over.wait()
            raise ConnectionAbortedError

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in {"connection", "date", "server"}:
                self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextlib.contextmanager
def faulty_registry(registry: Registry) -> Iterator[FaultyRegistry]:
    faulty = FaultyRegistry(registry, "")
    handler = type("Between", (_Between,), {"faulty": faulty})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        faulty.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield faulty
        finally:
            faulty.over.set()
            server.shutdown()
            thread.join()
