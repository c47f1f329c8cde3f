"""Server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from starlette.responses import StreamingResponse

KEEP_ALIVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Message:
    """One event."""

    data: bytes
    id: str | None = None
    event: str | None = None

    def encode(self) -> bytes:
        lines = []
        if self.event is not None:
            lines.append(b"event: " + self.event.encode())
        if self.id is not None:
            lines.append(b"id: " + self.id.encode())
        # JSON holds no line ends, so one data line is enough.
        lines.append(b"data: " + self.data)
        return b"\n".join(lines) + b"\n\n"


def event_stream(batches: AsyncIterator[Sequence[Message]]) -> StreamingResponse:
    """The answer that sends batches of messages as they come, each batch in one piece.

    An empty batch is offered whenever nothing happened for a while; it keeps the connection alive.
    """
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_encode(batches), headers=headers, media_type="text/event-stream")


async def _encode(batches: AsyncIterator[Sequence[Message]]) -> AsyncIterator[bytes]:
    sent_at = time.monotonic()
    yield b": open\n\n"
    async for batch in batches:
        # Empty batches are offered often; few of them are needed to keep proxies from closing.
        if batch or time.monotonic() - sent_at >= KEEP_ALIVE_SECONDS:
            sent_at = time.monotonic()
            yield b"".join(message.encode() for message in batch) or b":\n\n"
