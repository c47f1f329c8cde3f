"""Plain HTTP to this machine: one request and its whole answer, without loading a whole HTTP library.

Importing one takes longer than most commands take altogether. TLS, proxies and streams need it all the same
(`trainshed.sdk.transport`); for what is left, the parser that the server reads requests with reads answers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httptools

KEPT_SECONDS = 3.0
"""An idle connection is not used again after that; servers close them after 5 s and more."""
KEPT_CONNECTIONS = 16
_READ_BYTES = 1 << 18
_TOGETHER_BYTES = 1 << 16
_INFORMATIONAL = range(100, 200)
_HAS_BODY = frozenset({"POST", "PUT", "PATCH"})
_Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Streamed:
    """A body of ``size`` bytes that need not be in memory; ``begin`` gives its pieces from the first on."""

    size: int
    begin: Callable[[], Iterator[bytes]]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        return self.begin()


Content = bytes | Streamed


class NoAnswer(Exception):
    """No whole answer came. ``reached`` is whether the server may have seen the request."""

    def __init__(self, said: str, *, reached: bool) -> None:
        super().__init__(said)
        self.reached = reached


class Reply:
    """A whole answer. Names of headers are in lower case."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content


class Loopback:
    """Connections to servers on this machine. Safe to share between threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[tuple[_Address, float, socket.socket]] = []
        self._busy: set[socket.socket] = set()
        self._closed = False

    def request(
        self,
        method: str,
        url: str,
        *,
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        content: Content | None,
        timeout: float,
        connect_timeout: float,
    ) -> Reply:
        """Send one request and read its answer. Times are in seconds, for each wait.

        Raises `NoAnswer`, and what the pieces of a streamed body raise.
        """
        parts = urlsplit(url)
        address = (parts.hostname or "", parts.port or 80)
        target = parts.path + (f"?{_encoded(query)}" if query else "")
        length = len(content) if content is not None else 0 if method in _HAS_BODY else None
        lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [] if length is None else [f"Content-Length: {length}"]
        head = "\r\n".join([*lines, "\r\n"]).encode("ascii")
        connection = self._connection(address, connect_timeout)
        kept = False
        try:
            connection.settimeout(timeout)
            _send(connection, head, b"" if content is None else content)
            reply, kept = _read(connection)
        except (OSError, httptools.HttpParserError) as error:
            raise NoAnswer(str(error) or type(error).__name__, reached=True) from error
        finally:
            self._give_back(address, connection, kept=kept)
        return reply

    def close(self) -> None:
        """Close the connections; a request in progress in another thread fails."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
            for busy in self._busy:
                with contextlib.suppress(OSError):
                    busy.shutdown(socket.SHUT_RDWR)
        for _, _, connection in idle:
            connection.close()

    def _connection(self, address: _Address, timeout: float) -> socket.socket:
        connection = self._kept(address)
        if connection is None:
            host, port = address
            try:
                # As bytes: for a text the tables of international names would be loaded first.
                name: Any = host.encode("ascii")
                connection = socket.create_connection((name, port), timeout)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except (OSError, ValueError) as error:
                raise NoAnswer(str(error) or type(error).__name__, reached=False) from error
        with self._guard:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise NoAnswer("the client was closed", reached=False)

    def _kept(self, address: _Address) -> socket.socket | None:
        """An idle connection that the server has not closed."""
        while True:
            with self._guard:
                place = next((n for n, each in enumerate(self._idle) if each[0] == address), None)
                if place is None:
                    return None
                _, since, connection = self._idle.pop(place)
            if time.monotonic() - since < KEPT_SECONDS and _silent(connection):
                return connection
            connection.close()

    def _give_back(self, address: _Address, connection: socket.socket, *, kept: bool) -> None:
        with self._guard:
            self._busy.discard(connection)
            if kept and not self._closed and len(self._idle) < KEPT_CONNECTIONS:
                self._idle.append((address, time.monotonic(), connection))
                return
        connection.close()


class _Reader:
    """What the parser tells of one answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.began = False
        self.whole = False
        self.lasts = False
        """Whether the connection stays open; the parser knows only while it ends the answer."""

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing else says where the answer ends."""
        return self.began and not {"content-length", "transfer-encoding"} & self.headers.keys()

    def on_message_begin(self) -> None:
        if self.whole:
            raise ValueError("the server sent more than its answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.began = self.parser.get_status_code() not in _INFORMATIONAL

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        if self.began:
            self.whole = True
            self.lasts = self.parser.should_keep_alive()
        else:
            # The server only said that it goes on.
            self.headers.clear()


def _send(connection: socket.socket, head: bytes, content: Content) -> None:
    pieces = [content] if isinstance(content, bytes) else content
    try:
        if len(content) <= _TOGETHER_BYTES:
            connection.sendall(b"".join([head, *pieces]))
        else:
            connection.sendall(head)
            for piece in pieces:
                connection.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        # A server that refuses a long body answers before it came, and closes. The answer is there to read.
        return


def _read(connection: socket.socket) -> tuple[Reply, bool]:
    """The answer, and whether the connection can be used again."""
    reader = _Reader()
    while not reader.whole:
        data = connection.recv(_READ_BYTES)
        if data:
            reader.parser.feed_data(data)
        elif reader.ends_with_connection:
            break
        else:
            raise ConnectionResetError("the server closed the connection before its answer was whole")
    return Reply(reader.parser.get_status_code(), reader.headers, b"".join(reader.body)), reader.lasts


def _silent(connection: socket.socket) -> bool:
    """Whether an idle connection is open: one that has something to say was closed by the server."""
    try:
        connection.settimeout(0)
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _encoded(query: Mapping[str, Any]) -> str:
    return urlencode([(key, each) for key, value in query.items() for each in _texts(value)])


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, list | tuple):
        return [text for each in value for text in _texts(each)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]
