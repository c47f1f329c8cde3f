"""Waiting for a condition, never for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1


def wait_until(condition: Callable[[], T], timeout: float = 60.0, what: str = "") -> T:
    """The first truthy answer of ``condition``, asked again with growing pauses.

    Fails with ``what`` was awaited and the last answer after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    pause, quiet = _FIRST_PAUSE, threading.Event()
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            name = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"waited {timeout:g} s in vain for {name}; last answer: {answer!r}")
        quiet.wait(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
