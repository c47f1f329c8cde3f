"""A terminal's WebSocket against a peer that speaks the frames of RFC 6455 by the book."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainshed.cli.exits import Exit
from trainshed.sdk import Client, ConnectionFailed, InvalidAnswer, NotFound
from trainshed.sdk.transport import RetryPolicy
from trainshed.sdk.websocket import WebSocket

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Peer:
    """One accepted connection, on the server's side."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.file = connection.makefile("rb")
        lines = iter(lambda: self.file.readline().decode().strip(), "")
        self.first = next(lines)
        self.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }

    def accept(self, key: str | None = None) -> None:
        text = (key or self.headers["sec-websocket-key"]) + GUID
        accept = base64.b64encode(hashlib.sha1(text.encode()).digest()).decode()
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.connection.sendall(f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())

    def send(self, opcode: int, data: bytes, *, final: bool = True) -> None:
        size = len(data)
        head = struct.pack(">BB", (0x80 if final else 0) | opcode, size) if size < 126 else b""
        if not head:
            head = struct.pack(
                ">BBH" if size < 1 << 16 else ">BBQ", 0x80 | opcode, 126 if size < 1 << 16 else 127, size
            )
        self.connection.sendall(head + data)

    def frame(self) -> tuple[int, bytes]:
        first, second = self.file.read(2)
        assert second & 0x80, "a client masks what it sends"
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(self.file.read(2 if size == 126 else 8), "big")
        mask = self.file.read(4)
        data = self.file.read(size)
        return first & 0x0F, bytes(each ^ mask[place % 4] for place, each in enumerate(data))


Serve = Callable[[Callable[[Peer], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve one connection as scripted; the address. What the script raises fails the test."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    failures: list[Exception] = []

    def start(script: Callable[[Peer], None]) -> str:
        def run() -> None:
            try:
                connection, _ = listener.accept()
                with connection:
                    script(Peer(connection))
            except Exception as error:  # noqa: BLE001 - another thread raises nothing in the test
                failures.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join(30)
    listener.close()
    assert not failures


def opened(url: str, **options: Any) -> WebSocket:
    with Client(url, "key-1", retry=RetryPolicy(attempts=1)) as client:
        return client.tasks.shell("x", **options)


def test_messages_of_every_length_arrive_whole_both_ways(serve):
    sizes = [0, 125, 126, 65_535, 65_536, 300_000]

    def script(peer: Peer) -> None:
        assert peer.first == "GET /v1/tasks/x/shell?role=worker&index=1 HTTP/1.1"
        assert peer.headers["authorization"] == "Bearer key-1"
        peer.accept()
        for _ in sizes:
            opcode, data = peer.frame()
            assert opcode == BINARY
            peer.send(BINARY, data)

    with opened(serve(script), role="worker", index=1) as connection:
        for size in sizes:
            sent = bytes(place % 251 for place in range(size))
            connection.send(sent)
            assert connection.receive() == sent


def test_parts_are_joined_pings_are_answered_and_a_close_ends_it(serve):
    def script(peer: Peer) -> None:
        peer.accept()
        peer.send(TEXT, b'{"exit', final=False)
        peer.send(PING, b"there?")
        assert peer.frame() == (PONG, b"there?")
        peer.send(0, b'_code": 3}')
        peer.send(CLOSE, struct.pack(">H", 1000))
        assert peer.frame() == (CLOSE, struct.pack(">H", 1000))

    with opened(serve(script)) as connection:
        assert json.loads(connection.receive() or "") == {"exit_code": 3}
        assert connection.receive() is None


def test_a_refusal_before_the_terminal_is_there_is_the_servers_own(serve):
    body = json.dumps({"code": "JOB_NOT_FOUND", "message": "no", "errors": []}).encode()
    head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with pytest.raises(NotFound, match="JOB_NOT_FOUND"):
        opened(serve(lambda peer: peer.connection.sendall(head + body)))


def test_what_does_not_speak_the_protocol_is_told_from_what_is_not_there(serve):
    with pytest.raises(InvalidAnswer, match="does not speak WebSocket"):
        opened(serve(lambda peer: peer.accept("another key")))
    with pytest.raises(ConnectionFailed):
        opened(serve(lambda _: None))
    with opened(serve(lambda peer: peer.accept())) as connection, pytest.raises(ConnectionFailed):
        connection.receive()


def test_a_frame_that_is_too_long_is_not_read(serve):
    def script(peer: Peer) -> None:
        peer.accept()
        peer.connection.sendall(struct.pack(">BBQ", 0x82, 127, 1 << 40))

    with opened(serve(script)) as connection, pytest.raises(InvalidAnswer, match="too long"):
        connection.receive()


@pytest.mark.parametrize(("code", "status"), [(0, Exit.OK), (3, 3), (None, Exit.FAILED)])
def test_C50_a_shell_hands_stdin_on_prints_what_comes_and_ends_as_it_ended(serve, code, status):

    typed: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.accept()
        _, data = peer.frame()
        typed.append(data)
        assert json.loads(peer.frame()[1]) == {"eof": True}
        peer.send(BINARY, b"inside\r\n")
        if code is not None:
            peer.send(TEXT, json.dumps({"exit_code": code}).encode())
        peer.send(CLOSE, b"")
        peer.frame()

    environment = {**os.environ, "TRAINSHED_URL": serve(script), "TRAINSHED_API_KEY": "key-1"}
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", "train", "shell", "x"],
        input=b"hostname\n",
        capture_output=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, b"inside\r\n"), done.stderr
    assert typed == [b"hostname\n"]
