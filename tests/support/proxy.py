"""A faulty network: an HTTP proxy that loses or repeats the requests and replies it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Self
from urllib.parse import urlsplit

_CHUNK = 1 << 16
_IO_SECONDS = 60.0


class Fault(Enum):
    """What happens to one request."""

    NONE = "none"
    DROP_REQUEST = "the connection closes before the server saw anything"
    DROP_REPLY = "the server did it, the caller never hears"
    CUT_REPLY = "the caller gets the first half of the reply"
    REPEAT_REQUEST = "the server gets it twice, the caller gets the second reply"


@dataclass(frozen=True, slots=True)
class Seen:
    """One request that came through, and what was done to it."""

    method: str
    path: str
    fault: Fault
    message: bytes = b""
    """The whole request as it came."""


Plan = Callable[[str, str], Fault]


def in_turn(faults: Iterable[Fault], *, method: str = "", path: str = "") -> Plan:
    """Do ``faults`` one after another to the requests that match, then nothing."""
    left, lock = iter(faults), threading.Lock()

    def plan(asked_method: str, asked_path: str) -> Fault:
        if (method and asked_method != method) or not asked_path.startswith(path):
            return Fault.NONE
        with lock:
            return next(left, Fault.NONE)

    return plan


class FaultProxy:
    """Stands before ``target`` on a loopback port of its own; a context manager.

    Each request uses a connection of its own (``Connection: close``), so a fault meets exactly one request.
    """

    def __init__(self, target: str, plan: Plan) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._plan = plan
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = False
        self.seen: list[Seen] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a proxy thread hangs"

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, connection)

    def _serve(self, caller: socket.socket) -> None:
        with self._tracked(caller), contextlib.suppress(OSError):
            request = _read_request(caller)
            if request is None:
                return
            method, path, message = request
            fault = self._plan(method, path)
            with self._lock:
                self.seen.append(Seen(method, path, fault, message))
            if fault is Fault.DROP_REQUEST:
                return
            if fault is Fault.REPEAT_REQUEST:
                self._ask(message)
            if fault in {Fault.DROP_REPLY, Fault.CUT_REPLY}:
                reply = self._ask(message)
                if fault is Fault.CUT_REPLY:
                    caller.sendall(reply[: len(reply) // 2])
                return
            self._pass(caller, message)

    def _ask(self, message: bytes) -> bytes:
        with self._upstream() as server:
            server.sendall(message)
            return b"".join(iter(lambda: server.recv(_CHUNK), b""))

    def _pass(self, caller: socket.socket, message: bytes) -> None:
        with self._upstream() as server:
            server.sendall(message)
            while piece := server.recv(_CHUNK):
                caller.sendall(piece)

    @contextlib.contextmanager
    def _upstream(self):
        server = socket.create_connection(self._target, timeout=_IO_SECONDS)
        with self._tracked(server):
            yield server

    @contextlib.contextmanager
    def _tracked(self, connection: socket.socket):
        connection.settimeout(_IO_SECONDS)
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _read_request(caller: socket.socket) -> tuple[str, str, bytes] | None:
    """Method, path and the bytes of one request, made to close its connection; ``None`` if there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = caller.recv(_CHUNK)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = [line for line in lines if not line.lower().startswith(b"connection:")]
    length = next((int(h.split(b":")[1]) for h in headers if h.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        piece = caller.recv(_CHUNK)
        if not piece:
            return None
        body += piece
    method, path, _ = first.decode("latin-1").split(" ", 2)
    return method, path, b"\r\n".join([first, *headers, b"Connection: close", b"", body])
