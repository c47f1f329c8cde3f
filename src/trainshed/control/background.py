"""Long work beside the controller's thread: one piece at a time for each key, with pauses after failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import structlog

from trainshed.store.database import DatabaseUnavailable

_MAX_PAUSE_SECONDS = 60.0

log = structlog.get_logger(__name__)

Work = Callable[[], bool]
"""Does one piece of work; ``False`` means that it must be tried again later."""


class Background:
    """Runs work in an executor. Thread-safe.

    While a key is busy or pauses after a failure, further work for it is not taken: the controller is
    level-triggered and will offer it again.
    """

    def __init__(self, executor: Executor, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self._executor = executor
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def offers(self, key: str) -> bool:
        """Whether work for ``key`` would be taken now."""
        with self._lock:
            return key not in self._busy and self._not_before.get(key, 0.0) <= self._clock()

    def is_busy(self, key: str) -> bool:
        """Whether work for ``key`` goes on now."""
        with self._lock:
            return key in self._busy

    def start(self, key: str, work: Work) -> None:
        """Run ``work`` unless the key is busy or pauses."""
        with self._lock:
            if key in self._busy or self._not_before.get(key, 0.0) > self._clock():
                return
            self._busy.add(key)
        self._executor.submit(work).add_done_callback(lambda future: self._done(key, future))

    def next_due(self) -> float | None:
        """When the next pause ends (Unix seconds); pauses that are over are forgotten."""
        with self._lock:
            now = self._clock()
            self._not_before = {key: at for key, at in self._not_before.items() if at > now}
            return min(self._not_before.values(), default=None)

    def close(self) -> None:
        """Wait for what runs; what has not begun is left to the next process."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _done(self, key: str, future: Future[bool]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, DatabaseUnavailable):
            log.error("work beside the controller failed; it is tried again", key=key, exc_info=error)
        with self._lock:
            self._busy.discard(key)
            if future.cancelled() or (error is None and future.result()):
                self._failures.pop(key, None)
            else:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                self._not_before[key] = self._clock() + pause_seconds(failures)
        self._wake()


@dataclass(frozen=True, slots=True)
class Workers:
    """The kinds of long work, apart: a Trial with many outputs must not keep the GPUs of others."""

    preparing: Background
    collecting: Background
    releasing: Background

    def next_due(self) -> float | None:
        """When something that failed is due again (Unix seconds)."""
        kinds = (self.preparing, self.collecting, self.releasing)
        return min((at for kind in kinds if (at := kind.next_due()) is not None), default=None)

    def close(self) -> None:
        """See `Background.close`."""
        self.preparing.close()
        self.collecting.close()
        self.releasing.close()


def pause_seconds(failures: int) -> float:
    """How long to pause after the ``failures``-th failure in a row (1, 2, ...)."""
    return float(min(_MAX_PAUSE_SECONDS, 0.5 * 2 ** min(failures - 1, 10)))
