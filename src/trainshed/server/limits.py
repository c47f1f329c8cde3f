"""How often a key may ask, and how much it may send. Both are judged before any work is done."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from trainshed.model.errors import Refusal

_DRAIN_SECONDS = 5.0


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


async def read_body(receive: Receive, declared: str | None, limit: int) -> bytes:
    """The whole body; raises `Refusal` ``REQUEST_TOO_LARGE`` without ever holding more than ``limit`` bytes.

    ``declared`` is the Content-Length header, if there is one; chunked bodies are counted as they come.
    """
    parts: list[bytes] = []
    total = 0
    too_large = declared is not None and declared.isdigit() and int(declared) > limit
    deadline = time.monotonic() + _DRAIN_SECONDS
    more = True
    while more:
        message = await _next(receive, deadline if too_large else None)
        if message is None:
            break
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        total += len(piece)
        more = message.get("more_body", False)
        if total > limit:
            too_large = True
            parts.clear()
        elif not too_large:
            parts.append(piece)
        if total > 2 * limit:
            break
    if too_large:
        raise Refusal.of("REQUEST_TOO_LARGE", f"the body is larger than {limit} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _next(receive: Receive, deadline: float | None) -> Message | None:
    """The next piece of the body. What is too large is taken for a while, so that the sender hears why."""
    if deadline is None:
        return await receive()
    try:
        return await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return None
