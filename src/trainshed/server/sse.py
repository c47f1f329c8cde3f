"""Server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.responses import StreamingResponse

KEEP_ALIVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Message:
    """One event; without data it only says that the stream is alive."""

    data: bytes = b""
    id: str | None = None
    event: str | None = None

    def encode(self) -> bytes:
        lines = []
        if self.event is not None:
            lines.append(b"event: " + self.event.encode())
        if self.id is not None:
            lines.append(b"id: " + self.id.encode())
        # JSON holds no line ends, so one data line is enough.
        lines.append(b"data: " + self.data if self.data else b":")
        return b"\n".join(lines) + b"\n\n"


def event_stream(messages: AsyncIterator[Message]) -> StreamingResponse:
    """The answer that sends ``messages`` as they come."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_encode(messages), headers=headers, media_type="text/event-stream")


async def _encode(messages: AsyncIterator[Message]) -> AsyncIterator[bytes]:
    sent_at = time.monotonic()
    yield b": open\n\n"
    async for message in messages:
        # Empty messages are offered often; few of them are needed to keep proxies from closing.
        if message.data or time.monotonic() - sent_at >= KEEP_ALIVE_SECONDS:
            sent_at = time.monotonic()
            yield message.encode()
