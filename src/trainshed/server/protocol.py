"""HTTP/1.1 connections: uvicorn's protocol, with bounds on what a sender may make this process hold.

uvicorn takes request heads of any size and waits for the rest of a request for ever. Here a head is bounded
in bytes and in time, and a body that does not come holds up neither its connection (`limits.BodyStream`) nor
the end of the server.
"""

from __future__ import annotations

from asyncio import BaseTransport, Protocol, TimerHandle
from http import HTTPStatus
from secrets import token_hex
from typing import Any

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trainshed.model.errors import Refusal

MAX_HEAD_BYTES = 64 << 10
"""Request line and header fields together."""
HEAD_SECONDS = 30.0
"""How long a connection may take to send a request's head, from its start or from the head's first byte."""
SHUTDOWN_BODY_SECONDS = 2.0
"""How long a body may still come in once the server is going down."""


MAX_MESSAGE_BYTES = 1 << 20
"""Of one message of a WebSocket."""


def web_socket(**settings: Any) -> Protocol:
    """Make uvicorn's protocol for a connection that becomes a WebSocket; loaded with the first one.

    Few servers ever have one, and what it takes of memory and of the start is for them alone.
    """
    from uvicorn.protocols.websockets.websockets_sansio_impl import (  # noqa: PLC0415 - see above
        WebSocketsSansIOProtocol,
    )

    return WebSocketsSansIOProtocol(**settings)


class HeadTooLarge(Exception):
    """The head of a request is larger than `MAX_HEAD_BYTES`."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._began = False
        self._head_bytes = 0
        """Bytes of the head that the parser has told us of."""
        self._unparsed_bytes = 0
        """Bytes that came while the head was incomplete; the parser tells of a field when it is whole."""
        self._too_large = False
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows asyncio's own type
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._began = False
        super().data_received(data)
        # A piece in which the head began may hold the end of what came before; the next ones are the head's.
        if self._in_head and not self._began and not self.transport.is_closing():
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self._too_large = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._began = True
        self._head_bytes = self._unparsed_bytes = 0
        if self._head_timer is None:
            self._await_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_is_there()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words, replaced by ours
        """Refuse what is no request, in the shape of every other refusal, and close."""
        status, code = HTTPStatus.BAD_REQUEST, "INVALID_REQUEST"
        said = "this is no HTTP/1.1 request"
        if self._too_large:
            status, code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "REQUEST_TOO_LARGE"
            said = f"the request line and the headers are larger than {MAX_HEAD_BYTES} bytes"
        body = to_json({**Refusal.of(code, said).body(), "request_id": f"req_{token_hex(8)}"})
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def shutdown(self) -> None:
        """End soon: an idle connection now, one that still sends its body a moment later."""
        super().shutdown()
        if not self.transport.is_closing():
            self.loop.call_later(SHUTDOWN_BODY_SECONDS, self._give_up_body)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = True
            raise HeadTooLarge

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up_head)

    def _head_is_there(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()

    def _give_up_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _give_up_body(self) -> None:
        if self.cycle.more_body and not self.cycle.response_started and not self.transport.is_closing():
            self.transport.close()
