"""Work that several may want at once is done by one of them; the others wait and share its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Told how many bytes are done, of how many."""
_LOOK_SECONDS = 0.05


class Cancelled(Exception):
    """Whoever wanted the work does not want it any more."""


def never() -> bool:
    """For work that nobody cancels."""
    return False


def silent(_done: int, _total: int) -> None:
    """For work whose progress nobody watches."""


@dataclass(slots=True)
class _Flight:
    over: threading.Event = field(default_factory=threading.Event)
    progress: tuple[int, int] | None = None
    given_up: bool = False
    error: Exception | None = None
    result: Any = None


class Flights:
    """What is under way now, by a key. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}

    def share(
        self,
        key: str,
        work: Callable[[Progress], T],
        *,
        on_progress: Progress = silent,
        cancelled: Callable[[], bool] = never,
    ) -> T:
        """The result of ``work``, which runs in one caller's thread at a time.

        Its error reaches all who waited for it. Where the caller that does the work is cancelled, one of
        those who still want it begins anew. Raises `Cancelled` soon after ``cancelled`` says so.
        """
        while True:
            if cancelled():
                raise Cancelled
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    mine = self._flights[key] = _Flight()
                    break
            self._wait(flight, on_progress, cancelled)
            if flight.error is not None:
                raise flight.error
            if not flight.given_up:
                return flight.result  # type: ignore[no-any-return]  # equal keys mean equal work

        def tell(done: int, total: int) -> None:
            mine.progress = done, total
            on_progress(done, total)

        try:
            mine.result = result = work(tell)
        except Exception as error:
            mine.error = None if isinstance(error, Cancelled) else error
            mine.given_up = True
            raise
        except BaseException:
            mine.given_up = True
            raise
        else:
            return result
        finally:
            with self._lock:
                del self._flights[key]
            mine.over.set()

    @staticmethod
    def _wait(flight: _Flight, on_progress: Progress, cancelled: Callable[[], bool]) -> None:
        told = None
        while not flight.over.wait(_LOOK_SECONDS):
            if cancelled():
                raise Cancelled
            if flight.progress is not None and flight.progress != told:
                told = flight.progress
                on_progress(*told)
