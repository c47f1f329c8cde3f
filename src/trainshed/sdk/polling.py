"""Asking again and again until something is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from trainshed.sdk.errors import ConnectionFailed, RateLimited, ServerUnavailable, WaitTimeout
from trainshed.sdk.transport import Transport

FIRST_POLL_SECONDS = 0.1
LONGEST_POLL_SECONDS = 5.0
POLL_GROWTH = 1.5
T = TypeVar("T")


def wait_until(
    transport: Transport,
    look: Callable[[float | None], T],
    done: Callable[[T], bool],
    said: Callable[[T], str],
    *,
    name: str,
    timeout: float | None,
    outage_seconds: float,
) -> T:
    """What ``look`` finds once it is ``done``; ``look`` is given its deadline (``time.monotonic``).

    Raises `WaitTimeout` with ``said`` of what was found last after ``timeout`` seconds, whether or not the
    server answers, and what `Transport.patiently` raises after an outage of ``outage_seconds``.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_POLL_SECONDS
    while True:
        try:
            found = transport.patiently(
                lambda: look(deadline), outage_seconds=outage_seconds, deadline=deadline
            )
        except (ConnectionFailed, ServerUnavailable, RateLimited) as error:
            if deadline is None or time.monotonic() < deadline:
                raise
            raise WaitTimeout(f"no answer about {name} after {timeout:g} s: {error}") from error
        if done(found):
            return found
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise WaitTimeout(f"{said(found)} after {timeout:g} s")
        transport.sleep(pause if left is None else min(pause, left))
        pause = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)
