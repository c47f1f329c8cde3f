"""Rule 10: every call of a provider ends within its limit, whatever it asks for and whoever is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from trainshed.engines.providers.contract import LIMITS, Unavailable

_SHARE = 0.9
"""Of a limit: the rest is for what cannot be cut short, such as packing and tidying up."""
_OTHERS = 300.0
"""Seconds of calls that have no limit in the contract."""
P = ParamSpec("P")
R = TypeVar("R")


class Deadline:
    """When what a thread does just now has to be over. Thread-safe; of each thread its own.

    Real time: it bounds how long somebody is waited for, and decides nothing else.
    """

    def __init__(self, limits: Mapping[str, float] = LIMITS) -> None:
        self._limits = limits
        self._mine = threading.local()

    @contextmanager
    def within(self, call: str) -> Iterator[None]:
        """What is done inside has the time of this call; inside of another one, not more than is left."""
        with self._until(time.monotonic() + self._limits.get(call, _OTHERS) * _SHARE):
            yield

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """What is done inside has a share of the time that is left."""
        now = time.monotonic()
        with self._until(now + (self._now_until() - now) * share):
            yield

    def left(self, most: float) -> float:
        """How long one may wait now, at most ``most`` seconds; raises `Unavailable` where time is up."""
        left = self._now_until() - time.monotonic()
        if left <= 0:
            raise Unavailable("it takes longer than it may")
        return min(most, left)

    def _now_until(self) -> float:
        found: float = getattr(self._mine, "until", float("inf"))
        return found

    @contextmanager
    def _until(self, until: float) -> Iterator[None]:
        before = self._now_until()
        self._mine.until = min(before, until)
        try:
            yield
        finally:
            self._mine.until = before


class Limited(Protocol):
    """What has calls with limits."""

    @property
    def deadline(self) -> Deadline: ...


L = TypeVar("L", bound=Limited)


def limited(call: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """A method of a provider that ends within the limit of its name."""

    def within(self: L, /, *args: P.args, **named: P.kwargs) -> R:
        with self.deadline.within(call.__name__):
            return call(self, *args, **named)

    return update_wrapper(within, call)


__all__ = ["Deadline", "limited"]
