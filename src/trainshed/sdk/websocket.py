"""A WebSocket (RFC 6455) to the server, as small as a terminal needs it: bytes and texts, both ways."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from trainshed.sdk.errors import ConnectionFailed, InvalidAnswer, api_error

MAX_MESSAGE_BYTES = 16 << 20
_MAX_HEAD_BYTES = 64 << 10
_MAX_REFUSAL_BYTES = 1 << 20
_KEY_SUFFIX = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SWITCHING = 101
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FINAL, _OPCODE, _MASKED, _LENGTH = 0x80, 0x0F, 0x80, 0x7F
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_SMALL, _MIDDLE = 125, 0xFFFF


class WebSocket:
    """An open connection. One thread may receive while others send. A context manager."""

    def __init__(self, connection: socket.socket, rest: bytes) -> None:
        self._connection = connection
        self._buffer = bytearray(rest)
        self._guard = threading.Lock()

    def send(self, message: bytes | str) -> None:
        """Send one message. Raises `ConnectionFailed`."""
        text = isinstance(message, str)
        self._send(_TEXT if text else _BINARY, message.encode() if isinstance(message, str) else message)

    def receive(self) -> bytes | str | None:
        """The next message; ``None`` once the other side has closed. Raises `ConnectionFailed`."""
        parts, kind = bytearray(), _BINARY
        while True:
            final, opcode, data = self._frame()
            if opcode == _CLOSE:
                with contextlib.suppress(ConnectionFailed):
                    self._send(_CLOSE, data[:2])
                return None
            if opcode == _PING:
                self._send(_PONG, data)
            if opcode in {_PING, _PONG}:
                continue
            kind = opcode if opcode != _CONTINUED else kind
            parts += data
            if len(parts) > MAX_MESSAGE_BYTES:
                raise InvalidAnswer(f"a message is longer than {MAX_MESSAGE_BYTES} bytes")
            if final:
                return parts.decode("utf-8", "replace") if kind == _TEXT else bytes(parts)

    def close(self) -> None:
        """End the connection; a `receive` in another thread answers ``None`` or fails."""
        with contextlib.suppress(ConnectionFailed):
            self._send(_CLOSE, struct.pack(">H", 1000))
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, opcode: int, data: bytes) -> None:
        size = len(data)
        if size <= _SMALL:
            head = bytes((_FINAL | opcode, _MASKED | size))
        elif size <= _MIDDLE:
            head = bytes((_FINAL | opcode, _MASKED | _TWO_BYTES)) + struct.pack(">H", size)
        else:
            head = bytes((_FINAL | opcode, _MASKED | _EIGHT_BYTES)) + struct.pack(">Q", size)
        mask = os.urandom(4)
        try:
            with self._guard:
                self._connection.sendall(head + mask + _masked(data, mask))
        except OSError as error:
            raise ConnectionFailed(f"the connection broke: {error}") from error

    def _frame(self) -> tuple[bool, int, bytes]:
        first, second = self._take(2)
        size = second & _LENGTH
        if size == _TWO_BYTES:
            (size,) = struct.unpack(">H", self._take(2))
        elif size == _EIGHT_BYTES:
            (size,) = struct.unpack(">Q", self._take(8))
        if size > MAX_MESSAGE_BYTES:
            raise InvalidAnswer(f"a frame of {size} bytes is too long")
        mask = self._take(4) if second & _MASKED else b""
        data = self._take(size)
        return bool(first & _FINAL), first & _OPCODE, _masked(data, mask) if mask else data

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                data = self._connection.recv(65536)
            except OSError as error:
                raise ConnectionFailed(f"the connection broke: {error}") from error
            if not data:
                raise ConnectionFailed("the server ended the connection in the middle")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


def open_websocket(
    url: str, path: str, *, query: Mapping[str, Any], headers: Mapping[str, str], timeout: float
) -> WebSocket:
    """Connect to ``path`` of the server at ``url``. ``timeout`` (seconds) bounds each step until it is open.

    Raises `ApiError` where the server refuses, `ConnectionFailed`, `InvalidAnswer`.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    given = {name: value for name, value in query.items() if value is not None}
    target = path + (f"?{urlencode(given)}" if given else "")
    lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    place = (parts.hostname or "", parts.port or (443 if secure else 80))
    with contextlib.ExitStack() as unless_open:
        try:
            connection = unless_open.enter_context(socket.create_connection(place, timeout))
            if secure:
                tls = ssl.create_default_context()
                connection = tls.wrap_socket(connection, server_hostname=parts.hostname)
                unless_open.enter_context(connection)
            connection.sendall("\r\n".join([*lines, "\r\n"]).encode("ascii"))
            status, found, rest = _head(connection)
        except OSError as error:
            raise ConnectionFailed(f"no answer from {url}: {error}") from error
        if status != _SWITCHING:
            raise api_error(status, _refusal(connection, found, rest))
        wanted = hashlib.sha1((key + _KEY_SUFFIX).encode(), usedforsecurity=False).digest()
        if found.get("sec-websocket-accept") != base64.b64encode(wanted).decode():
            raise InvalidAnswer(f"what answered at {url} does not speak WebSocket")
        unless_open.pop_all()
    connection.settimeout(None)
    return WebSocket(connection, rest)


def _head(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(4096)
        if not more or len(data) > _MAX_HEAD_BYTES:
            raise ConnectionResetError("the connection ended before an answer was there")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004 - protocol and status
        raise InvalidAnswer(f"what answered does not speak HTTP: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}, rest


def _refusal(connection: socket.socket, headers: Mapping[str, str], rest: bytes) -> Any:
    length = headers.get("content-length", "0")
    size = min(int(length) if length.isdigit() else 0, _MAX_REFUSAL_BYTES)
    with contextlib.suppress(OSError):
        while len(rest) < size and (more := connection.recv(size - len(rest))):
            rest += more
    try:
        return json.loads(rest)
    except ValueError:
        return None


def _masked(data: bytes, mask: bytes) -> bytes:
    long = mask * (len(data) // 4 + 1)
    size = len(data)
    return (int.from_bytes(data, "big") ^ int.from_bytes(long[:size], "big")).to_bytes(size, "big")
