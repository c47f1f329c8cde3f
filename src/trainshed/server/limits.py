"""How often a key may ask, and how much it may send. Both are judged before any work is done."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import anyio.from_thread
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from trainshed.model.errors import Refusal

BODY_PAUSE_SECONDS = 30.0
"""How long a sender may pause in the middle of a body."""
_DRAIN_SECONDS = 5.0


class BodyStalled(Exception):
    """Nothing more of a request's body came for `BODY_PAUSE_SECONDS`."""


class Action(StrEnum):
    """Kinds of requests with a rate of their own."""

    READ = "reads"
    WRITE = "writes"
    SUBMIT = "submissions"


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: ``per_second`` is the lasting rate, ``burst`` what may come at once."""

    per_second: float
    burst: float


DEFAULT_RATES: Mapping[Action, Rate] = {
    Action.READ: Rate(1000, 2000),
    Action.WRITE: Rate(1000, 2000),
    Action.SUBMIT: Rate(1000, 2000),
}


class RateLimiter:
    """One token bucket a caller and action. Used from the event loop only, so it needs no lock.

    A key that never proved valid shares the bucket of its network address, so that made-up keys buy nothing.
    """

    def __init__(
        self,
        rates: Mapping[Action, Rate] = DEFAULT_RATES,
        *,
        clock: Callable[[], float] = time.monotonic,
        capacity: int = 10_000,
    ) -> None:
        self._rates = dict(rates)
        self._clock = clock
        self._capacity = capacity
        self._buckets: OrderedDict[tuple[str, Action], tuple[float, float]] = OrderedDict()
        self._proven: OrderedDict[str, None] = OrderedDict()

    def proved(self, key: str) -> None:
        """Remember that the key with this hash is valid."""
        self._proven[key] = None
        self._proven.move_to_end(key)
        if len(self._proven) > self._capacity:
            self._proven.popitem(last=False)

    def take(self, key: str | None, address: str, action: Action) -> float:
        """Take one token: 0.0 if the request may go on, else the seconds until one is there."""
        who = key if key in self._proven and key is not None else address
        rate, now = self._rates[action], self._clock()
        tokens, since = self._buckets.pop((who, action), (rate.burst, now))
        tokens = min(rate.burst, tokens + (now - since) * rate.per_second)
        allowed = tokens >= 1
        self._buckets[who, action] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > self._capacity:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / rate.per_second


def rate_limited(action: Action, seconds: float) -> Refusal:
    """The refusal of a request that came too early."""
    wait = max(1, math.ceil(seconds))
    refusal = Refusal.of("RATE_LIMITED", f"too many {action} with this key; wait {wait} s")
    refusal.retry_after = wait
    return refusal


def declared_length(headers: Mapping[str, str]) -> int | None:
    """The Content-Length header as a number, ``None`` for a chunked body."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() else None


def too_large(limit: int) -> Refusal:
    return Refusal.of("REQUEST_TOO_LARGE", f"the body is larger than {limit} bytes")


class BodyStream:
    """A request's body, piece by piece and never more than ``limit`` bytes of it.

    Every method raises `Refusal` ``REQUEST_TOO_LARGE`` as soon as that is known: from the declared length
    before anything is read, else from what has come. A sender that pauses for more than ``pause`` seconds is
    given up with `BodyStalled`.
    """

    def __init__(
        self, receive: Receive, declared: int | None, limit: int, *, pause: float = BODY_PAUSE_SECONDS
    ) -> None:
        self._receive = receive
        self._declared = declared
        self._limit = limit
        self._pause = pause
        self._taken = 0
        self._more = True

    @property
    def declared(self) -> int | None:
        """The length that the sender announced, ``None`` for a chunked body."""
        return self._declared

    async def next(self) -> bytes:
        """The next piece; empty at the end."""
        if self._declared is not None and self._declared > self._limit:
            raise too_large(self._limit)
        while self._more:
            piece = await self._piece()
            if self._taken > self._limit:
                raise too_large(self._limit)
            if piece:
                return piece
        return b""

    def read(self, size: int = -1, /) -> bytes:
        """At least the next piece, for a handler in its worker thread; more of them up to about ``size``.

        Pieces are whole and come in 64 KiB at most: taking each by itself would cost more than storing it.
        """
        return anyio.from_thread.run(self._pieces, size)

    async def _pieces(self, size: int) -> bytes:
        parts = [piece := await self.next()]
        taken = len(piece)
        while piece and taken < size:
            parts.append(piece := await self.next())
            taken += len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def whole(self) -> bytes:
        """All of it."""
        parts = []
        while piece := await self.next():
            parts.append(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def drain(self) -> None:
        """Take and forget what still comes, for a while: a sender that is cut off does not hear why."""
        with contextlib.suppress(TimeoutError, ClientDisconnect, BodyStalled):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while self._more and self._taken <= 2 * self._limit:
                    await self._piece()

    async def _piece(self) -> bytes:
        try:
            async with asyncio.timeout(self._pause):
                message = await self._receive()
        except TimeoutError:
            raise BodyStalled(f"the body did not go on for {self._pause:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece: bytes = message.get("body", b"")
        self._taken += len(piece)
        self._more = message.get("more_body", False)
        return piece
