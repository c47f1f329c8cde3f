"""Plain HTTP to this machine: where answers end, when a connection is used again, what is no answer."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import pytest

from support import documents
from support.fake_server import Reply
from trainshed import Client
from trainshed.sdk import ConfigurationError
from trainshed.sdk.loopback import Content, Loopback, NoAnswer, Streamed

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
LONG = 8 << 20


class Scripted:
    """Sends its answers as they are, one a request; closes after the last, or after each."""

    def __init__(self, answers: Sequence[bytes], *, hasty: bool = False) -> None:
        self._left = list(answers)
        self._hasty = hasty
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1/x"
        self.connections = 0
        self.hung_up = threading.Event()
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while self._left:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            # Who closes with an answer unread resets the connection.
            with connection, contextlib.suppress(ConnectionResetError):
                self._talk(connection)
            self.hung_up.set()

    def _talk(self, connection: socket.socket) -> None:
        while self._left:
            data = b""
            while b"\r\n\r\n" not in data:
                if not (more := connection.recv(65536)):
                    return
                data += more
            self.asked.append(data)
            connection.sendall(self._left.pop(0))
            if self._hasty:
                return


def ask(near: Loopback, url: str, method: str = "GET", content: Content | None = None, **query: object):
    return near.request(
        method, url, query=query, headers={}, content=content, timeout=10.0, connect_timeout=10.0
    )


@contextmanager
def loopback() -> Iterator[Loopback]:
    near = Loopback()
    try:
        yield near
    finally:
        near.close()


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (OK, b"{}"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"{}"),
        (b"HTTP/1.1 100 Continue\r\nX-A: 1\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
    ids=["length", "chunks", "goes on", "none"],
)
def test_an_answer_ends_where_it_says_and_the_connection_is_used_again(answer, content):
    with Scripted([answer, answer, OK]) as server, loopback() as near:
        replies = [ask(near, server.url) for _ in range(3)]
    assert [reply.content for reply in replies] == [content, content, b"{}"]
    assert "x-a" not in replies[0].headers
    assert server.connections == 1


def test_a_body_in_pieces_is_asked_for_again_with_each_request():
    body = Streamed(200_000, lambda: iter([b"a" * 50_000, b"b" * 150_000]))
    with Scripted([OK, OK]) as server, loopback() as near:
        replies = [ask(near, server.url, "PUT", body) for _ in range(2)]
        # The server looks for the end of a head only: what it took of a body it has.
        assert all(b"Content-Length: 200000\r\n\r\n" in asked for asked in server.asked)
    assert [reply.status for reply in replies] == [200, 200]


def test_a_body_whose_source_fails_takes_its_connection_along():
    def failing() -> Iterator[bytes]:
        yield b"a" * 100_000
        raise LookupError("the file is gone")

    with Scripted([OK, OK]) as server, loopback() as near:
        with pytest.raises(LookupError):
            ask(near, server.url, "PUT", Streamed(200_000, failing))
        assert ask(near, server.url).status == 200
    assert server.connections == 2


def test_an_answer_without_a_length_ends_with_its_connection():
    with Scripted([b"HTTP/1.1 200 OK\r\n\r\nto the end"]) as server, loopback() as near:
        assert ask(near, server.url).content == b"to the end"


def test_a_connection_that_the_server_closed_meanwhile_is_not_used():
    with Scripted([OK, OK], hasty=True) as server, loopback() as near:
        ask(near, server.url)
        assert server.hung_up.wait(10)
        assert ask(near, server.url).status == 200
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        OK + OK,
    ],
    ids=["short", "no last chunk", "no HTTP", "two answers"],
)
def test_what_is_no_whole_answer_is_none(answer):
    with Scripted([answer]) as server, loopback() as near, pytest.raises(NoAnswer) as caught:
        ask(near, server.url)
    assert caught.value.reached


def test_a_refusal_of_a_long_body_is_read_although_the_body_was_not():
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with Scripted([refusal]) as server, loopback() as near:
        try:
            assert ask(near, server.url, "PUT", b"x" * LONG).status == 413
        except NoAnswer as error:
            # Where the system throws the answer away with the connection, the call is one that failed.
            assert error.reached  # noqa: PT017 - either may happen


def test_nobody_listening_means_that_nothing_was_reached():
    with Scripted([]) as server:
        pass
    with loopback() as near, pytest.raises(NoAnswer) as caught:
        ask(near, server.url)
    assert not caught.value.reached


def test_closing_ends_a_request_in_progress_and_lets_none_begin():
    accepted = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, loopback() as near:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        kept = []

        def accept() -> None:
            kept.append(listener.accept()[0])
            kept[0].recv(65536)
            accepted.set()

        thread = threading.Thread(target=accept)
        thread.start()
        failed = []

        def call() -> None:
            with pytest.raises(NoAnswer) as caught:
                ask(near, url)
            failed.append(caught.value)

        caller = threading.Thread(target=call)
        caller.start()
        assert accepted.wait(10)
        near.close()
        caller.join(10)
        thread.join(10)
        kept[0].close()
        assert [error.reached for error in failed] == [True]
        with pytest.raises(NoAnswer, match="closed"):
            ask(near, url)


def test_a_query_is_percent_encoded_and_lists_are_repeated():
    with Scripted([OK]) as server, loopback() as near:
        ask(near, server.url, q="a b&c/ü", on=True, each=["1", 2])
    assert server.asked[0].startswith(b"GET /v1/x?q=a+b%26c%2F%C3%BC&on=true&each=1&each=2 HTTP/1.1\r\n")


def test_calls_to_this_machine_load_no_http_library(serve):
    server, client = serve({f"GET /v1/jobs/{documents.JOB_ID}": Reply(body=documents.job())})
    del client
    code = (
        "import sys; from trainshed import Client\n"
        f"with Client({server.url!r}, 'key-1') as client: client.jobs.get({documents.JOB_ID!r})\n"
        "print(sorted({'httpx2', 'ssl', 'http.client', 'email'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_project_that_no_header_can_carry_is_refused_before_anything_is_sent(serve):
    server, _ = serve({})
    with Client(server.url, "key-1", "a\r\nX-Evil: 1") as client, pytest.raises(ConfigurationError):
        client.me()
    assert not server.seen
