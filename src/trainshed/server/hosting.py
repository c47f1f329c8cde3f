"""Running the controller in this process: at once on SQLite, as the elected leader on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from trainshed.control.controller import Controller
from trainshed.store.leadership import Leadership

CHECK_SECONDS = 2.0
_FIRST_LOOK_SECONDS = 10.0

log = structlog.get_logger(__name__)


class ControllerHost:
    """Keeps one controller running while this process leads. ``start`` and ``stop`` once each."""

    def __init__(self, leadership: Leadership, make: Callable[[], Controller]) -> None:
        self._leadership = leadership
        self._make = make
        self._controller: Controller | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller-host", daemon=True)

    def start(self) -> None:
        """Lead if nobody does, and wait for the first look; else stand by in the background."""
        if self._leadership.acquire():
            self._begin().ready.wait(_FIRST_LOOK_SECONDS)
        else:
            log.info("another process leads; standing by")
        self._thread.start()

    def wake(self) -> None:
        controller = self._controller
        if controller is not None:
            controller.wake()

    def state(self) -> str:
        """``ok``, or what the controller of this process is doing instead."""
        controller = self._controller
        if controller is None:
            return "ok" if not self._stopping.is_set() else "stopping"
        return "ok" if controller.ready.is_set() else "has not looked yet"

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._end()

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            try:
                self._look()
            except Exception:
                log.exception("leading failed; it is tried again")
                self._end()

    def _look(self) -> None:
        if self._controller is not None and not self._leadership.held():
            log.warning("lost the lead; standing by")
            self._end()
        if self._controller is None and self._leadership.acquire():
            log.info("leading now")
            self._begin()

    def _begin(self) -> Controller:
        controller = self._make()
        controller.start()
        self._controller = controller
        return controller

    def _end(self) -> None:
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.stop()
        self._leadership.release()
