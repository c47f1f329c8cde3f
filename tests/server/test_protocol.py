"""What a sender may make the server hold: heads, bodies that do not come, and the way out of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess
from support.waiting import wait_until
from trainshed.server import limits, protocol
from trainshed.server.limits import BodyStalled, BodyStream
from trainshed.server.protocol import MAX_HEAD_BYTES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("protocol") / "data").start()
    yield running
    assert running.stop() == 0


def connect(server: ServerProcess) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer_to(server: ServerProcess, *pieces: bytes) -> bytes:
    """What comes back for these bytes until the server closes; sending may be cut off."""
    seen = b""
    with connect(server) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            while received := connection.recv(65536):
                seen += received
        except ConnectionError:
            pass
    return seen


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def request(*headers: str, target: str = "/healthz") -> bytes:
    lines = [f"GET {target} HTTP/1.1", "Host: x", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize(
    "head",
    [
        request("X: " + "a" * MAX_HEAD_BYTES),
        request(*[f"X{number}: y" for number in range(20_000)]),
        request(target="/healthz?" + "a" * MAX_HEAD_BYTES),
    ],
    ids=["one header", "many headers", "target"],
)
def test_a_head_over_the_limit_is_refused(server: ServerProcess, head: bytes):
    answer = answer_to(server, head)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"REQUEST_TOO_LARGE"' in answer
    assert str(MAX_HEAD_BYTES).encode() in answer


def test_a_head_without_end_is_cut_off_and_takes_no_memory(server: ServerProcess):
    before = resident_kib(server.pid)
    answer_to(server, b"GET /healthz HTTP/1.1\r\nX: ", *[b"a" * 1_000_000] * 100)
    assert resident_kib(server.pid) < before + 10_000
    assert server.http().get("/healthz").status == 200


def test_a_head_below_the_limit_is_served_however_it_is_cut(server: ServerProcess):
    head = request("X: " + "a" * (MAX_HEAD_BYTES - 1000))
    assert answer_to(server, head).startswith(b"HTTP/1.1 200 ")
    pieces = [head[at : at + 1000] for at in range(0, len(head), 1000)]
    assert answer_to(server, *pieces).startswith(b"HTTP/1.1 200 ")


def test_requests_on_one_connection_have_a_limit_each(server: ServerProcess):
    first = request("X: " + "a" * (MAX_HEAD_BYTES - 1000)).replace(b"Connection: close\r\n", b"")
    with connect(server) as connection:
        for _ in range(3):
            connection.sendall(first)
            seen = b""
            while not seen.endswith(b"}"):
                seen += connection.recv(65536)
            assert seen.startswith(b"HTTP/1.1 200 ")


def test_what_is_no_request_is_refused_in_the_one_shape(server: ServerProcess):
    answer = answer_to(server, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"INVALID_REQUEST"' in answer


@pytest.mark.parametrize("path", ["/healthz", "/v1/me", "/v1/jobs", "/openapi.json", "/metrics", "/v1/nix"])
def test_HEAD_is_answered_as_GET_without_a_body_and_nothing_is_logged(server: ServerProcess, path: str):
    http = server.http()
    logged = len(server.tail(10**7))
    head, get = http.request("HEAD", path), http.get(path)
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/metrics":
        assert abs(int(head.headers["content-length"]) - int(get.headers["content-length"])) < 100
    assert server.tail(10**7)[logged:] == ""


def stuck_body(server: ServerProcess) -> socket.socket:
    connection = connect(server)
    lines = ["POST /v1/jobs HTTP/1.1", "Host: x", f"Authorization: Bearer {server.key}", "Content-Length: 9"]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n{").encode())
    return connection


def test_bodies_that_do_not_come_do_not_keep_the_server_from_stopping(tmp_path: Path):
    settings = tmp_path / "settings.toml"
    settings.write_text("[http]\nshutdown_seconds = 100.0\n")  # what other requests would have
    server = ServerProcess(tmp_path / "data", options=["--config", str(settings)]).start()
    senders = [stuck_body(server) for _ in range(20)]
    try:
        # Answered after the others' heads were read: connections are served in the order they came.
        assert server.http().get("/healthz").status == 200
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(60) == 0
        assert time.monotonic() - began < limits.BODY_PAUSE_SECONDS, "sooner than by what else ends them"
    finally:
        for sender in senders:
            sender.close()
    assert "Traceback" not in server.tail(10**6)


def test_a_sender_that_pauses_in_its_body_is_given_up():
    async def never():
        await asyncio.Event().wait()

    stream = BodyStream(never, 9, 100, pause=0.01)
    with pytest.raises(BodyStalled):
        asyncio.run(stream.whole())


def test_a_body_that_stalls_is_refused_and_the_connection_closed(make_site, monkeypatch):
    site = make_site()
    bytes_never_sent = BodyStalled("the body did not go on")

    async def stalled(_: BodyStream) -> bytes:
        raise bytes_never_sent

    monkeypatch.setattr(limits.BodyStream, "whole", stalled)
    answer = site.post("/v1/jobs", b"{}")
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert answer.headers["Connection"] == "close"


def test_a_connection_that_sends_no_head_is_closed(tmp_path: Path):
    # In a process of its own, with a shorter patience than the real one.
    script = (
        f"from {protocol.__name__} import *; import {protocol.__name__} as p, sys; p.HEAD_SECONDS = 0.2;"
        "from trainshed.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    server = ShortPatience(tmp_path / "data", script)
    server.start()
    with connect(server) as silent, connect(server) as halting:
        halting.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert silent.recv(100) == b""
        assert halting.recv(100) == b""
    wait_until(lambda: server.http().get("/healthz").status == 200, 60)
    assert server.stop() == 0


class ShortPatience(ServerProcess):
    """A server that is started by a script."""

    def __init__(self, data: Path, script: str) -> None:
        super().__init__(data)
        self._script = script

    def command(self, *extra: str) -> list[str]:
        python, _, _, *arguments = super().command(*extra)
        return [python, "-c", self._script, *arguments]
