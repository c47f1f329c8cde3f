"""Server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pydantic_core import to_json
from starlette.responses import StreamingResponse

from trainshed.server.errors import refusal_of

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


def event_stream(batches: AsyncIterator[Sequence[Message]], request_id: str) -> StreamingResponse:
    """The answer that sends batches of messages as they come, each batch in one piece.

    An empty batch is offered whenever nothing happened for a while; it keeps the connection alive. What the
    batches raise becomes a last event, of type ``error``, in the shape of a refusal.
    """
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_encode(batches, request_id), headers=headers, media_type="text/event-stream")


async def _encode(batches: AsyncIterator[Sequence[Message]], request_id: str) -> AsyncIterator[bytes]:
    sent_at = time.monotonic()
    yield b": open\n\n"
    try:
        async for batch in batches:
            # Empty batches are offered often; few of them are needed to keep proxies from closing.
            if batch or time.monotonic() - sent_at >= KEEP_ALIVE_SECONDS:
                sent_at = time.monotonic()
                yield b"".join(message.encode() for message in batch) or b":\n\n"
    except Exception as error:  # noqa: BLE001 - the answer has begun: an event is all that can still be said
        body = {**refusal_of(error, request_id).body(), "request_id": request_id}
        yield Message(to_json(body), event="error").encode()
